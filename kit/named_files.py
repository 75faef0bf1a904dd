"""The files that a scenario names: a key that names a file is marked with a `FileName`.

So a new key needs no list: the code that makes paths absolute, and the code that checks files for changes, find it
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from kit.files import possible_path
from kit.strict import StrictModel

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class FileName:
    """A mark (with `Annotated`) of a document's key whose text names a file.

    Attributes:
        is_path: whether a text is a path; a router's name, for example, isn't.
        find: returns the file that a text stands for; None if it stands for none.
        split: returns the text before the path, and the path.
    """

    is_path: Callable[[str], bool] = lambda text: True
    find: Callable[[str], Path | None] = Path
    split: Callable[[str], tuple[str, str]] = lambda text: ("", text)


PossiblePath = Annotated[str, AfterValidator(possible_path)]
FilePath = Annotated[PossiblePath, FileName()]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def plain_name(text: str) -> str:
    """Return a name that is valid for files and folders, too; raises ValueError, with a similar one, for any other."""
    if re.fullmatch(NAME, text):
        return text
    plain = as_name(text)
    allowed = "up to 100 letters, digits, `.`, `_` and `-`, the first a letter or a digit"
    raise ValueError(f"{text!r:.80} can't be a name; allowed are {allowed}" + (f", such as {plain}" if plain else ""))


def as_name(text: str, otherwise: str = "") -> str:
    """Return a similar plain name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or otherwise


Name = Annotated[str, AfterValidator(plain_name)]


@dataclass(frozen=True)
class NamedFile:
    """A file that a document names: its key and its path."""

    key: str
    path: Path


def marker_of(field: FieldInfo) -> FileName | None:
    """Return the mark of a key that names a file; None if it has none."""
    return next((each for each in _metadata(field.annotation, *field.metadata) if isinstance(each, FileName)), None)


@cache
def _fields(kind: type[BaseModel]) -> tuple[tuple[str, str, FileName | None], ...]:
    """Return each field's name, key and mark, cached because a scenario may have many servers."""
    return tuple((name, field.alias or name, marker_of(field)) for name, field in kind.model_fields.items())


def named_files(document: StrictModel, key: str = "") -> Iterator[NamedFile]:
    """Yield every file that a document names, in the order of its keys."""
    for name, alias, marker in _fields(type(document)):
        yield from _found(getattr(document, name), marker, f"{key}.{alias}" if key else alias)


def with_paths(document: Model, rename: Callable[[str], str]) -> Model:
    """Return a document with every path in it renamed; unset keys stay unset."""
    update = {}
    for name, _, marker in _fields(type(document)):
        old = getattr(document, name)
        if (new := _renamed(old, marker, rename)) is not old:
            update[name] = new
    return document.model_copy(update=update) if update else document


def _found(value: Any, marker: FileName | None, key: str) -> Iterator[NamedFile]:
    if isinstance(value, StrictModel):
        yield from named_files(value, key)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _found(each, marker, f"{key}.{index}")
    elif isinstance(value, str) and marker is not None and (path := marker.find(value)) is not None:
        yield NamedFile(key, path)


def _renamed(value: Any, marker: FileName | None, rename: Callable[[str], str]) -> Any:
    """Return a value with its paths renamed: the very same object if nothing in it changes."""
    if isinstance(value, BaseModel):
        return with_paths(value, rename)
    if isinstance(value, tuple):
        new = tuple(_renamed(each, marker, rename) for each in value)
        return value if all(one is other for one, other in zip(new, value, strict=True)) else new
    if isinstance(value, str) and marker is not None and marker.is_path(value):
        before, path = marker.split(value)
        return before + rename(path)
    return value


def _metadata(annotation: Any, *known: Any) -> Iterator[Any]:
    """Yield all metadata attached to a type and the types in it."""
    yield from known
    for part in get_args(annotation):
        yield from _metadata(part, *getattr(part, "__metadata__", ()))
