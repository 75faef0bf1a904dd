"""A first custom scenario, from arguments, or from answers on a terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from kit.errors import InputError, nearest
from scenarios.terminal.asking import ask, can_ask
from slimsched.arguments import File, duration_s, require_unique, require_within
from slimsched.results import CommandResult
from slimsched.working import observer, verb

if TYPE_CHECKING:
    from scenarios.files.starter import Starter

PAPERS_TABLE: Final = "slimresnet18-paper"
PAPERS_GPUS: Final = "rtx-2080-ti, rtx-2080-ti, gtx-980-ti"
ROUTERS: Final = "random jsq sticky ladder"


@verb
def init(
    file: File = "scenario.yaml",
    /,
    *,
    gpus: Annotated[Sequence[str], Parameter(name="--gpu")] = (),
    link: str | None = None,
    rate: str | None = None,
    duration: str | None = None,
    accuracy: File | None = None,
) -> CommandResult:
    """Write a first scenario of your own.

    It has a comment at each choice. What no argument says is asked on a terminal, and has a default elsewhere.

    Args:
        file: the file to write.
        gpus: a server's GPU: a shipped profile's name, or a profile's file; may be given several times.
        link: to every server: wifi5, 1gbe, 10gbe ... (1gbe).
        rate: images a second (1000).
        duration: of a run (10s).
        accuracy: a table of accuracies by width tuple, of the profiles' network; the paper's by default.

    Raises:
        InputError: the file is there already, or a choice is none.
    """
    from kit.documents import write_text
    from kit.files import writable_file
    from kit.named_files import as_name
    from scenarios.files.reading import load_scenario
    from scenarios.files.starter import starter_text
    from scenarios.world.materials import default_folder, make_world
    from sim.network import PRESETS

    path = writable_file(Path(file))
    if path.exists():
        raise InputError(str(path), "", "is there already; name another file, or remove it")
    name = as_name(path.stem, "scenario")
    given = {"gpu": list(gpus), "link": link, "rate": rate, "duration": duration}
    table = None if accuracy is None else Path(accuracy)
    chosen = _chosen(given, table, path.absolute().parent, asks=can_ask() and not observer().quiet)
    write_text(path, starter_text(path, name, chosen, tuple(PRESETS)))
    try:
        scenario = load_scenario(path)
        make_world(scenario, default_folder(scenario))
    except InputError:
        path.unlink()
        raise
    text = f"scenario: {path}\nnext: {shlex.join(['slimsched', 'compare', str(path)])}"
    return CommandResult({"schema": "slimsched.init/1", "scenario": str(path), "name": name}, text)


class _Choice(NamedTuple):
    """One choice: its flag, the question, the default, and what a text (a word) is read as."""

    flag: str
    question: str
    default: str
    read: Callable[[str], Any]
    is_list: bool = False

    def made_of(self, text: str) -> Any:
        """Convert an answer; a list's words have spaces between them, or commas, as in routers' numbers."""
        if not self.is_list:
            return self.read(text)
        return self.made_of_each((text.replace(",", " ") if self.flag == "gpu" else text).split())

    def made_of_each(self, words: Sequence[str]) -> list[Any]:
        """Convert the words of a list."""
        if not words:
            raise InputError(f"--{self.flag}", "", "name at least one")
        return [self.read(word) for word in words]


def _chosen(given: Mapping[str, Any], accuracy: Path | None, folder: Path, *, asks: bool) -> Starter:
    """Return the arguments' choices; others are asked, or have their defaults."""
    from scenarios.files.reading import read_profile
    from scenarios.files.router_names import with_file
    from scenarios.files.shipped import SHIPPED_PROFILES
    from scenarios.files.spec import GreedySection
    from scenarios.files.starter import Starter
    from sim.network import PRESETS

    shipped = ", ".join(sorted(file.stem for file in SHIPPED_PROFILES.glob("*.yaml")))
    choices = (
        _Choice("gpu", f"GPUs, one a server ({shipped}, or profiles' files)", PAPERS_GPUS, _profile, is_list=True),
        _Choice("link", f"links to them ({', '.join(PRESETS)})", "1gbe", _link),
        _Choice("rate", "images a second", "1000", _rate),
        _Choice("router", "routers to compare (slimsched list routers)", ROUTERS, _router, is_list=True),
        _Choice("duration", "length of a run", "10s", _duration_s),
    )
    profiles, link, rate_img_s, routers, length_s = [
        _found(choice, given.get(choice.flag) or None, asks=asks) for choice in choices
    ]
    require_unique("--router", tuple(routers))
    covered = min(read_profile(profile).batch_limit for profile in profiles)
    return Starter(
        profiles=[_from(folder, profile) for profile in profiles],
        accuracy=PAPERS_TABLE if accuracy is None else _from(folder, accuracy),
        link=link,
        rate_img_s=rate_img_s,
        routers=[with_file(name, lambda path: _from(folder, path)) for name in routers],
        duration_s=length_s,
        batch_limit=covered if covered < GreedySection().batch_limit else None,
    )


def _found(choice: _Choice, given: Any, *, asks: bool) -> Any:
    if given is None and asks:
        return ask(choice.question, choice.default, choice.made_of)
    try:
        return choice.made_of_each(given) if isinstance(given, list) else choice.made_of(given or choice.default)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--{choice.flag}", "", str(error)) from None


def _from(folder: Path, named: Path) -> str:
    """Return a file's name in a scenario of that folder; a bundled one has its own name."""
    from scenarios.files.shipped import is_shipped_name

    return str(named) if is_shipped_name(str(named)) and not named.exists() else os.path.relpath(named, folder)


def _profile(named: str) -> Path:
    """Read a profile's file name, which must be readable."""
    from scenarios.files.reading import read_profile

    read_profile(Path(named), "--gpu")
    return Path(named) if Path(named).exists() else Path(named.lower())


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError("--rate", "", f"{text!r:.40} is no number of images a second") from None
    require_within("--rate", value, 1e-3, 1e9)
    return value


def _duration_s(text: str) -> float:
    from scenarios.files.spec import LONGEST_S

    length_s = duration_s(text)
    require_within("--duration", length_s, 1e-3, LONGEST_S)
    return length_s


def _link(text: str) -> str:
    from sim.network import PRESETS

    if text not in PRESETS:
        raise InputError("--link", "", f"unknown {text!r}; {nearest(text, PRESETS)}")
    return text


def _router(name: str) -> str:
    from scenarios.files.router_names import check_router

    check_router(name, "--router")
    return name
