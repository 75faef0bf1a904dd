"""`slimsched init`: a first scenario of one's own, from flags, or from answers on a terminal."""

from __future__ import annotations

import os
import re
import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kit.documents import write_text
from kit.errors import InputError, nearest
from scenarios.files.reading import load_scenario, read_profile
from scenarios.files.router_names import check_router, is_router_file
from scenarios.files.shipped import SHIPPED_PROFILES, is_shipped_name
from scenarios.files.spec import GreedySection
from scenarios.files.starter import Starter, starter_text
from scenarios.tasks.asked import require_unique
from scenarios.terminal.asking import ask, can_ask
from scenarios.terminal.flags import duration_s, rate
from scenarios.terminal.output import Output
from scenarios.terminal.places import writable_file
from scenarios.world.materials import default_folder, make_world
from sim.network import PRESETS

PAPERS_TABLE: Final = "slimresnet18-paper"
PAPERS_GPUS: Final = "rtx-2080-ti, rtx-2080-ti, gtx-980-ti"
ROUTERS: Final = "random jsq sticky ladder"


def init(arguments: Namespace) -> int:
    """Write a scenario that runs, with a comment at each choice."""
    output, path = Output(arguments), writable_file(arguments.file)
    if path.exists():
        raise InputError(str(path), "", "is there already; name another file, or remove it")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")[:100] or "scenario"
    folder = path.absolute().parent
    chosen = _chosen(arguments, folder, asks=can_ask() and not output.quiet)
    write_text(path, starter_text(path, name, chosen, tuple(PRESETS)))
    try:
        scenario = load_scenario(path)
        make_world(scenario, default_folder(scenario))
    except InputError:
        path.unlink()
        raise
    text = f"scenario: {path}\nnext: {shlex.join(['slimsched', 'compare', str(path)])}"
    return output.result(text, {"schema": "slimsched.init/1", "scenario": str(path), "name": name})


class _Choice(NamedTuple):
    """One choice: its flag, what is asked, what is taken where nobody says, and what a text (a word) is read as."""

    flag: str
    question: str
    default: str
    read: Callable[[str], Any]
    is_list: bool = False

    def made_of(self, text: str) -> Any:
        """Of an answer; words of a list have spaces between them, or commas, which routers' numbers have as well."""
        if not self.is_list:
            return self.read(text)
        return self.made_of_each((text.replace(",", " ") if self.flag == "gpu" else text).split())

    def made_of_each(self, words: Sequence[str]) -> list[Any]:
        """Of the words of a list."""
        if not words:
            raise InputError(f"--{self.flag}", "", "name at least one")
        return [self.read(word) for word in words]


def _chosen(arguments: Namespace, folder: Path, *, asks: bool) -> Starter:
    """What the flags say; what they don't is asked, or has its default."""
    shipped = ", ".join(sorted(file.stem for file in SHIPPED_PROFILES.glob("*.yaml")))
    choices = (
        _Choice("gpu", f"GPUs, one a server ({shipped}, or profiles' files)", PAPERS_GPUS, _profile, is_list=True),
        _Choice("link", f"links to them ({', '.join(PRESETS)})", "1gbe", _link),
        _Choice("rate", "images a second", "1000", rate),
        _Choice("router", "routers to compare (slimsched list routers)", ROUTERS, _router, is_list=True),
        _Choice("duration", "length of a run", "10s", duration_s),
    )
    profiles, link, rate_img_s, routers, length_s = [
        _found(choice, getattr(arguments, choice.flag), asks=asks) for choice in choices
    ]
    require_unique("--router", tuple(routers))
    covered = min(read_profile(profile).batch_limit for profile in profiles)
    return Starter(
        profiles=[_from(folder, profile) for profile in profiles],
        accuracy=PAPERS_TABLE if arguments.accuracy is None else _from(folder, arguments.accuracy),
        link=link,
        rate_img_s=rate_img_s,
        routers=[_from(folder, Path(name)) if is_router_file(name) else name for name in routers],
        duration_s=length_s,
        batch_limit=covered if covered < GreedySection().batch_limit else None,
    )


def _found(choice: _Choice, given: Any, *, asks: bool) -> Any:
    if given is None and asks:
        return ask(choice.question, choice.default, choice.made_of)
    try:
        return choice.made_of_each(given) if isinstance(given, list) else choice.made_of(given or choice.default)
    except ArgumentTypeError as error:
        raise InputError(f"--{choice.flag}", "", str(error)) from None


def _from(folder: Path, named: Path) -> str:
    """As a scenario in that folder names a file; what ships has its name."""
    return str(named) if is_shipped_name(str(named)) and not named.exists() else os.path.relpath(named, folder)


def _profile(named: str) -> Path:
    """One that can be read."""
    read_profile(Path(named), "--gpu")
    return Path(named) if Path(named).exists() else Path(named.lower())


def _link(text: str) -> str:
    if text not in PRESETS:
        raise InputError("--link", "", f"unknown {text!r}; {nearest(text, PRESETS)}")
    return text


def _router(name: str) -> str:
    check_router(name, "--router")
    return name
