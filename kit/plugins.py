"""A user's own class, named `module:Class`: found without running it, told of, refused where that is asked for,
imported, and known again by its source and all that it imports.

What a scenario names may be anybody's, and what is imported runs with the user's rights. So all ways to own code lead
through here: the command line has each class told before anything of it is imported (`telling`), and `--no-own-code`
refuses it, in the processes that are started as well (SLIMSCHED_NO_OWN_CODE in the environment).
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Final

from kit.errors import InputError, in_a_line
from kit.imports import OURS, with_imports

OWN_CLASS = "module:Class"
REFUSING: Final = "SLIMSCHED_NO_OWN_CODE"


FAILURES: Final = (Exception, SystemExit)  # of a user's code: an attempt to end the process is told as an error is

# Is told a class's name and the line about it; nobody listens in a worker, whose parent has told it.
_Listener = Callable[[str, str], None]
_listener: ContextVar[_Listener | None] = ContextVar("listener", default=None)


# ---------------------------------------------------------------------------------------------------- named, and told


def is_own(name: str) -> bool:
    """Whether a name is that of a user's class."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


@contextmanager
def telling(say: Callable[[str], None], *, is_refused: bool = False) -> Iterator[None]:
    """Within it each own class is told of once, before it is imported, or refused (so in processes begun within)."""
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
    """What `module:Class` names: from where Python looks, else from the folder the user is in.

    (An installed command does not look there by itself.)

    Args:
        source, key: where the name stands, for messages.

    Raises:
        InputError: own code is refused, there is no such class, or whatever goes wrong in its module.
    """
    with blaming(name, source, key):
        _admit(name, source, key)
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)


@contextmanager
def blaming(name: str, source: str, key: str, call: str = "") -> Iterator[None]:
    """What a user's class raises while it is made is the user's to know, as an `InputError` of one line.

    Args:
        call: how it is called, for who gives it other arguments.
    """
    try:
        yield
    except InputError:
        raise
    except FAILURES as error:
        raise InputError(source, key, f"{name!r} could not be made: {failure(error, call)}") from error


def failure(error: BaseException, call: str = "") -> str:
    """What a user's code raised, in a line, and where in it; where it was not even entered, how it is called."""
    text = in_a_line(f"{type(error).__name__}: {error}")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not (_is_ours(file) or _is_installed(file)):
            return f"{text} ({_shown(file)}, line {frame.lineno})"
    return f"{text}; it is called as {call}" if call and isinstance(error, TypeError) else text


def _admit(name: str, source: str, key: str) -> None:
    """Nothing of it has been run yet: it is refused now, or told of."""
    module, _, attribute = name.partition(":")
    what = f"{_shown(_file(_found(module))) or module}: {attribute}"
    if os.environ.get(REFUSING, "0") not in ("", "0"):
        problem = f"{name!r} is code of your own ({what}), which --no-own-code (or {REFUSING}=1) refuses"
        raise InputError(source, key, f"{problem}; leave that out where you trust the file")
    if (listener := _listener.get()) is not None:
        where = f"{source}: {key}" if key else source
        listener(name, f"own code: {what} ({where}) runs with your rights")


def _found(module: str) -> ModuleSpec | None:
    """From where Python looks, else from the folder the user is in; None for one that was made by hand."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    spec = _spec(module)
    if spec is None and module not in sys.modules:
        remedy = f"; a module is named without .py: {module.removesuffix('.py')}:..." if module.endswith(".py") else ""
        raise ModuleNotFoundError(f"No module named {module!r} where Python looks, nor in {here}{remedy}")
    return spec


def _shown(file: Path | None) -> str:
    """From where the user is, if it lies below."""
    if file is None:
        return ""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


# ---------------------------------------------------------------------------------------------------- found, and read


def _spec(module: str) -> ModuleSpec | None:
    """What Python would import; nothing of it, nor of the packages around it, is run (`find_spec` imports those)."""
    if module in sys.modules:
        return sys.modules[module].__spec__
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # it was made by hand
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def _file(spec: ModuleSpec | None) -> Path | None:
    """A module's; None where it stands in none."""
    file = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    return file if file is not None and file.is_file() else None


def code_hash(name: str, source: str, key: str) -> str:
    """`source_hash` of code that is about to run: it is told of, or refused, before the work begins.

    Raises:
        InputError: as `own_class` does, but for what only an import shows.
    """
    with blaming(name, source, key):
        _admit(name, source, key)
    return source_hash(name, source, key)


def source_hash(name: str, source: str, key: str) -> str:
    """Of the module that a class stands in, and of all that it imports, without comments; nothing of it is run.

    What is installed, and what is this project's, has a version instead. Empty where the module stands in no file.

    Raises:
        InputError: there is no such module.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]

    def read(found: str) -> tuple[str, str] | None:
        if found.partition(".")[0] in OURS or (file := _file(_spec(found))) is None:
            return None
        if found.partition(".")[0] != top and _is_installed(file):
            return None
        return file.read_bytes().decode("latin-1"), found if file.stem == "__init__" else found.rpartition(".")[0]

    with blaming(name, source, key):
        _found(module)
        digest = hashlib.sha256()
        sources = with_imports([module], read)
        for each, text in sorted((each, _without_comments(text)) for each, text in sources.items()):
            digest.update(f"{each} {len(text)}\n{text}".encode())
        return digest.hexdigest()[:16] if sources else ""


def _without_comments(source: str) -> str:
    """A text that is no Python counts as it is: whoever imports it is told."""
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return source


def _is_ours(file: Path) -> bool:
    return any(file.is_relative_to(Path(__file__).parents[1] / package) for package in OURS)


def _is_installed(file: Path) -> bool:
    """Whether it is Python's own, or came with a package."""
    standard = (Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
    is_pythons = any(file.resolve().is_relative_to(folder) for folder in standard)
    return is_pythons or not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
