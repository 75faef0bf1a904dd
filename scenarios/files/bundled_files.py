"""A first custom scenario; the bundled files of the project, by name; and the files of the routers that a run makes.

The bundled files are inside the packages, so that an installed wheel has them, too.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kit.errors import InputError, nearest
from kit.files import lies_there
from policies.router_kinds import TUNED

_TEXT: Final = """\
# {title}
# All keys: docs/scenario-keys.md. Whatever is left out has its default. Paths are relative to this file's folder.
#
{commands}
schema: slimsched.scenario/1
name: {name}  # results go to runs/{name}

# How accurate the network is at each tuple of widths. `slimresnet18-paper` is bundled: the paper's table. For a custom
# network name it instead (model.network, docs/models.md).
model: {{accuracy: {accuracy}}}

cluster:
  # One entry a server. `profile` is a bundled GPU (`slimsched list profiles`), or a file that `slimsched calibrate`
  # wrote. `link` is how activations get there: {links}, or latency_s and bandwidth_bytes_s.
{greedy}  servers:
{servers}

# How images arrive: at random at a mean rate. With bursts: {{kind: mmpp, rate_img_s: ..., burst_factor: 4, burst_share:
# 0.15, dwell_s: 0.5}}; other kinds: docs/scenario-keys.md.
workload: {{kind: poisson, rate_img_s: {rate:g}}}

# The routers that are compared (`slimsched list routers`), and on how many draws of the arrivals. For `tuned:compass`
# or `ppo`: add it to compare.routers, then `slimsched train`.
compare:
  routers: [{routers}]
  seeds: [0, 1, 2, 3, 4]

# The routers that are also run on real processes (`slimsched validate`), if each server has a `device`.
validate:
  routers: [{routers}]

duration_s: {duration:g}  # of each run
warmup_s: {warmup:g}  # images that arrive earlier count in no latency
"""


@dataclass(frozen=True)
class Starter:
    """The choices.

    Attributes:
        profiles: one a server, as the file names them.
        accuracy: a table of accuracies, as the file names it.
        link: a preset's name.
        batch_limit: the largest batch that all profiles cover, if that is less than the default; or None.
    """

    profiles: Sequence[str]
    accuracy: str
    link: str
    rate_img_s: float
    routers: Sequence[str]
    duration_s: float
    batch_limit: int | None = None


def starter_text(file: Path, name: str, starter: Starter, links: Sequence[str]) -> str:
    """Return the file's text; `links` are the presets to list."""
    servers: list[str] = []
    counts = Counter[str]()
    for profile in starter.profiles:
        stem = Path(profile).stem
        counts[stem] += 1
        server = f"name: {_plain(f'{stem}-{counts[stem]}')}, profile: {_plain(profile)}, link: {_plain(starter.link)}"
        servers.append(f"  - {{{server}}}")
    plural = "s" if len(servers) > 1 else ""
    quoted = shlex.quote(str(file))
    values = {
        f"slimsched simulate {quoted}": "one run; --router shows which router",
        f"slimsched compare {quoted}": "the routers below on the same arrivals",
        "slimsched list": "what else can be named here",
    }
    return _TEXT.format(
        title=f"{len(servers)} server{plural} at {starter.rate_img_s:g} images a second, written by `slimsched init`.",
        commands="\n".join(f"#   {command:<{max(map(len, values))}}  # {text}" for command, text in values.items()),
        name=_plain(name),
        accuracy=_plain(starter.accuracy),
        links=", ".join(links),
        greedy=f"  greedy: {{batch_limit: {starter.batch_limit}}}  # no profile covers more\n"
        if starter.batch_limit
        else "",
        servers="\n".join(servers),
        rate=starter.rate_img_s,
        routers=", ".join(map(_plain, starter.routers)),
        duration=starter.duration_s,
        warmup=starter.duration_s / 10,
    )


def _plain(text: str) -> str:
    """Return a text as it is, or in quotes if YAML might take it for anything but a text."""
    is_word = re.fullmatch(r"(?!(true|false|yes|no|on|off|null|[yn])$)[A-Za-z][A-Za-z0-9._/@-]*", text, re.IGNORECASE)
    return text if is_word else json.dumps(text, ensure_ascii=False)


SHIPPED: Final = Path(__file__).parents[1] / "data"
SHIPPED_PROFILES: Final = SHIPPED / "profiles"
SHIPPED_SCENARIOS: Final = SHIPPED.parent  # with those of these folders below it
FOLDERS: Final = ("live", "scale")
SHIPPED_HOST: Final = SHIPPED / "host.yaml"  # what serving cost the host that datasheet profiles name
CALIBRATED: Final = Path("profiles")  # where `slimsched calibrate` writes by default


