"""Fuzzed files and flags, family by family: what hypothesis draws, and the call that reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import yaml
from hypothesis import strategies as st

from scenarios.files.spec import Scenario
from slimsched import commands as cli
from slimsched.launching import app_of
from tests.fuzz.base import base
from tests.fuzz.cases import Case
from tests.fuzz.documents import documents
from tests.fuzz.hostile import NUMBERS, WORDS, changed_bytes, changed_json, changed_yaml

SIMULATE: Final = ("simulate", "tiny.yaml", "--quiet", "--json", "-")
# Their work is of minutes, so of these only the flags are fuzzed: a last one is unknown, and refused.
HEAVY: Final = ("run", "plan", "calibrate", "profile check", "model train",
    "model check",
                "train", "validate", "serve")  # fmt: skip


def _case(family: str, name: str, content: bytes, argv: tuple[str, ...] = SIMULATE, reading: str = "") -> Case:
    return Case(family, {**base(), name: content}, argv, reading or family)


def _changed_text(name: str, text: bytes | None = None) -> st.SearchStrategy[bytes]:
    text = base()[name] if text is None else text
    return st.one_of(changed_yaml(text), changed_yaml(text), changed_bytes(text))


def scenarios() -> st.SearchStrategy[Case]:
    """A scenario's text changed, or drawn from all its keys."""
    text = base()["tiny.yaml"]
    kept = yaml.safe_load(text)
    kept = {key: kept[key] for key in ("schema", "name", "model", "cluster", "workload")}
    free = documents(Scenario, kept).map(lambda raw: yaml.safe_dump(raw, sort_keys=False).encode())
    near = documents(Scenario, {}).map(lambda raw: {**raw, **kept, "duration_s": 0.5, "warmup_s": 0.1})
    mild = near.map(lambda raw: yaml.safe_dump(raw, sort_keys=False).encode())
    return st.one_of(_changed_text("tiny.yaml"), free, mild).map(lambda new: _case("scenario", "tiny.yaml", new))


def profiles() -> st.SearchStrategy[Case]:
    """A profile changed: shown, and simulated with."""
    show = ("profile", "show", "fast.yaml", "--quiet", "--json", "-")
    unsealed = re.sub(rb"(?m)^checksum: .*\n", b"", base()["fast.yaml"])  # or nothing that is changed would be read
    new = st.one_of(_changed_text("fast.yaml"), *2 * [_changed_text("fast.yaml", unsealed)])
    return st.one_of(
        new.map(lambda text: _case("profile", "fast.yaml", text, show)),
        new.map(lambda text: _case("profile", "fast.yaml", text, SIMULATE, "scenario")),
    )


def rules() -> st.SearchStrategy[Case]:
    """A rule's file changed."""
    names = ("ladder.rule.yaml", "fixed.rule.yaml", "infaas.rule.yaml", "compass.rule.yaml")

    def of(name: str) -> st.SearchStrategy[Case]:
        return _changed_text(name).map(lambda new: _case("rule", name, new, (*SIMULATE, "--router", name)))

    return st.sampled_from(names).flatmap(of)


def accuracies() -> st.SearchStrategy[Case]:
    """An accuracy table changed."""
    text = base()["accuracy.json"]
    return st.one_of(changed_json(text), changed_bytes(text)).map(lambda new: _case("accuracy", "accuracy.json", new))


def routers() -> st.SearchStrategy[Case]:
    """A learned router's bytes, or its header, changed."""

    name = "ppo.safetensors"
    data, unsealed = base()[name], _unsealed(base()[name])
    new = st.one_of(changed_bytes(data), changed_bytes(unsealed), _changed_header(unsealed), _changed_numbers(unsealed))
    return new.map(lambda found: _case("learned", name, found, (*SIMULATE, "--router", name)))


def networks() -> st.SearchStrategy[Case]:
    """A network's file changed."""
    data = base()["model.safetensors"]
    new = st.one_of(changed_bytes(data), _changed_header(data))
    return new.map(lambda found: _case("network", "model.safetensors", found, ()))


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """A safetensors file's header, whose length it says itself, and its numbers."""
    size = int.from_bytes(data[:8], "little")
    return data[8 : 8 + size], data[8 + size :]


