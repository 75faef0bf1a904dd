"""What once went wrong, or well might: each a whole call, with what it must come to. `test_corpus.py` runs them all."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Final

from tests.fuzz.base import RATES, TRACE, base
from tests.fuzz.cases import Case, Content, Special
from tests.fuzz.hostile import DIGITS
from tests.fuzz.trial import Outcome

SIMULATE: Final = ("simulate", "tiny.yaml", "--quiet", "--json", "-")
_POISSON: Final = "{kind: poisson, rate_img_s: 200}"


def is_as_wanted(wanted: str, case: Case, found: Outcome) -> bool:
    """Whether it came to what it must; long work may also be told before it begins."""
    return found.kind == wanted or (wanted == "refused" and case.family == "work" and found.kind == "told before")


def _tiny(old: str = "", new: str = "") -> bytes:
    text = base()["tiny.yaml"].decode()
    assert old in text, f"{old!r} is not in the scenario"
    return text.replace(old, new, 1).encode("utf-8", "surrogatepass")


def _scenario(old: str, new: str, argv: tuple[str, ...] = SIMULATE, family: str = "scenario") -> Case:
    return Case(family, {**base(), "tiny.yaml": _tiny(old, new)}, argv)


def _file(name: str, content: Content, argv: tuple[str, ...] = SIMULATE) -> Case:
    return Case("file", {**base(), name: content}, argv)


def _flags(*argv: str, outputs: tuple[str, ...] = ()) -> Case:
    return Case("flags", base(), (*argv, "--quiet"), outputs=outputs)


def _bomb(levels: int) -> str:
    """Aliases of aliases: a few lines that are as many values as there are atoms."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def refused() -> Iterator[tuple[str, Case]]:
    """One clear line, exit code 2 (or 1), in ten seconds and two gigabytes; and nobody's file is touched."""
    yield from _yaml()
    yield from _csv()
    yield from _json()
    yield from _tensors()
    yield from _command_lines()
    yield from _work()


def _yaml() -> Iterator[tuple[str, Case]]:
    values = {
        "a date": "2024-01-01",
        "a date that is none": "2024-13-45",
        "a number of 5,000 digits": DIGITS,
        "a float of 5,000 digits": f"1e{DIGITS}",
        "not a number": ".nan",
        "infinity": ".inf",
        "beyond a float": "1e400",
        "sixty minutes": "1:30",
        "hexadecimal": "0x",
        "a binary": "!!binary aGk=",
        "a broken binary": "!!binary '&&'",
        "a set": "!!set {a, b}",
        "an ordered map": "!!omap [a: 1]",
        "a python object": "!!python/object:os.system x",
        "a foreign tag": "!foreign 7",
        "no integer": "!!int x",
        "an empty integer": "!!int ''",
        "no float": "!!float x",
        "no boolean": "!!bool 7",
        "an unhashable key": "{? [a]: 1}",
        "a section for a key": "{? {a: 1} : 1}",
        "a merge of itself": "&a {<<: *a}",
        "a list of itself": "&a [*a]",
        "a lone surrogate": '"\\ud800"',
        "a NUL": '"\\u0000"',
    }
    for name, value in values.items():
        yield f"yaml: {name}", _scenario("duration_s: 1\n", f"duration_s: {value}\n")
    yield "yaml: octal", _scenario("rate_img_s: 200", "rate_img_s: 010")
    yield "yaml: a bomb", _file("tiny.yaml", _bomb(12).encode() + _tiny())
    yield "yaml: a deep list", _file("tiny.yaml", b"a: " + b"[" * 100_000)
    yield "yaml: deep sections", _file("tiny.yaml", b"a: " + b"{a: " * 20_000 + b"1" + b"}" * 20_000)
    yield "yaml: a list of 10 MB", _file("tiny.yaml", b"a: [" + b"0, " * 3_400_000 + b"0]")
    yield "yaml: a text of 10 MB", _file("tiny.yaml", _tiny("name: tiny", f"name: {'a' * 10_000_000}"))
    yield "yaml: a key that is twice there", _scenario("name: tiny", "name: tiny\nname: other")
    yield "yaml: not UTF-8", _file("tiny.yaml", b"\xff\xfe" + _tiny())
    yield "yaml: NUL bytes", _file("tiny.yaml", _tiny("name: tiny", "name: ti\0ny"))
    yield "yaml: empty", _file("tiny.yaml", b"")
    yield "yaml: several documents", _file("tiny.yaml", _tiny() + b"---\n" + _tiny())
    yield "yaml: a name of markup", _scenario("name: tiny", "name: <script>")
    yield "yaml: a name that is a path", _scenario("name: tiny", "name: ../away")
    yield "yaml: a terminal's commands", _scenario("name: tiny", 'name: "\\e[2Jgone"')
    yield "yaml: a pair that no network has", _scenario("preload: all", "preload: [[99, 1.0]]")
    yield "yaml: a pipe", _file("tiny.yaml", Special("pipe"))
    yield "yaml: a device", _file("tiny.yaml", Special("device"))
    yield "yaml: a folder", _file("tiny.yaml", Special("folder"))
    yield "yaml: a link to itself", _file("tiny.yaml", Special("link", "tiny.yaml"))
    show = ("profile", "show", "fast.yaml", "--quiet")
    yield "profile: a bomb", _file("fast.yaml", _bomb(12).encode(), show)
    yield "profile: a pipe", _file("fast.yaml", Special("pipe"), show)
    rule = (*SIMULATE, "--router", "ladder.rule.yaml")
    yield "rule: a bomb", _file("ladder.rule.yaml", _bomb(12).encode(), rule)
    yield "rule: a date", _file("ladder.rule.yaml", b"schema: slimsched.rule/1\nkind: 2024-13-45\n", rule)