def profile_file(name: Path | str, source: str | None = None, key: str = "") -> Path:
    """Return the file of a profile; a bare word that is not a file is the name of a bundled one.

    Raises:
        InputError: a bare word that no shipped profile has.
    """
    path = Path(name)
    if not is_shipped_name(str(path)) or path.exists():
        return path
    shipped = {file.stem: file for file in SHIPPED_PROFILES.glob("*.yaml")}
    if path.name.lower() not in shipped:
        calibrated = CALIBRATED / f"{path.name}.yaml"
        hint = f"did you mean {calibrated}? " if calibrated.is_file() else ""
        suggestion = nearest(path.name.lower(), shipped, "the bundled ones are", same_numbers=True)
        remedy = "for a custom GPU: `slimsched profile synth sheet.yaml` (docs/profiles.md)"
        problem = f"no such profile; {hint}{suggestion}; {remedy}"
        raise InputError(source or str(path), key, f"{path}: {problem}" if source else problem)
    return shipped[path.name.lower()]


def accuracy_file(name: str, folder: Path = Path(), source: str = "accuracy", key: str = "") -> str:
    """Return a file of accuracies as a scenario in this folder names it; a word that is not a file names a bundled one.

    Raises:
        InputError: a bare word that no shipped network has.
    """
    return _shipped_model(name, folder, ".accuracy.json", source, key)


def weights_file(name: str, folder: Path = Path(), source: str = "--model", key: str = "") -> str:
    """Return the file of a trained network in the same way; a flag may name it, too."""
    return _shipped_model(name, folder, ".safetensors", source, key)


def _shipped_model(name: str, folder: Path, ending: str, source: str, key: str) -> str:
    if not is_shipped_name(name) or lies_there(folder / name):
        return name
    shipped = {file.name.removesuffix(ending): file for file in (SHIPPED / "models").glob(f"*{ending}")}
    if name not in shipped:
        suggestion = nearest(name, shipped, "the bundled ones are")
        raise InputError(source, key, f"{name}: no such file, and no bundled network of this name; {suggestion}")
    return str(shipped[name])


def clusters_file(path: Path) -> Path:
    """Return the file that clusters are drawn from; `clusters` is the bundled one."""
    shipped = SHIPPED / "clusters.yaml"
    return shipped if str(path) == shipped.stem and not path.exists() else path


def scenario_file(path: Path) -> Path:
    """Return a scenario's file; a word that is not a file names a bundled one: `quickstart`, `live/bursts`.

    One in a folder has the name in its file, too: `live-bursts`.

    Raises:
        InputError: a bare word that no shipped scenario has, or a shipped one's name with an ending.
    """
    if lies_there(path) or path.is_absolute() or ".." in path.parts:
        return path
    shipped = SHIPPED_SCENARIOS / path.with_suffix(".yaml")
    is_shipped = shipped.is_file() and not shipped.is_relative_to(SHIPPED)
    if path.suffix:
        if is_shipped and path.suffix == ".yaml":
            problem = "no such file here; the bundled one is named without its ending"
            raise InputError("scenario", "", f"{path}: {problem}: {path.with_suffix('')}")
        return path
    if is_shipped:
        return shipped
    if not is_shipped_name(str(path)):
        return path
    below = {f"{folder}-{file.stem}": file for folder in FOLDERS for file in SHIPPED_SCENARIOS.glob(f"{folder}/*.yaml")}
    if str(path) in below:
        return below[str(path)]
    names = [*(file.stem for file in SHIPPED_SCENARIOS.glob("*.yaml")), *below]
    remedy = "a custom file ends in .yaml; `slimsched init` writes a first one"
    problem = f"no such file, and no shipped scenario has this name; {nearest(path.name, names)}; {remedy}"
    raise InputError("scenario", "", f"{path}: {problem}")


def is_shipped_name(text: str) -> bool:
    """Return whether it is a bare word, without folder and ending: no file of the user's, but a profile's name."""
    return Path(text).name == text and not Path(text).suffix


PPO: Final = "ppo"  # the paper's router, which a scenario's run trains; in a file of numbers: what it learned
TUNED_HERE: Final = "tuned:"  # before the kind of a rule: the one that the run tunes
MADE_KINDS: Final = (PPO, *TUNED)  # of all that a run can make
ROUTER_SUFFIX: Final = ".safetensors"
RULE_SUFFIX: Final = ".rule.yaml"
KEEPING: Final = "-keeping"  # behind the name of a kind with `control`, as a plan tries it


def made_kind(name: str) -> str | None:
    """Return the kind of a router that a scenario's own run makes: `ppo`, or the kind of a tuned rule; or None."""
    if name == PPO:
        return name
    return name.removeprefix(TUNED_HERE) if name.startswith(TUNED_HERE) else None


def made_name(kind: str) -> str:
    """Return a scenario's name of the router of that kind which its run makes."""
    return kind if kind == PPO else f"{TUNED_HERE}{kind}"


def made_kinds(routers: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds among them that the run makes, each once."""
    return tuple(dict.fromkeys(kind for name in routers if (kind := made_kind(name)) is not None))


def made_file(kind: str) -> str:
    """Return a run folder's name of the router of that kind which it made."""
    return f"{kind}{ROUTER_SUFFIX if kind == PPO else RULE_SUFFIX}"


def planned_file(name: str) -> str:
    """Return a run folder's name of the rule that a plan recommends."""
    return f"{name}{RULE_SUFFIX}"


def score_file(kind: str) -> str:
    """Return a run folder's name of that router's score."""
    return f"score-{kind}.json"


def training_file(kind: str) -> str:
    """Return a run folder's name of the record of its training, step by step."""
    return f"training-{kind}.json"
