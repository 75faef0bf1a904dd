"""User classes (`module:Class`): found without running them, imported, and identified by their source and its imports.

A scenario may name any code, and imported code runs with the user's rights. So all loading of user code passes through
this module: the command line has each class reported before any part of it is imported (`telling`), and `--no-own-code`
refuses it, also in child processes (SLIMSCHED_NO_OWN_CODE in the environment).
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from kit.errors import InputError, in_a_line

OURS: Final = ("kit", "policies", "sim", "hw", "calibrate", "scenarios", "jobs", "slimsched")

_FORMS = r"""from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+([\w., \t]+)"""
_AT_THE_TOP = re.compile(rf"^(?:{_FORMS})()", re.MULTILINE)
_FOR_TYPES = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)*", re.MULTILINE)  # never imported
_ANYWHERE = re.compile(rf"""^[ \t]*(?:{_FORMS})|(?:import_module|__import__)\([ \t]*["']([\w.]+)""", re.MULTILINE)


# --------------------------------------------------------------------------------------------------- imports of sources


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
    waiting, visited = list(entries), {""}
    while waiting:
        name = waiting.pop()
        if name not in visited and (source := read(name)) is not None:
            modules[name] = source[0]
            waiting += [name.rpartition(".")[0], *_imported(*source, anywhere)]
        visited.add(name)
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


OWN_CLASS = "module:Class"
REFUSING: Final = "SLIMSCHED_NO_OWN_CODE"


FAILURES: Final = (Exception, SystemExit)  # of a user's code: an attempt to end the process is reported as an error is

# Receives a class's name and the line about it; unset in a worker, whose parent has reported it.
_Listener = Callable[[str, str], None]
_listener: ContextVar[_Listener | None] = ContextVar("listener", default=None)


# -------------------------------------------------------------------------------------------------------------- loading


def is_own(name: str) -> bool:
    """Return whether a name is that of a user's class."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


@contextmanager
def telling(say: Callable[[str], None], *, is_refused: bool = False) -> Iterator[None]:
    """Report each user class once before it is imported, or refuse it, within the block and processes started in it."""
    announced: set[str] = set()

    def tell(name: str, line: str) -> None:
        if name not in announced:
            announced.add(name)
            say(line)

    before = os.environ.get(REFUSING)
    listening = _listener.set(tell)
    if is_refused:
        os.environ[REFUSING] = "1"
    try:
        yield
    finally:
        _listener.reset(listening)
        if before is not None:
            os.environ[REFUSING] = before
        elif is_refused:
            del os.environ[REFUSING]


def own_class(name: str, source: str, key: str) -> Any:
    """Return the class that `module:Class` names, from Python's path or otherwise from the current folder.

    (An installed command does not search that folder automatically.)

    Args:
        source, key: what holds the name, for messages.

    Raises:
        InputError: user code is refused, the class does not exist, or its module fails.
    """
    with blaming(name, source, key):
        _admit(name, source, key)
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)


@contextmanager
def blaming(name: str, source: str, key: str, call: str = "") -> Iterator[None]:
    """Turn an exception of a user's class, while it is created, into an `InputError` of one line.

    Args:
        call: the expected call, for a class that takes other arguments.
    """
    try:
        yield
    except InputError:
        raise
    except FAILURES as error:
        raise InputError(source, key, f"{name!r} could not be made: {failure(error, call)}") from error


def failure(error: BaseException, call: str = "") -> str:
    """Return an exception of a user's code as one line with its place, or the call if the code was not even entered."""
    text = in_a_line(f"{type(error).__name__}: {error}")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not (_is_ours(file) or _is_installed(file)):
            return f"{text} ({_shown(file)}, line {frame.lineno})"
    return f"{text}; it is called as {call}" if call and isinstance(error, TypeError) else text


def _admit(name: str, source: str, key: str) -> None:
    """Refuse or report a class before any of it runs."""
    module, _, attribute = name.partition(":")
    description = f"{_shown(_file(_found(module))) or module}: {attribute}"
    if os.environ.get(REFUSING, "0") not in ("", "0"):
        problem = f"{name!r} is custom code ({description}), which --no-own-code (or {REFUSING}=1) refuses"
        raise InputError(source, key, f"{problem}; leave that out if you trust the file")
    if (listener := _listener.get()) is not None:
        location = f"{source}: {key}" if key else source
        listener(name, f"own code: {description} ({location}) runs with your rights")


def _found(module: str) -> ModuleSpec | None:
    """Find a module on Python's path or otherwise in the current folder; None for a module made by hand."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    spec = _spec(module)
    if spec is None and module not in sys.modules:
        remedy = f"; a module is named without .py: {module.removesuffix('.py')}:..." if module.endswith(".py") else ""
        raise ModuleNotFoundError(f"No module named {module!r} where Python looks, nor in {folder}{remedy}")
    return spec


def _shown(file: Path | None) -> str:
    """Return a path relative to the current folder if it is below it."""
    if file is None:
        return ""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


# ------------------------------------------------------------------------------------------ files and hashes of modules


def _spec(module: str) -> ModuleSpec | None:
    """Return the spec of what Python would import, without running it or its packages (`find_spec` imports those)."""
    if module in sys.modules:
        return sys.modules[module].__spec__
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # the module was made by hand
        return None
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def _file(spec: ModuleSpec | None) -> Path | None:
    file = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    return file if file is not None and file.is_file() else None


def code_hash(name: str, source: str, key: str) -> str:
    """Return `source_hash` of code that is about to run, after it is reported or refused.

    Raises:
        InputError: as for `own_class`, except for errors that only an import shows.
    """
    with blaming(name, source, key):
        _admit(name, source, key)
    return source_hash(name, source, key)


def source_hash(name: str, source: str, key: str) -> str:
    """Hash the module of a class and all that it imports, without comments and without running any of it.

    Installed packages and this project's are hashed by version. Empty if the module has no file.

    Raises:
        InputError: the module does not exist.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]

    def read(imported: str) -> tuple[str, str] | None:
        if imported.partition(".")[0] in OURS or (file := _file(_spec(imported))) is None:
            return None
        if imported.partition(".")[0] != top and _is_installed(file):
            return None
        return file.read_bytes().decode("latin-1"), imported if file.stem == "__init__" else imported.rpartition(".")[0]

    with blaming(name, source, key):
        _found(module)
        digest = hashlib.sha256()
        sources = with_imports([module], read)
        for dotted, text in sorted((dotted, _without_comments(text)) for dotted, text in sources.items()):
            digest.update(f"{dotted} {len(text)}\n{text}".encode())
        return digest.hexdigest()[:16] if sources else ""


def _without_comments(source: str) -> str:
    """Remove comments; text that isn't Python stays unchanged: importing it reports the error."""
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return source


def _is_ours(file: Path) -> bool:
    return any(file.is_relative_to(Path(__file__).parents[1] / package) for package in OURS)


def _is_installed(file: Path) -> bool:
    """Return whether a file is Python's own, or belongs to an installed package."""
    standard = (Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
    is_pythons = any(file.resolve().is_relative_to(folder) for folder in standard)
    return is_pythons or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


# ----------------------------------------------------------------------------------------------- this project's version


_ROOT: Final = Path(__file__).resolve().parents[1]


def own_version() -> str:
    """Return the installed version; `unknown` if the project runs from its folder without installation."""
    try:
        return version("slim-scheduler")
    except PackageNotFoundError:
        return "unknown"


@cache
def code_here() -> str:
    """Return 16 hex digits that identify this project's code: they distinguish two states of one version."""
    digest = hashlib.sha256()
    for path in sorted(path for package in OURS for path in (_ROOT / package).rglob("*.py")):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
