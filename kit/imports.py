"""The imports of modules, found in the text of their sources without running them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

OURS: Final = ("kit", "policies", "sim", "hw", "calibrate", "scenarios", "jobs", "slimsched")

_FORMS = r"""from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+([\w., \t]+)"""
_AT_THE_TOP = re.compile(rf"^(?:{_FORMS})()", re.MULTILINE)
_FOR_TYPES = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)*", re.MULTILINE)  # never imported
_ANYWHERE = re.compile(rf"""^[ \t]*(?:{_FORMS})|(?:import_module|__import__)\([ \t]*["']([\w.]+)""", re.MULTILINE)


def with_imports(
    entries: Iterable[str], read: Callable[[str], tuple[str, str] | None], *, anywhere: bool = True
) -> dict[str, str]:
    """Return by name the sources of some modules and of all that they import.

    Args:
        read: returns a module's source, and the package that its relative imports start from; None for a name that
            isn't a module, or is to be left out.
        anywhere: include imports within functions, and `import_module` of a literal.
    """
    modules: dict[str, str] = {}
    waiting, seen = list(entries), {""}
    while waiting:
        name = waiting.pop()
        if name not in seen and (source := read(name)) is not None:
            modules[name] = source[0]
            waiting += [name.rpartition(".")[0], *_imported(*source, anywhere)]
        seen.add(name)
    return modules


@lru_cache
def _imported(source: str, package: str, anywhere: bool) -> tuple[str, ...]:
    """Return every name that a source imports, whether of a module or of something in one."""
    imported: list[str] = []
    for origin, names, modules, called in (_ANYWHERE if anywhere else _AT_THE_TOP).findall(_FOR_TYPES.sub("", source)):
        if modules:
            imported += [each.split()[0] for each in modules.split(",") if each.strip()]
        else:
            base = _absolute(origin or called, package)
            imported += [base, *(f"{base}.{name}" for name in re.findall(r"\w+", names))]
    return tuple(imported)


def _absolute(module: str, package: str) -> str:
    """Return a module's absolute name; each dot before it but the first is one package further up."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    return ".".join([*above, name] if name else above)
