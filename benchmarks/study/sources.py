"""What decides a stored result: the modules that its makers import, and what they import, in our own packages."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

from kit.imports import OURS, with_imports

ROOT: Final = Path(__file__).parents[2]


@cache
def sources_hash(entries: Sequence[str], root: Path = ROOT) -> str:
    """Of what some modules, and all that they import, do: comments and docstrings may change.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    digest = hashlib.sha256()
    for name, tree in sorted(imported(entries, root).items()):
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                ast.get_docstring(node, clean=False) is not None
            ):
                node.body = node.body[1:]
        digest.update(f"{name}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()


def imported(entries: Sequence[str], root: Path = ROOT) -> dict[str, ast.Module]:
    """By name the parsed modules, from the entries on; what only types are taken from is none.

    Raises:
        ModuleNotFoundError: an entry is no module of ours.
    """
    for name in entries:
        if _source(name, root) is None:
            raise ModuleNotFoundError(f"no module {name!r} below {root}")
    found = with_imports(entries, partial(_source, root=root))
    return {name: ast.parse(source) for name, source in found.items()}


def _source(name: str, root: Path) -> tuple[str, str] | None:
    if name.partition(".")[0] not in OURS:
        return None
    place = root.joinpath(*name.split("."))
    file = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
    if file is None:
        return None
    return file.read_text(encoding="utf-8"), name if file.stem == "__init__" else name.rpartition(".")[0]


def file_digest(path: Path) -> str:
    """Of a router's file, in a row that was made with it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
