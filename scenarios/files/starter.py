"""A first custom scenario, as text with a comment at each choice."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TEXT: Final = """\
# {title}
# All keys: docs/scenario-keys.md. Whatever is left out has its default. Paths are relative to this file's folder.
#
{commands}
schema: slimsched.scenario/1
name: {name}  # results go to runs/{name}

# How accurate the network is at each tuple of widths. `slimresnet18-paper` ships: the paper's table. For a network of
# your own name it instead (model.network, docs/models.md).
model: {{accuracy: {accuracy}}}

cluster:
  # One entry a server. `profile` is a GPU that ships (`slimsched list profiles`), or a file that `slimsched calibrate`
  # wrote. `link` is how activations get there: {links}, or latency_s and bandwidth_bytes_s.
{greedy}  servers:
{servers}

# How images arrive: at random at a mean rate. With bursts: {{kind: mmpp, rate_img_s: ..., burst_factor: 4, burst_share:
# 0.15, dwell_s: 0.5}}; other kinds: docs/scenario-keys.md.
workload: {{kind: poisson, rate_img_s: {rate:g}}}

# Who is compared (`slimsched list routers`), and on how many draws of the arrivals. For `tuned:compass` or `ppo`:
# add it to compare.routers, then `slimsched train`.
compare:
  routers: [{routers}]
  seeds: [0, 1, 2, 3, 4]

# Who is also run on real processes (`slimsched validate`), where each server has a `device`.
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


def starter_text(file: Path, name: str, chosen: Starter, links: Sequence[str]) -> str:
    """Return the file's text; `links` are the presets to list."""
    servers: list[str] = []
    counts = Counter[str]()
    for profile in chosen.profiles:
        stem = Path(profile).stem
        counts[stem] += 1
        server = f"name: {_plain(f'{stem}-{counts[stem]}')}, profile: {_plain(profile)}, link: {_plain(chosen.link)}"
        servers.append(f"  - {{{server}}}")
    plural = "s" if len(servers) > 1 else ""
    quoted = shlex.quote(str(file))
    values = {
        f"slimsched simulate {quoted}": "one run; --router says which router",
        f"slimsched compare {quoted}": "the routers below on the same arrivals",
        "slimsched list": "what else can be named here",
    }
    return _TEXT.format(
        title=f"{len(servers)} server{plural} at {chosen.rate_img_s:g} images a second, written by `slimsched init`.",
        commands="\n".join(f"#   {command:<{max(map(len, values))}}  # {text}" for command, text in values.items()),
        name=_plain(name),
        accuracy=_plain(chosen.accuracy),
        links=", ".join(links),
        greedy=f"  greedy: {{batch_limit: {chosen.batch_limit}}}  # no profile covers more\n"
        if chosen.batch_limit
        else "",
        servers="\n".join(servers),
        rate=chosen.rate_img_s,
        routers=", ".join(map(_plain, chosen.routers)),
        duration=chosen.duration_s,
        warmup=chosen.duration_s / 10,
    )


def _plain(text: str) -> str:
    """Return a text as it is, or in quotes if YAML might take it for anything but a text."""
    is_word = re.fullmatch(r"(?!(true|false|yes|no|on|off|null|[yn])$)[A-Za-z][A-Za-z0-9._/@-]*", text, re.IGNORECASE)
    return text if is_word else json.dumps(text, ensure_ascii=False)
