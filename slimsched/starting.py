"""What commands can name, and a first custom scenario, from arguments or answers on a terminal.

`names` recognises files by their beginning and does not check them: the commands that use them do.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from cyclopts import Parameter

from kit.errors import InputError, nearest
from scenarios.files.bundled_files import CALIBRATED, FOLDERS, SHIPPED_PROFILES, SHIPPED_SCENARIOS
from scenarios.terminal.screen import ask, can_ask
from slimsched.arguments import File, duration_s, require_unique, require_within
from slimsched.results import CommandResult
from slimsched.working import observer, verb

if TYPE_CHECKING:
    from hw.telemetry import DeviceDescription
    from scenarios.files.bundled_files import Starter


# ----------------------------------------------------------------------------------------------------- a first scenario


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
    """Write a first scenario.

    It has a comment at each choice. Without a flag the command prompts on a terminal, and takes the default elsewhere.

    Args:
        file: the file to write.
        gpus: a server's GPU: a bundled profile's name, or a profile's file; may be given several times.
        link: the link to every server: wifi5, 1gbe, 10gbe ... (1gbe).
        rate: the arrival rate, in images/s (1000).
        duration: the length of a run (10s).
        accuracy: a table of accuracies by width tuple, of the profiles' network (the paper's).

    Raises:
        InputError: the file exists already, or a choice is invalid.
    """
    from kit.documents import write_text
    from kit.files import writable_file
    from kit.strict import as_name
    from scenarios.experiment.scenario_building import default_folder, make_experiment
    from scenarios.files.bundled_files import starter_text
    from scenarios.files.scenario_reading import load_scenario
    from sim.host_and_network import PRESETS

    path = writable_file(Path(file))
    if path.exists():
        raise InputError(str(path), "", "exists already; name another file, or remove it")
    name = as_name(path.stem, "scenario")
    answers = {"gpu": list(gpus), "link": link, "rate": rate, "duration": duration}
    table = None if accuracy is None else Path(accuracy)
    starter = _starter_of(answers, table, path.absolute().parent, asks=can_ask() and not observer().quiet)
    write_text(path, starter_text(path, name, starter, tuple(PRESETS)))
    try:
        scenario = load_scenario(path)
        make_experiment(scenario, default_folder(scenario))
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

    def made_of_each(self, texts: Sequence[str]) -> list[Any]:
        """Convert the words of a list."""
        if not texts:
            raise InputError(f"--{self.flag}", "", "name at least one")
        return [self.read(text) for text in texts]


def _starter_of(answers: Mapping[str, Any], accuracy: Path | None, folder: Path, *, asks: bool) -> Starter:
    """Return the arguments' choices; others are asked, or have their defaults."""
    from scenarios.files.bundled_files import SHIPPED_PROFILES, Starter
    from scenarios.files.router_files import with_file
    from scenarios.files.scenario_keys import GreedySection
    from scenarios.files.scenario_reading import read_profile
    from sim.host_and_network import PRESETS

    shipped = ", ".join(sorted(file.stem for file in SHIPPED_PROFILES.glob("*.yaml")))
    choices = (
        _Choice("gpu", f"GPUs, one a server ({shipped}, or profiles' files)", PAPERS_GPUS, _profile, is_list=True),
        _Choice("link", f"links to them ({', '.join(PRESETS)})", "1gbe", _link),
        _Choice("rate", "images a second", "1000", _rate),
        _Choice("router", "routers to compare (slimsched list routers)", ROUTERS, _router, is_list=True),
        _Choice("duration", "length of a run", "10s", _duration_s),
    )
    profiles, link, rate_img_s, routers, length_s = [
        _answer_to(choice, answers.get(choice.flag) or None, asks=asks) for choice in choices
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


def _answer_to(choice: _Choice, answer: Any, *, asks: bool) -> Any:
    if answer is None and asks:
        return ask(choice.question, choice.default, choice.made_of)
    try:
        return choice.made_of_each(answer) if isinstance(answer, list) else choice.made_of(answer or choice.default)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--{choice.flag}", "", str(error)) from None


def _from(folder: Path, file: Path) -> str:
    """Return a file's name in a scenario of that folder; a bundled one has its own name."""
    from scenarios.files.bundled_files import is_shipped_name

    return str(file) if is_shipped_name(str(file)) and not file.exists() else os.path.relpath(file, folder)


def _profile(name: str) -> Path:
    """Read a profile's file name, which must be readable."""
    from scenarios.files.scenario_reading import read_profile

    read_profile(Path(name), "--gpu")
    return Path(name) if Path(name).exists() else Path(name.lower())


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError("--rate", "", f"{text!r:.40} is not a number of images a second") from None
    require_within("--rate", value, 1e-3, 1e9)
    return value


def _duration_s(text: str) -> float:
    from scenarios.files.scenario_keys import LONGEST_S

    length_s = duration_s(text)
    require_within("--duration", length_s, 1e-3, LONGEST_S)
    return length_s


def _link(text: str) -> str:
    from sim.host_and_network import PRESETS

    if text not in PRESETS:
        raise InputError("--link", "", f"unknown {text!r}; {nearest(text, PRESETS)}")
    return text


def _router(name: str) -> str:
    from scenarios.files.router_files import check_router

    check_router(name, "--router")
    return name


# ---------------------------------------------------------------------------------------------------- what can be named


_BEGINNING: Final = 20_000  # bytes of a file that are read
_PLACEMENTS: Final = {  # which server each takes, as in docs/routers.md; every segment at full width
    "weighted-random": "at random, as likely as it is fast",
    "round-robin": "after the last one",
    "jsq": "with the fewest outstanding requests",
    "jsq-speed": "with the fewest outstanding requests for its speed",
    "power-of-two": "with the fewest outstanding requests, of two drawn at random",
    "power-of-two-speed": "the same, for its speed",
    "jiq": "that has nothing outstanding, or else any at random",
    "least-work": "with the least expected work outstanding",
    "least-work-coming": "the same with the work that will come back",
    "shortest-delay": "where the micro-batch is expected to end first",
    "sticky": "where the activations are; for new images `least-work`",
    "packed": "where the activations are; for new images by energy an image",
    "sticky-coming": "where the activations are; for new images `least-work-coming`",
}


@dataclass(frozen=True, slots=True)
class Named:
    """Something that can be named.

    Attributes:
        name: as a command takes it: a word, or a path from here.
        about: what it is, in a few words.
        ships: whether it is bundled with the project.
    """

    name: str
    about: str
    ships: bool = True


@verb
def names(kind: Literal["scenarios", "routers", "profiles", "devices", "runs"] | None = None, /) -> CommandResult:
    """List scenarios, routers, profiles, devices and runs.

    For a device it shows which sensors work.

    Args:
        kind: one kind; all but devices by default.
    """
    kinds: Mapping[str, Callable[[], Iterator[Named]]] = {
        "scenarios": _scenarios,
        "routers": _routers,
        "profiles": _profiles,
        "runs": _runs,
    }
    micro_batch_sizes: dict[str, list[dict[str, Any]]] = {
        name: [asdict(each) for each in of()] for name, of in kinds.items() if kind in (None, name)
    }
    texts = [_table(name, entries) for name, entries in micro_batch_sizes.items()]
    if kind == "devices":
        from hw.telemetry import available_devices

        devices = available_devices()
        micro_batch_sizes["devices"] = [asdict(device) for device in devices]
        texts.append("\n".join(line for device in devices for line in _device_lines(device)))
    return CommandResult({"schema": "slimsched.list/1", **micro_batch_sizes}, "\n\n".join(texts))


def _device_lines(device: DeviceDescription) -> Iterator[str]:
    yield f"{device.kind}:{device.index}  {device.state}"
    for field, state in (*device.telemetry.items(), *device.facts.items()):
        yield f"  {field:<17} {state}"


def _table(kind: str, entries: list[dict[str, str]]) -> str:
    from scenarios.show.tables import Column, Table, to_text

    if not entries:
        return f"no {kind.removesuffix('s')} is in this folder, nor in ./{kind}"
    rows = [[entry["name"], entry["about"] if entry["ships"] else f"here: {entry['about']}"] for entry in entries]
    return to_text([Table([Column(kind), Column("", is_text=True)], rows)])


def _scenarios() -> Iterator[Named]:
    for path in (path for folder in (".", *FOLDERS) for path in sorted((SHIPPED_SCENARIOS / folder).glob("*.yaml"))):
        name = path.relative_to(SHIPPED_SCENARIOS).with_suffix("").as_posix().replace("/", "-")  # as its file names it
        yield Named(name, _first_sentence(_beginning(path)))
    yield from _of_schema(Path().glob("*.yaml"), "slimsched.scenario/", _first_sentence)


def _routers() -> Iterator[Named]:
    from policies.router_kinds import KINDS, TUNED
    from policies.router_names import ROUTER_NAMES
    from scenarios.files.bundled_files import MADE_KINDS, RULE_SUFFIX, TUNED_HERE, made_name

    for name in ROUTER_NAMES:
        yield Named(name, KINDS[name].help if name in KINDS else f"full width, the server {_PLACEMENTS[name]}")
    yield from (Named(f"{kind.name}:...", kind.help) for kind in KINDS.values() if kind.needs_numbers)
    for kind in MADE_KINDS:
        if not made_name(kind).startswith(TUNED_HERE) and made_name(kind) not in ROUTER_NAMES:
            yield Named(made_name(kind), "made by the scenario's own `slimsched train` or `run`")
    yield Named(f"{TUNED_HERE}KIND", f"tuned by the same: {', '.join(TUNED)}")
    yield from _of_schema(Path().glob(f"*{RULE_SUFFIX}"), "slimsched.rule/", _kind)


def _profiles() -> Iterator[Named]:
    yield from (Named(path.stem, _device(_beginning(path))) for path in sorted(SHIPPED_PROFILES.glob("*.yaml")))
    yield from _of_schema(CALIBRATED.glob("*.yaml"), "slimsched.profile/", _device)


def _runs() -> Iterator[Named]:
    from scenarios.files.bundled_files import MADE_KINDS, made_file
    from scenarios.runs.folder import RunFolder

    files = ("comparison.json", "validation.json", "report.html", *map(made_file, MADE_KINDS))
    for folder in (Path(), *_folders(Path()), *_folders(Path("runs"))):
        run_folder = RunFolder(folder)
        if run_folder.is_flagged:
            scenario = _value(_beginning(folder / "scenario.yaml"), "name") or (run_folder.scenario or Path()).stem
            names = [name for name in files if (folder / name).exists()]
            runs = [*folder.glob("simulation/*/result.json"), *folder.glob("executors/*/result.json")]
            facts = [*([f"{len(runs)} runs kept"] if runs else []), *names]
            yield Named(
                str(folder), f"{scenario or 'no scenario'}: {', '.join(facts) or 'nothing finished'}", ships=False
            )


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(folder, entry.name) for entry in os.scandir(folder) if entry.is_dir())
    except OSError:  # not there, or not ours
        return []


def _of_schema(paths: Iterable[Path], schema: str, about: Callable[[str], str]) -> Iterator[Named]:
    for path in sorted(paths):
        text = _beginning(path)
        if _value(text, "schema").startswith(schema):
            yield Named(str(path), about(text), ships=False)


def _beginning(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BEGINNING).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _value(text: str, key: str, indent: str = "") -> str:
    match = re.search(rf"^{indent}{key}: *(.+?) *$", text, re.MULTILINE)
    return match[1].strip("'\"") if match else ""


def _first_sentence(text: str) -> str:
    """Return the first sentence of the comment at the top, without a part after a colon."""
    lines = [line.lstrip("# ") for line in text.splitlines()[: text.count("\n")] if line.startswith("#")]
    return re.split(r"(?<=[.:;]) ", f"{' '.join(lines)} ")[0].strip(" .:;")


def _device(text: str) -> str:
    return ", ".join(filter(None, (_value(text, "name", "  "), _value(text, "provenance"))))


def _kind(text: str) -> str:
    return _value(text, "kind")