def _joined(header: bytes, numbers: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + numbers


def _unsealed(data: bytes) -> bytes:
    """Without its checksum, or nothing that is changed would be read."""
    header, numbers = _parted(data)
    found = json.loads(header)
    found["__metadata__"].pop("checksum", None)
    return _joined(json.dumps(found).encode(), numbers)


def _changed_header(data: bytes) -> st.SearchStrategy[bytes]:
    header, numbers = _parted(data)
    return changed_json(header).map(lambda new: _joined(new, numbers))


def _changed_numbers(data: bytes) -> st.SearchStrategy[bytes]:
    """One of its numbers is another, or none."""
    header, numbers = _parted(data)
    odd = (
        b"\xff" * 8,
        b"\x00" * 8,
        b"\x00\x00\x80\x7f" * 2,
        b"\x00\x00\x00\x00\x00\x00\xf0\x7f",
        b"\xff\xff\x7f\x7f" * 2,
    )
    where = st.integers(0, len(numbers) // 8 - 1)
    pairs = st.tuples(where, st.one_of(st.sampled_from(odd), st.binary(min_size=8, max_size=8)))
    return pairs.map(lambda pair: _joined(header, numbers[: 8 * pair[0]] + pair[1] + numbers[8 * pair[0] + 8 :]))


def series() -> st.SearchStrategy[Case]:
    """A trace or a curve changed."""
    workloads = {
        "trace.csv": ("trace", "{kind: trace, file: trace.csv}", ("trace.csv", "dates.csv")),
        "rates.csv": ("rates", "{kind: rates, file: rates.csv, rate_img_s: 100, period_s: 1}", ("rates.csv",)),
    }

    def of(name: str) -> st.SearchStrategy[Case]:
        reading, workload, sources = workloads[name]
        scenario = base()["tiny.yaml"].replace(b"{kind: poisson, rate_img_s: 200}", workload.encode())
        new = st.sampled_from(sources).flatmap(lambda source: changed_bytes(base()[source]))
        return new.map(lambda text: Case("series", {**base(), "tiny.yaml": scenario, name: text}, SIMULATE, reading))

    return st.sampled_from(tuple(workloads)).flatmap(of)


# --------------------------------------------------------------------------------------------------------------- flags

PLACES: Final = ("new.json", "new/a.json", "link.json", "null", "pipe", "folder", "dangling", "loop", "away", "full",
    "out",
                 "away/x.json", "", "-", "a\0b", "x" * 300, "folder/", "$HOME.json", "a b<c>_$.json",
                 "notes.txt/x")  # fmt: skip
TEXTS: Final = (*NUMBERS, *(word for word in WORDS if not word.startswith("/")), *PLACES)  # nothing of this machine's
POSITIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "scenario": ("tiny.yaml",) * 6
    + ("fast.yaml", "accuracy.json", "pipe", "null", "folder", "loop", "dangling", "no.yaml", ""),
    "profile": ("fast.yaml",) * 4
    + ("t4", "tiny.yaml", "pipe", "null", "folder", "loop", "no.yaml", "ppo.safetensors", ""),
    "run": ("full", "folder", "out", "no", "pipe", "null", "fast.yaml", "loop", "away", ""),
    "network": ("digits", "a:b", "os:system", "no", ""),
    "name": ("gpu0", "no", "..", ""),
    "gpu": ("t4", "a100", "no", ""),
    "log": (
        "fast.yaml",
        "accuracy.json",
        "tiny.yaml",
        "pipe",
        "null",
        "folder",
        "loop",
        "no.yaml",
        "ppo.safetensors",
        "",
    ),
    "trace": ("fast.yaml", "pipe", "null", "folder", "loop", "no.yaml", "ppo.safetensors", ""),
    "file": PLACES,  # that `init` writes
    "kind": ("routers", "profiles", "no", ""),
    "router": ("random", "jsq", "no", ""),
    "routers": ("random", "jsq", "no", ""),
    "seeds": ("0", "1", "x"),
    "accuracy": ("0.5", "x"),
    "url": ("http://127.0.0.1:1/v2/models/x", "http://[", "tiny.yaml", ""),
}
PATHS: Final = ("--json", "--out", "--plot", "--logs", "--trace-file")


class Taken(NamedTuple):
    """What a command takes: a positional argument, or a flag by its names."""

    dest: str
    option_strings: tuple[str, ...]
    required: bool
    nargs: int | None = None


def _actions() -> dict[str, list[Taken]]:
    """Each command's positional arguments and flags."""
    found = {}
    for command in cli.COMMANDS:
        arguments = app_of(command).assemble_argument_collection()
        found[command] = [
            Taken(
                each.field_info.name,
                tuple(sorted((name for name in each.names if name.startswith("-")), key=len)),
                each.required,
                0 if each.hint is bool else None,
            )
            for each in arguments
        ]
        found[command] += [Taken("json", ("--json",), False), Taken("quiet", ("-q", "--quiet"), False, 0)]
    return found


ACTIONS: Final = _actions()
COMMANDS: Final = tuple(ACTIONS)
SHORT: Final = {  # of what is sane
    "capacity": ("--precision", "0.5", "--duration", "0.5"),
    "jobs generate": ("--jobs", "50"),
}
NAMED: Final = {"jobs import": "--out", "jobs generate": "--out"}  # what they write lies where they are called, else


@st.composite
def flags(draw: st.DrawFn) -> Case:
    """A command with some of its flags, their texts sane or not."""
    light = [command for command in COMMANDS if command not in HEAVY]
    command = draw(st.one_of(st.sampled_from(light), st.sampled_from(light), st.sampled_from(list(COMMANDS))))
    words, outputs = command.split(), []
    for action in ACTIONS[command]:
        if not action.option_strings:
            words.append(draw(st.sampled_from(POSITIONAL[action.dest])))
            outputs += words[-1:] if action.dest == "file" else []
        elif (
            action.option_strings[-1] == NAMED.get(command)
            or (action.required and draw(st.integers(0, 9)))
            or draw(st.integers(0, 5)) == 5
        ):
            text = draw(_text_of(action))
            words += [action.option_strings[-1], *([] if action.nargs == 0 else [text])]
            outputs += [text] if action.option_strings[-1] in PATHS else []
    if command in HEAVY:
        words.append("--no-such-flag")
    if draw(st.integers(0, 3)) == 3:
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from(TEXTS)))
    words += SHORT.get(command, ())
    if "--quiet" not in words and command not in HEAVY:
        words.append("--quiet")
    return Case("flags", base(), tuple(words), "", tuple(outputs))


