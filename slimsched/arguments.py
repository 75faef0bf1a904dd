"""What the functions' arguments may be: types, and how a text of the command line is read as one.

The command line is made from the functions' signatures, so the type of an argument is defined here once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from kit.errors import InputError

if TYPE_CHECKING:
    from cyclopts import Token

    from hw.networks.network_files import Network
    from scenarios.files.scenario_keys import Scenario as Keys


@dataclass(frozen=True)
class Scenario:
    """A scenario that was read and checked whole.

    Attributes:
        path: its file.
        keys: its content, key by key (docs/scenario-keys.md): `scenario.keys.duration_s`. Paths are absolute.
        changed: what differs from the file, as JSON; empty if nothing does.
    """

    path: Path
    keys: Keys = field(repr=False)
    changed: str = ""

    @property
    def name(self) -> str:
        """The name in the file; its run folder is `runs/NAME` by default."""
        return self.keys.name


# ------------------------------------------------------------------------------------------------ how a text is read


def flag_of(name: str) -> str:
    """Return a parameter's flag: `budget_s` is `--budget`, because its unit is part of the value there."""
    return f"--{name.strip('_').removesuffix('_s').replace('_', '-')}"


def read_by(read: Callable[[str], Any], name: str | None = None, **options: Any) -> Parameter:
    """Return a parameter of one text; what `read` refuses (`ValueError`) is reported with the flag."""

    def converted(_: Any, tokens: Sequence[Token]) -> Any:
        return read(tokens[0].value)

    names: tuple[str, ...] = () if name is None else (name,)
    return Parameter(name=names, converter=converted, accepts_keys=False, n_tokens=1, **options)


def whole_number(text: str) -> int:
    """Read a whole number: 1.5 is refused, and is not rounded."""
    if not re.fullmatch(r"[+-]?\d{1,18}", text):
        several = "; for several values give the flag before each" if "," in text else ""
        raise ValueError(f"{text!r:.40} is not a whole number{several}")
    return int(text)


def _whole_numbers(_: Any, tokens: Sequence[Token]) -> list[int]:
    return [whole_number(token.value) for token in tokens]


def duration_s(text: str) -> float:
    """Read `45s`, `5m`, `1h`, in seconds."""
    from kit.units import parse_duration
    from scenarios.files.scenario_keys import LONGEST_S

    value_s = parse_duration(text)
    if not 0 <= value_s <= LONGEST_S:
        raise ValueError(f"{text!r:.40}: must be from 0 to {LONGEST_S:g} seconds")
    return value_s


def changes_of(settings: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Any]:
    """Read other values of a scenario, by dotted keys: as Python gives them, or as `KEY=VALUE` with YAML's values.

    Raises:
        InputError: a text is not of that form.
    """
    import yaml

    if settings is None or isinstance(settings, Mapping):
        return dict(settings or {})
    changes = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not (key and equals):
            problem = f"{text!r:.80}: must be KEY=VALUE, such as workload.rate_img_s=600"
            raise InputError("--set", "", problem)
        try:
            changes[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError("--set", "", f"{text!r:.80}: the value is not valid YAML") from None
    return changes


def network_of(text: str | None, source: str = "--network") -> Network | None:
    """Return a network by its name; behind a custom one are the options that its class is called with, as JSON.

    Raises:
        InputError: the network is unknown, or the text behind the name is not a JSON object.
    """
    from hw.networks.accuracy_table import options_of
    from hw.networks.network_files import Network

    if text is None:
        return None
    name, _, options_text = text.partition(" ")
    try:
        options = options_of(options_text)
    except ValueError as error:
        raise InputError(source, "", str(error)) from None
    return Network(name, options, source, "")


def path(text: str) -> Path:
    """Read a path that a system can have."""
    from kit.files import possible_path

    if not text:
        raise ValueError("the path is empty")
    return Path(possible_path(text))


def new_file(text: str) -> Path:
    """Read a path that can be written, into a folder that exists: a mistyped path makes no folders."""
    from kit.files import in_a_folder, writable_file

    return writable_file(in_a_folder(path(text)))


def picture(text: str) -> Path:
    """Read a file for an image."""
    if path(text).suffix not in (".png", ".svg"):
        raise ValueError(f"{text}: name a .png or .svg file")
    return new_file(text)


def new_folder(text: str) -> Path:
    """Read a folder that files can be written into."""
    from kit.files import writable_folder

    return writable_folder(path(text))


def new_page(text: str) -> Path:
    """Read a file for a page (.html), or a folder for images."""
    from kit.files import in_a_folder

    return new_file(text) if path(text).suffix == ".html" else new_folder(str(in_a_folder(path(text))))


# ------------------------------------------------------------------------------------------------------------ the types

Engine = Literal["auto", "simpy", "compiled"]
if TYPE_CHECKING:  # as Python takes them
    ScenarioLike = Scenario | str | Path
    File = str | Path
    NewFile = str | Path
    Picture = str | Path
    NewFolder = str | Path
    NewPage = str | Path
    Router = str | Path
    Out = str | Path | None
    Routers = Sequence[str | Path]
    Names = Sequence[str]
    Seeds = Sequence[int]
    Seed = int | None
    Duration = float
    Changes = Mapping[str, Any]
else:  # as the command line does
    ScenarioLike = File = Annotated[Path, read_by(path)]
    NewFile = Annotated[Path, read_by(new_file)]
    Picture = Annotated[Path, read_by(picture)]
    NewFolder = Annotated[Path, read_by(new_folder)]
    NewPage = Annotated[Path, read_by(new_page)]
    Out = Annotated[Path | None, read_by(new_folder, alias="-o")]
    Router = Annotated[str, Parameter(alias="-r")]
    Routers = Annotated[list[str], Parameter(name="--router", alias="-r", show_default=False)]
    Names = Annotated[list[str], Parameter(show_default=False)]
    Seeds = Annotated[list[int], Parameter(name="--seed", alias="-s", show_default=False, converter=_whole_numbers)]
    Seed = Annotated[int | None, read_by(whole_number, alias="-s")]
    Duration = Annotated[float, read_by(duration_s, show_default=False)]
    Changes = Annotated[list[str], Parameter(name="--set", show_default=False)]

# ---------------------------------------------------------------------------------------------------- what is refused

LONGEST: Final = 10**15  # of any whole number: beyond, no machine gets there


def require_within(flag: str, value: float | None, least: float, most: float) -> None:
    """Raise `InputError` for a number out of its range, with a hint if a share was given in per cent."""
    if value is None or least <= value <= most:
        return
    kind = "a whole number" if isinstance(value, int) and most > 1 else "a number"
    helps = f"; {value:g} % is {value / 100:g}" if most == 1 and 1 < value <= 100 else ""
    raise InputError(flag, "", f"{value:g}: must be {kind} from {least:g} to {most:,.15g}{helps}")


def require_unique(flag: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values; raises `InputError` if one is given twice."""
    from scenarios.files.scenario_keys import unique

    try:
        return unique(tuple(values))
    except ValueError as error:
        raise InputError(flag, "", str(error)) from None
