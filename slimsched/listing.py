"""What can be named: scenarios, routers and profiles, both bundled and local ones; local devices and runs.

Files are recognised by their beginning, and are not checked: that is done when they are used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from scenarios.files.shipped import CALIBRATED, FOLDERS, SHIPPED_PROFILES, SHIPPED_SCENARIOS
from slimsched.results import CommandResult
from slimsched.working import verb

if TYPE_CHECKING:
    from hw.telemetry.local import DeviceDescription

_BEGINNING: Final = 20_000  # bytes of a file that are looked at
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
    "shortest-delay": "where the block is expected to end first",
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
    """List what commands can name; the devices and runs here.

    Of a device it tells which sensors work.

    Args:
        kind: one of them; all but devices by default.
    """
    kinds: Mapping[str, Callable[[], Iterator[Named]]] = {
        "scenarios": _scenarios,
        "routers": _routers,
        "profiles": _profiles,
        "runs": _runs,
    }
    groups: dict[str, list[dict[str, Any]]] = {
        name: [asdict(each) for each in of()] for name, of in kinds.items() if kind in (None, name)
    }
    texts = [_table(name, entries) for name, entries in groups.items()]
    if kind == "devices":
        from hw.telemetry import available_devices

        devices = available_devices()
        groups["devices"] = [asdict(device) for device in devices]
        texts.append("\n".join(line for device in devices for line in _device_lines(device)))
    return CommandResult({"schema": "slimsched.list/1", **groups}, "\n\n".join(texts))


def _device_lines(device: DeviceDescription) -> Iterator[str]:
    yield f"{device.kind}:{device.index}  {device.state}"
    for field, state in (*device.telemetry.items(), *device.facts.items()):
        yield f"  {field:<17} {state}"


def _table(kind: str, entries: list[dict[str, str]]) -> str:
    from scenarios.show.table import Column, Table, to_text

    if not entries:
        return f"no {kind.removesuffix('s')} lies in this folder, nor in ./{kind}"
    rows = [[each["name"], each["about"] if each["ships"] else f"here: {each['about']}"] for each in entries]
    return to_text([Table([Column(kind), Column("", is_text=True)], rows)])


def _scenarios() -> Iterator[Named]:
    for path in (path for folder in (".", *FOLDERS) for path in sorted((SHIPPED_SCENARIOS / folder).glob("*.yaml"))):
        name = path.relative_to(SHIPPED_SCENARIOS).with_suffix("").as_posix().replace("/", "-")  # as its file names it
        yield Named(name, _first_sentence(_beginning(path)))
    yield from _of_schema(Path().glob("*.yaml"), "slimsched.scenario/", _first_sentence)


def _routers() -> Iterator[Named]:
    from policies.names import ROUTER_NAMES
    from policies.registry import KINDS, TUNED
    from scenarios.files.made_routers import MADE_KINDS, RULE_SUFFIX, TUNED_HERE, made_name

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
    from scenarios.files.made_routers import MADE_KINDS, made_file
    from scenarios.runs.folder import RunFolder

    files = ("comparison.json", "validation.json", "report.html", *map(made_file, MADE_KINDS))
    for folder in (Path(), *_folders(Path()), *_folders(Path("runs"))):
        known = RunFolder(folder)
        if known.is_flagged:
            scenario = _value(_beginning(folder / "scenario.yaml"), "name") or (known.scenario or Path()).stem
            names = [name for name in files if (folder / name).exists()]
            runs = [*folder.glob("simulation/*/result.json"), *folder.glob("hardware/*/result.json")]
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
