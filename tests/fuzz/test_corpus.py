"""What once went wrong, or might: refused in one line or carried out, in time and memory; nobody's file is touched."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import resource
import time  # noqa: TID251 - a call may not take long
import zlib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import pytest

from slimsched.cli import main
from tests.fuzz.base import MAX_CHARACTERS, RATES, TRACE, base
from tests.fuzz.box import Box, Content, Special

SIMULATE: Final = "simulate tiny.yaml"
DIGITS: Final = "9" * 5000
MAX_BYTES: Final = 2_000_000_000
MAX_CPU_S: Final = 10.0
BOMB: Final = "a0: &a0 [x, x, x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12))

# What stands in the place of the scenario's duration.
DURATIONS: Final = (
    "2024-01-01", "2024-13-45", DIGITS, f"1e{DIGITS}", ".nan", ".inf", "1e400", "1:30", "0x", "!!binary aGk=",
    "!!binary '&&'", "!!set {a, b}", "!!omap [a: 1]", "!!python/object:os.system x", "!foreign 7", "!!int x",
    "!!int ''", "!!float x", "!!bool 7", "{? [a]: 1}", "{? {a: 1} : 1}", "&a {<<: *a}", "&a [*a]",
    '"\\ud800"', '"\\u0000"',
)  # fmt: skip
# Texts of the scenario, and what stands there instead.
TEXTS: Final = (
    ("rate_img_s: 200", "rate_img_s: 010"),
    ("name: tiny", f"name: {'a' * 10_000_000}"),
    ("name: tiny", "name: tiny\nname: other"),
    ("name: tiny", "name: ti\0ny"),
    ("name: tiny", "name: <script>"),
    ("name: tiny", "name: ../away"),
    ("name: tiny", 'name: "\\e[2Jgone"'),
    ("preload: all", "preload: [[99, 1.0]]"),
    ("duration_s: 1\n", "duration_s: 1e7\n"),  # too much work
    ("rate_img_s: 200", "rate_img_s: 1e12"),
    ("{kind: poisson, rate_img_s: 200}", "{kind: mmpp, rate_img_s: 200, dwell_s: 1e-9}"),
    ("duration_s: 1\n", "duration_s: 1e6\nfaults: [{kind: chaos, mean_gap_s: 10ms}]\n"),
    ("seeds: [0, 1]", f"seeds: {list(range(200_000))}"),
)


def _tiny(old: str = "", new: str = "") -> bytes:
    text = base()["tiny.yaml"].decode()
    assert old in text, f"{old!r} is not in the scenario"
    return text.replace(old, new, 1).encode()


def _contents() -> Mapping[str, tuple[Content, ...]]:
    table, learned, (head, *rows) = base()["accuracy.json"], base()["ppo.safetensors"], TRACE.splitlines(keepends=True)
    body = "".join(rows)
    size = int.from_bytes(learned[:8], "little")
    zeros = base64.b64encode(zlib.compress(bytes(100_000_000), 9)).decode()
    accuracies: tuple[dict[str, Any], ...] = ({"schema": "x"}, {"tuples": 7}, {"images": 10**18}, {"correct": zeros})
    special = Special("pipe")
    return {
        "tiny.yaml": (
            BOMB.encode(), b"a: " + b"[" * 100_000, b"a: " + b"{a: " * 20_000 + b"1" + b"}" * 20_000,
            b"a: [" + b"0, " * 3_400_000 + b"0]", b"\xff\xfe" + _tiny(), b"", _tiny() + b"---\n" + _tiny(),
            special, Special("device"), Special("folder"), Special("link", "tiny.yaml"),
        ),
        "fast.yaml": (BOMB.encode(), special),
        "ladder.rule.yaml": (BOMB.encode(), b"schema: slimsched.rule/1\nkind: 2024-13-45\n"),
        "trace.csv": (
            *(text.encode() for text in (
                head + '"' + body, head + body + '"0.9,1\n', head + body + "2024-01-01,3\n",
                "time_s\n2024-01-01T00:00:00+00:00\n2024-01-01T00:00:01\n", "time_s,time_s\n0.1,0.2\n0.3,0.4\n",
                head + body + "0.9,1,2,3\n", "size,time_s\n1,0.1\n2\n", head + body + '0.9,"' + "x" * 200_000 + '"\n',
                head + "nan,1\n", head + "inf,1\n", head + "1e400,1\n", head + f"{DIGITS},1\n", head + "0.\x001,1\n",
                body, head, "",
            )),
            b"\xff" + TRACE.encode(), special,
        ),
        "rates.csv": (RATES.replace("0,10", '"0,10').encode(), f"{RATES}13,-1\n".encode()),
        "accuracy.json": (
            *(json.dumps({**json.loads(table), **keys}).encode() for keys in accuracies),
            table.replace(b'"top1": [\n  ', b'"top1": [\n  NaN, ', 1), b"[" * 200_000,
            table.replace(b'"images": 100', b'"images": ' + DIGITS.encode()), special,
        ),
        "ppo.safetensors": (
            learned[: len(learned) // 2], (2**63).to_bytes(8, "little") + learned[8:], learned[:-8] + b"\xff" * 8,
            learned[:8] + b"{}" + b" " * (size - 2) + learned[8 + size :], b"", special,
        ),
    }  # fmt: skip


# By which a file is read, where that is not `simulate tiny.yaml`.
COMMANDS: Final = {
    "fast.yaml": "profile show fast.yaml",
    "ladder.rule.yaml": f"{SIMULATE} --router ladder.rule.yaml",
    "ppo.safetensors": f"{SIMULATE} --router ppo.safetensors",
}
WORKLOADS: Final = {
    "trace.csv": "{kind: trace, file: trace.csv}",
    "rates.csv": "{kind: rates, file: rates.csv, rate_img_s: 100, period_s: 1}",
}
WORDS: Final = (
    "bound tiny.yaml --set slo.floor=nan", "simulate ti\0ny.yaml", "simulate tiny.yaml --json a\0b",
    "simulate tiny.yaml --router a\0b.rule.yaml", "compare tiny.yaml --out a\0b",
    f"simulate tiny.yaml --json {'x' * 300}", f"simulate tiny.yaml --seed {DIGITS}",
    f"compare tiny.yaml --jobs {DIGITS}", f"model check a:B {'[' * 100_000}", "capacity tiny.yaml --duration nan",
    "capacity tiny.yaml --duration 1e400", "simulate tiny.yaml --json folder", "simulate tiny.yaml --json loop",
    "compare tiny.yaml --out notes.txt", "compare tiny.yaml --out full", "compare tiny.yaml --out away", "report full",
    "report pipe",
)  # fmt: skip


def refused() -> Iterator[tuple[Mapping[str, Content], str]]:
    """Files, and the command that reads them."""
    for value in DURATIONS:
        yield {"tiny.yaml": _tiny("duration_s: 1\n", f"duration_s: {value}\n")}, SIMULATE
    for old, new in TEXTS:
        yield {"tiny.yaml": _tiny(old, new)}, SIMULATE
    for name, contents in _contents().items():
        more = {"tiny.yaml": _tiny("{kind: poisson, rate_img_s: 200}", WORKLOADS[name])} if name in WORKLOADS else {}
        for content in contents:
            yield {**more, name: content}, COMMANDS.get(name, SIMULATE)
    for words in WORDS:
        yield {}, words


def accepted() -> Iterator[tuple[Mapping[str, Content], str, str]]:
    """Files, a command, and the output that it may change."""
    for output in ("null", "pipe", "$HOME`a`<b>&_%s.json"):
        yield {}, f"list profiles --json {output}", output
    yield {}, "compare tiny.yaml --out $a<b>_", "$a<b>_"
    yield {"a$b_<c>.yaml": _tiny()}, "simulate a$b_<c>.yaml", ""
    for text in (b"\xef\xbb\xbf" + _tiny(), _tiny().replace(b"\n", b"\r\n")):
        yield {"tiny.yaml": text}, SIMULATE, ""
    for series, key in ((TRACE + '0.95,"1"\n', "trace.csv"), (RATES, "rates.csv")):
        workload = WORKLOADS[key].replace("period_s: 1", "period_s: 1e-9")
        yield {"tiny.yaml": _tiny("{kind: poisson, rate_img_s: 200}", workload), key: series.encode()}, SIMULATE, ""


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """What takes much more is too much for any input."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def call(files: Mapping[str, Content], words: str, root: Path, output: str = "") -> tuple[int, str, list[str]]:
    """Call a command in a box: its exit code, what is said on standard error, and what else is wrong."""
    box, said, began_s = Box(root, {**base(), **files}), io.StringIO(), time.process_time()
    try:
        with contextlib.chdir(box.here), redirect_stderr(said), redirect_stdout(io.StringIO()):
            code = main(words.split(" "))
        slow = [f"{time.process_time() - began_s:.0f} s"] if time.process_time() - began_s > MAX_CPU_S else []
        return code, said.getvalue(), slow + box.changes((output,))
    finally:
        box.remove()


def test_wrong_input_is_refused_in_one_line(tmp_path: Path) -> None:
    for files, words in refused():
        code, said, problems = call(files, words, tmp_path / "box")
        shown = f"{words[:80]}, {[str(content)[:400] for content in files.values()]}: {said}"
        assert (code, said.count("\n"), problems) == (2, 1, []), shown
        assert said[:-1].isprintable(), shown
        assert len(said) < MAX_CHARACTERS, shown


def test_unusual_input_is_processed_without_problems(tmp_path: Path) -> None:
    for files, words, output in accepted():
        assert call(files, f"{words} --quiet", tmp_path / "box", output) == (0, "", []), words
