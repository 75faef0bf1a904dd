"""NVML as a library that may lack anything: functions, constants, permissions, the device itself.

Every query goes through `Board.ask`, which turns the ways in which NVML refuses into one exception with the reason and
the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_NO_PERMISSION, _FUNCTION_NOT_FOUND = 4, 13  # NVML_ERROR_..., as in nvml.h
_LOST = frozenset({15, 16, 28})  # GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
_REMEDIES = {
    _NO_PERMISSION: "only administrators may read this here: run as one, or ask for access to the device",
    _FUNCTION_NOT_FOUND: "the driver is too old for it: a newer driver may have it",
}


class RefusedError(Exception):
    """A query that NVML does not answer: the reason, with the remedy.

    Attributes:
        lost: because the device is gone.
    """

    def __init__(self, reason: str, lost: bool = False) -> None:
        super().__init__(reason)
        self.lost = lost


@dataclass(frozen=True)
class Board:
    """One device behind the library.

    Attributes:
        nvml: the library, as `pynvml` shows it.
        handle: of the device.
    """

    nvml: Any
    handle: Any

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function of the device (its first argument); raises `RefusedError` if that fails."""
        return self.call(function, self.handle, *arguments)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function; raises `RefusedError` if that fails."""
        question = self.constant(function)
        try:
            return question(*arguments)
        except self.nvml.NVMLError as error:
            raise refusal(error.value, str(error)) from None
        except UnicodeDecodeError:
            raise RefusedError(f"{function} answers with odd bytes") from None
        except Exception as error:  # pynvml's NVMLLibraryMismatchError is not an NVMLError
            if type(error).__name__ != "NVMLLibraryMismatchError":
                raise
            raise refusal(_FUNCTION_NOT_FOUND, "Function Not Found") from None

    def constant(self, name: str) -> Any:
        """Return the library's constant of a name; an old library may lack it."""
        try:
            return getattr(self.nvml, name)
        except AttributeError:
            raise RefusedError(
                f"the installed nvidia-ml-py lacks {name}; remedy: pip install -U nvidia-ml-py"
            ) from None

    def field(self, name: str) -> int:
        """Return a field by its name, as an unsigned number."""
        value = self.ask("nvmlDeviceGetFieldValues", [self.constant(name)])[0]
        if value.nvmlReturn != 0:
            raise refusal(value.nvmlReturn, str(self.nvml.NVMLError(value.nvmlReturn)))
        return int(value.value.uiVal)


def refusal(code: int, text: str) -> RefusedError:
    """Return NVML's error, with the remedy if there is one."""
    remedy = _REMEDIES.get(code)
    return RefusedError(f"{text}; {remedy}" if remedy else text, lost=code in _LOST)