def _series(kind: str, text: str | bytes) -> Case:
    more = {"trace": "", "rates": ", rate_img_s: 100, period_s: 1"}[kind]
    content = text.encode() if isinstance(text, str) else text
    files = {
        **base(),
        f"{kind}.csv": content,
        "tiny.yaml": _tiny(_POISSON, f"{{kind: {kind}, file: {kind}.csv{more}}}"),
    }
    return Case("series", files, SIMULATE)


def _csv() -> Iterator[tuple[str, Case]]:
    head, *rows = TRACE.splitlines(keepends=True)
    texts = {
        "a stray quote": head + '"' + "".join(rows),
        "a stray quote in the last row": head + "".join(rows) + '"0.9,1\n',
        "dates and seconds": head + "".join(rows) + "2024-01-01,3\n",
        "dates with zones and without": "time_s\n2024-01-01T00:00:00+00:00\n2024-01-01T00:00:01\n",
        "a column twice": "time_s,time_s\n0.1,0.2\n0.3,0.4\n",
        "a row that is too long": head + "".join(rows) + "0.9,1,2,3\n",
        "a row that is too short": "size,time_s\n1,0.1\n2\n",
        "a long field": head + "".join(rows) + '0.9,"' + "x" * 200_000 + '"\n',
        "not a number": head + "nan,1\n",
        "infinity": head + "inf,1\n",
        "beyond a float": head + "1e400,1\n",
        "a number of 5,000 digits": head + f"{DIGITS},1\n",
        "NUL bytes": head + "0.\x001,1\n",
        "no header": "".join(rows),
        "a header alone": head,
        "empty": "",
    }
    for name, text in texts.items():
        yield f"trace: {name}", _series("trace", text)
    yield "trace: not UTF-8", _series("trace", b"\xff" + TRACE.encode())
    for name, text in {"a stray quote": RATES.replace("0,10", '"0,10'), "below zero": RATES + "13,-1\n"}.items():
        yield f"rates: {name}", _series("rates", text)
    pipe = _series("trace", TRACE)
    yield "trace: a pipe", Case("series", {**pipe.files, "trace.csv": Special("pipe")}, SIMULATE)


def _json() -> Iterator[tuple[str, Case]]:
    table = json.loads(base()["accuracy.json"])

    def changed(**keys: object) -> Case:
        return _file("accuracy.json", json.dumps({**table, **keys}).encode())

    yield "accuracy: another schema", changed(schema="x")
    yield "accuracy: a number for a list", changed(tuples=7)
    yield "accuracy: absurdly many images", changed(images=10**18)
    zeros = base64.b64encode(zlib.compress(bytes(100_000_000), 9)).decode()
    yield "accuracy: bits of another length", changed(correct=zeros)
    yield (
        "accuracy: a share that is no number",
        _file("accuracy.json", base()["accuracy.json"].replace(b'"top1": [\n  ', b'"top1": [\n  NaN, ', 1)),
    )
    yield "accuracy: deep", _file("accuracy.json", b"[" * 200_000)
    yield "accuracy: a pipe", _file("accuracy.json", Special("pipe"))
    yield (
        "accuracy: a number of 5,000 digits",
        _file("accuracy.json", base()["accuracy.json"].replace(b'"images": 100', b'"images": ' + DIGITS.encode())),
    )


