"""What decides a stored result: the modules that its makers import, and what they import, in our own packages."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("policies", "sim", "hw", "calibrate", "scenarios")


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
    found: dict[str, ast.Module] = {}
    waiting = list(entries)
    for name in entries:
        if _file(name, root) is None:
            raise ModuleNotFoundError(f"no module {name!r} below {root}")
    while waiting:
        name = waiting.pop()
        file = _file(name, root)
        if file is None or name in found:  # a function, class or constant of a module
            continue
        found[name] = ast.parse(file.read_text(encoding="utf-8"))
        waiting += [name.rpartition(".")[0], *_imports(found[name])]
    return found


def _file(name: str, root: Path) -> Path | None:
    if name.partition(".")[0] not in PACKAGES:
        return None
    place = root.joinpath(*name.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every name that is imported anywhere in a module; a module's members look as its submodules do."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""  # imports are absolute here: ruff sees to it
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from (name for child in node.orelse for name in _imports(child))
        else:
            yield from _imports(node)
