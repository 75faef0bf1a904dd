"""The cache of compiled code: its folder, and what is in it, found without Numba, which takes half a second to
import."""

from __future__ import annotations

import os
import sys
from functools import cache, lru_cache
from hashlib import sha1, sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final

from kit.plugins import OURS, with_imports

_BESIDE: Final = Path(__file__).parents[1] / "__init__.py"  # as if this project's packages were in one package
IS_ON: Final = os.environ.get("SLIMSCHED_JIT", "1") != "0"


def cache_folder() -> Path | None:
    """Return the folder of compiled code: `SLIMSCHED_CACHE`, or the user's cache folder; None for a user without a
    home."""
    folder = os.environ.get("SLIMSCHED_CACHE")
    if folder:
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "slimsched"
    except RuntimeError:
        return None


def cache_problem() -> str | None:
    """Return why compiled code can't be kept, and what to do; None if it can."""
    folder = cache_folder()
    if folder is not None and _writable(folder) is not None:
        return None
    remedy = "set SLIMSCHED_CACHE to a folder that can"
    return f"{folder or 'the home folder'} can't be written, so the engine is compiled again at each start; {remedy}"


def folder_of(module: str) -> Path | None:
    """Create and return the folder for a module's compiled code; None if nothing can be kept."""
    base = cache_folder()
    return None if base is None else _writable(base / sources_hash(module))


def is_kept(module: str, function: str) -> bool:
    """Return whether the compiled code of a module's function is cached for the present sources and this machine.

    Dates do not count: recent versions of Numba compare the sources, too.
    """
    base, source = cache_folder(), _file_of(module)
    if not IS_ON or base is None or source is None:
        return False
    child = f"{source.parent.name}_{sha1(str(source.parent).encode(), usedforsecurity=False).hexdigest()}"  # Numba's
    return any((base / sources_hash(module) / child).glob(f"{source.stem}.{function}-*.nbi"))


@lru_cache
def _writable(folder: Path) -> Path | None:
    probe = folder / f".{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except (OSError, RuntimeError):
        return None
    return folder


def sources_hash(module: str) -> str:
    """Hash a module, all that it imports from its own package or this project, the versions, and the processor.

    Compiled code depends on nothing else: callees and constants are in these sources. Nothing is imported.
    """
    digest = sha256(f"{_versions()} {sys.version} {_processor()}".encode())
    for name, source in sorted(sources_of(module).items()):
        digest.update(f"{name}\n{source}".encode())
    return digest.hexdigest()[:16]


def sources_of(module: str) -> dict[str, str]:
    """Return by name the sources that a module's compiled code may depend on."""
    packages = {module.partition(".")[0], *OURS}

    def read(name: str) -> tuple[str, str] | None:
        file = _file_of(name) if name.partition(".")[0] in packages else None
        return None if file is None else (_text(file), name if file.stem == "__init__" else name.rpartition(".")[0])

    return with_imports([module, f"{__package__}.jit"], read, anywhere=False)


@lru_cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def _versions() -> str:
    return f"{version('numba')} {version('numpy')}"


@cache
def _processor() -> str:
    """Return Numba's compile target: the processor's name and features; empty on systems that do not report them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return ""
    return "".join(line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU ")))


def _file_of(module: str) -> Path | None:
    """Return the source of a module that is imported, is ours, or is in such a package; None if there is none."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None:
        return Path(loaded)
    package, _, name = module.rpartition(".")
    folder = _file_of(package) if package else _BESIDE if name in OURS else None
    if folder is None or folder.name != "__init__.py":
        return None  # a name in a plain module isn't a module
    return next(
        (file for file in (folder.with_name(f"{name}.py"), folder.with_name(name) / "__init__.py") if file.is_file()),
        None,
    )