def _text_of(action: Taken) -> st.SearchStrategy[str]:
    name = action.option_strings[-1]
    if name in PATHS:
        ending = ".svg" if name == "--plot" else ""
        return st.sampled_from(PLACES).map(lambda place: place + ending)
    sane = {
        "--router": ("random", "jsq", "ladder.rule.yaml", "compass.rule.yaml", "ppo.safetensors", "ppo", "fixed:0.5,1"),
        "--seed": ("0", "1", "7"), "--engine": ("simpy", "compiled"), "--jobs": ("1", "2"), "--duration": ("0.5",
        "500ms"),
        "--precision": ("0.1", "0.5"), "--accuracy": ("0.5", "0.9"),
        "--network": ("digits", "slimresnet18", 'digits {"a": 1}', "a:B " + "[" * 3000, 'a:B {"a": NaN}'),
    }.get(name, ("1",))  # fmt: skip
    return st.one_of(st.sampled_from(sane), st.sampled_from(sane), st.sampled_from(TEXTS))


FAMILIES: Final = {
    "scenario": (scenarios, 8),
    "profile": (profiles, 2),
    "rule": (rules, 1),
    "accuracy": (accuracies, 1),
    "learned": (routers, 2),
    "network": (networks, 1),
    "series": (series, 2),
    "flags": (flags, 4),
}  # with how often each comes