def _tensors() -> Iterator[tuple[str, Case]]:
    name = "ppo.safetensors"
    data, call = base()[name], (*SIMULATE, "--router", name)
    size = int.from_bytes(data[:8], "little")
    yield f"{name}: cut", _file(name, data[: len(data) // 2], call)
    yield f"{name}: an absurd header", _file(name, (2**63).to_bytes(8, "little") + data[8:], call)
    yield f"{name}: not a number", _file(name, data[:-8] + b"\xff" * 8, call)
    yield f"{name}: no schema", _file(name, data[:8] + b"{}" + b" " * (size - 2) + data[8 + size :], call)
    yield f"{name}: empty", _file(name, b"", call)
    yield f"{name}: a pipe", _file(name, Special("pipe"), call)


def _command_lines() -> Iterator[tuple[str, Case]]:
    yield "flags: an accuracy that is no number", _flags("bound", "tiny.yaml", "--set", "slo.floor=nan")
    yield "flags: a NUL in a path", _flags("simulate", "ti\0ny.yaml")
    yield "flags: a NUL in an output", _flags("simulate", "tiny.yaml", "--json", "a\0b")
    yield "flags: a NUL in a router's name", _flags("simulate", "tiny.yaml", "--router", "a\0b.rule.yaml")
    yield "flags: a NUL in a folder's name", _flags("compare", "tiny.yaml", "--out", "a\0b")
    yield "flags: a long name", _flags("simulate", "tiny.yaml", "--json", "x" * 300)
    yield "flags: a seed of 5,000 digits", _flags("simulate", "tiny.yaml", "--seed", DIGITS)
    yield "flags: absurdly many processes", _flags("compare", "tiny.yaml", "--jobs", DIGITS)
    yield "flags: deep options", _flags("model", "check", "a:B " + "[" * 100_000)
    yield "flags: a duration that is no number", _flags("capacity", "tiny.yaml", "--duration", "nan")
    yield "flags: an endless duration", _flags("capacity", "tiny.yaml", "--duration", "1e400")
    yield "flags: an output that is a folder", _flags("simulate", "tiny.yaml", "--json", "folder")
    yield "flags: an output that is a link to itself", _flags("simulate", "tiny.yaml", "--json", "loop")
    yield "flags: a run folder that is a file", _flags("compare", "tiny.yaml", "--out", "notes.txt")
    yield "flags: a run folder that is a user's", _flags("compare", "tiny.yaml", "--out", "full", outputs=("full",))
    yield "flags: a user's folder behind a link", _flags("compare", "tiny.yaml", "--out", "away", outputs=("away",))
    yield "flags: a report of a user's folder", _flags("report", "full", outputs=("full",))
    yield "flags: a report that is a pipe", _flags("report", "pipe")


def _work() -> Iterator[tuple[str, Case]]:
    """Absurd work is refused, or told before it begins."""
    texts = {
        "1e7 seconds": ("duration_s: 1\n", "duration_s: 1e7\n"),
        "1e12 images a second": ("rate_img_s: 200", "rate_img_s: 1e12"),
        "bursts of a nanosecond": (_POISSON, "{kind: mmpp, rate_img_s: 200, dwell_s: 1e-9}"),
        "chaos every 10 ms for days": (
            "duration_s: 1\n",
            "duration_s: 1e6\nfaults: [{kind: chaos, mean_gap_s: 10ms}]\n",
        ),
    }
    for name, (part, new) in texts.items():
        yield f"work: {name}", _scenario(part, new, ("simulate", "tiny.yaml"), "work")
    seeds = f"seeds: [{', '.join(map(str, range(200_000)))}]"
    yield "work: 200,000 seeds", _scenario("seeds: [0, 1]", seeds, ("compare", "tiny.yaml"), "work")


def accepted() -> Iterator[tuple[str, Case]]:
    """Odd, and right: it is carried out, and nobody's file is touched."""
    yield "a link as an output", _flags("list", "profiles", "--json", "link.json", outputs=("link.json",))
    yield "a link to nothing as an output", _flags("list", "profiles", "--json", "dangling", outputs=("dangling",))
    yield "a device as an output", _flags("list", "profiles", "--json", "null", outputs=("null",))
    yield "a pipe as an output", _flags("list", "profiles", "--json", "pipe", outputs=("pipe",))
    odd = "$HOME `a` <b> & _%s.json"
    yield "an odd name as an output", _flags("list", "profiles", "--json", odd, outputs=(odd,))
    yield (
        "a scenario of an odd name",
        Case("file", {**base(), "a $b_<c>.yaml": _tiny()}, ("simulate", "a $b_<c>.yaml", "--quiet")),
    )
    yield "a mark at the beginning", _file("tiny.yaml", b"\xef\xbb\xbf" + _tiny())
    yield "lines as Windows ends them", _file("tiny.yaml", _tiny().replace(b"\n", b"\r\n"))
    yield "a trace with a quoted field", _series("trace", TRACE + '0.95,"1"\n')
    curve = "{kind: rates, file: rates.csv, rate_img_s: 200, period_s: 1e-9}"
    yield "a curve that is played in a nanosecond", _scenario(_POISSON, curve)
    yield "a run folder of an odd name", _flags("compare", "tiny.yaml", "--out", "$a <b>_", outputs=("$a <b>_",))
