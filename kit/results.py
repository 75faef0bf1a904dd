"""Results of functions: a document, which `--json` writes on the command line, with names and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kit.errors import InputError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Document:
    """The common base of all results.

    Attributes:
        document: the result as plain data, which `--json` writes on the command line (docs/metrics.md).
        remarks: warnings and other remarks, which a command would write to standard error.
    """

    remarks: tuple[str, ...] = field(default=(), repr=False)

    if TYPE_CHECKING:

        @property
        def document(self) -> Mapping[str, Any]:  # noqa: D102 - see above
            ...

    def rows(self) -> list[dict[str, Any]]:
        """Return the result's table as plain data: a dictionary for each row, all with the same keys."""
        return [{name: value for name, value in self.document.items() if name != "schema" and is_plain(value)}]

    def to_json(self) -> str:
        """Return the document as JSON text."""
        from kit.documents import json_text

        return json_text(dict(self.document))

    def to_frame(self) -> pandas.DataFrame:
        """Return the table of `rows` as a pandas data frame.

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
        """The text to print after the result; empty if there is none."""
        return ""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return 0

    def require_whole(self) -> None:
        """Raise `WorkError` if the work produced nothing, though there is a result to inspect."""

    def with_remarks(self, remarks: Sequence[str]) -> Self:
        """Return the same result with these remarks."""
        return replace(self, remarks=tuple(remarks))


@dataclass(frozen=True, kw_only=True)
class OwnDocument(Document):
    """A result whose fields are its document."""

    _left_out: ClassVar[tuple[str, ...]] = ("remarks",)

    @property
    def document(self) -> Mapping[str, Any]:
        """The fields as plain data; paths as text."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self) if each.name not in self._left_out}


def plain(value: Any) -> Any:
    """Return a value in JSON's types: paths as text, and numpy's numbers as numbers."""
    import msgspec

    return msgspec.to_builtins(value, enc_hook=lambda each: each.item() if hasattr(each, "item") else str(each))


def is_plain(value: Any) -> bool:
    """Return whether a value fits in a cell of a table."""
    return value is None or isinstance(value, str | int | float)
