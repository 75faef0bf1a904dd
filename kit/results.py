"""What a function returns: its document, which is what `--json` writes on the command line, with names and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kit.errors import InputError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Document:
    """What every result has.

    Attributes:
        document: all of it as plain data: what `--json` writes on the command line (docs/metrics.md).
        remarks: warnings and other remarks, which a command would have written to standard error.
    """

    remarks: tuple[str, ...] = field(default=(), repr=False)

    if TYPE_CHECKING:

        @property
        def document(self) -> Mapping[str, Any]:  # noqa: D102 - see above
            ...

    def rows(self) -> list[dict[str, Any]]:
        """A table of it as plain data: a dictionary a row, all with the same keys."""
        return [{name: value for name, value in self.document.items() if name != "schema" and is_plain(value)}]

    def to_json(self) -> str:
        """The document as JSON text."""
        from kit.documents import json_text

        return json_text(dict(self.document))

    def to_frame(self) -> pandas.DataFrame:
        """The same table as `rows`, as a pandas data frame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            remedy = "pip install 'slim-scheduler[frames]' (or pandas); .rows() gives the same without it"
            raise InputError("to_frame", "", f"needs pandas, which is not installed: {remedy}") from None
        return pandas.DataFrame(self.rows())

    @property
    def afterword(self) -> str:
        """What is said when the result has been shown; empty where nothing is."""
        return ""

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return 0

    def require_whole(self) -> None:
        """Raises `WorkError` where the work came to nothing, though there is a result to look at."""

    def with_remarks(self, remarks: Sequence[str]) -> Self:
        """The same with what there was to remark."""
        return replace(self, remarks=tuple(remarks))


@dataclass(frozen=True, kw_only=True)
class OwnDocument(Document):
    """A result whose fields are its document."""

    _left_out: ClassVar[tuple[str, ...]] = ("remarks",)

    @property
    def document(self) -> Mapping[str, Any]:
        """Its fields as plain data; paths as text."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self) if each.name not in self._left_out}


def plain(value: Any) -> Any:
    """A value as JSON has it: paths are text, and numbers of numpy are numbers."""
    import msgspec

    return msgspec.to_builtins(value, enc_hook=lambda each: each.item() if hasattr(each, "item") else str(each))


def is_plain(value: Any) -> bool:
    """Whether it can stand in a cell of a table."""
    return value is None or isinstance(value, str | int | float)
