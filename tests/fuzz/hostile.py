"""What a hostile hand writes: scalars of YAML, JSON and CSV, texts of flags, and ways to change bytes and documents."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

import yaml
from hypothesis import strategies as st

DIGITS: Final = "9" * 5000
NUMBERS: Final = (
    "0", "-0", "-1", "1", "2", "0.0", "-0.0", "1e-9", "1e-300", "5e-324", "1e9", "1e18", "1e19", "1e300", "1e308",
    "1e309", "1e400", "-1e400", "nan", ".nan", "NaN", "inf", ".inf", "-.inf", "Infinity", "-Infinity",
    "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "1_000", "1__0", "_1", "0x1F", "0o17", "010", "0b11", "1:30",
    "1:30:00",
    "1.5:30", "+1", "1.", ".5", "1e", "e1", "1e+", "0.1.2", "1,000", "1,5", "٣", "½", "1 000", "10ms", "5m", "1h", "1d",
    "-5s", "1e3s", "00:05", DIGITS, f"0.{DIGITS}", f"1e{DIGITS}", f"-{DIGITS}", "0x" + "f" * 5000,
)  # fmt: skip
WORDS: Final = (
    "", "null", "~", "true", "yes", "on", "No", "TRUE", "auto", "all", "none", "measured", "random", "ppo", "jsq",
    "compass", "ladder", "fixed", "fixed:", "fixed:1,1", "fixed:nan,1", "fixed:1,1@sticky", "slackfit@", "@", "a:b",
    "os:system", "tests.fuzz.cases:Case", "..", "../..", "/", "/dev/zero", "/proc/self/mem", "fast", "slow", "a100",
    "no-such", "2024-01-01", "2024-01-01 10:00:00", "2024-13-45", "<script>alert(1)</script>", "$(touch made)",
    "${HOME}", "%s%n", "{0.__class__}", "{{7*7}}", "\\x00", "'", "\u202etxt.exe", "🙂", "a" * 10_000, "ﬁ", "İ",
    "\u2028", "pipe",
    "folder", "dangling", "loop", "null", "link.json", "fast.yaml", "ladder.rule.yaml", "compass.rule.yaml",
    "ppo.safetensors",
)  # fmt: skip
YAML_NODES: Final = (
    "[]", "{}", "[[]]", "[1, [2, [3]]]", "{a: 1}", "{? [a]: 1}", "{? {a: 1} : 1}", "{a: 1, a: 2}", "&a [*a]",
    "*missing",
    "&a {<<: *a}", "{<<: {a: 1}}", "{<<: 7}", "!!python/object:os.system x", "!!python/name:os.system", "!!binary aGk=",
    "!!binary '&&'", "!!timestamp 2024-01-01", "!!set {a, b}", "!!omap [a: 1]", "!!omap 7", "!!pairs [a: 1]", "!!int x",
    "!!float x", "!!int ''", "!!bool 7", "!!null x", "!!str 7", "!foreign 7", "!!merge x", "!<tag:x> 7", "|\n  a\n  b",
    '"\\u0000"', '"\\ud800"', '"\\x1b[31mred"', "'it''s'", "[1, 2", "{a: ", '"open', "? a", "- - - a", "%TAG x",
    "--- a",
    "...", "@a", "`a", "\t1", "[" * 300 + "]" * 300, "{a: " * 300 + "1" + "}" * 300, "[1, 1]", "[nan]", "[0.5, 1.0]",
    "[1, 2, 4]", "[random, random]", "[0]", "[-1]", "[1e400]", "[[99, 1.0]]", "[[1, 1.0]]", "[" + "0, " * 5000 + "1]",
)  # fmt: skip
JSON_NODES: Final = (
    "null", "true", "0", "-1", "1e400", "NaN", "Infinity", DIGITS, '""', '"a"', '"\\ud800"', '"\\u0000"', "[]", "{}",
    "[[]]", '{"a": 1, "a": 2}', "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, '"' + "a" * 100_000 + '"',
    "[" + "0," * 20_000 + "0]", "1.5", "1e-400", "'a'", "[1,]", "// a", "0.5", "1.0", "[0.5, 1.0]", "[[0.5, 1.0]]",
)  # fmt: skip
BITS: Final = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\x1b[2J", b"\r", b"\r\n", b"\n\n", b"\t",
    b"'",
    b'"', b'"\n', b",", b",,", b";", b":", b"#", b"- ", b"? ", b"&a ", b"*a ", b"<<: ", b"!!python/object:a ", b"%",
    b"@",
    b"{", b"}", b"[", b"]", b"|", b">", b"---\n", b"...\n", b"nan", b".inf", b"1e400", b"-1", b"0", b"=1+1", b"\x85",
    "\u2028".encode(), b"9" * 5000, b"a" * 200_000, b"\n" * 10_000, b"[" * 3000, b'"' + b"x" * 140_000,
)  # fmt: skip

scalars = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.sampled_from(YAML_NODES),
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=12),
)


@st.composite
def changed_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """A file's bytes after some accidents."""
    for _ in range(draw(st.integers(1, 4))):
        data = _accident(draw, data)
    return data[:20_000_000]


def _accident(draw: st.DrawFn, data: bytes) -> bytes:
    at = draw(st.integers(0, len(data)))
    to = min(len(data), at + draw(st.sampled_from((1, 2, 5, 20, 100, 1000))))
    kind = draw(
        st.sampled_from(("insert", "replace", "insert", "replace", "cut", "flip", "drop", "twice", "many", "swap"))
    )
    if kind == "cut":
        return data[:at]
    if kind == "flip" and at < len(data):
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    if kind == "drop":
        return data[:at] + data[to:]
    if kind == "twice":
        return data[:to] + data[at:]
    if kind == "many":
        return data[:to] + data[at:to] * draw(st.sampled_from((10, 1000, 10_000))) + data[to:]
    if kind == "swap":
        lines = data.split(b"\n")
        one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        lines[one], lines[other] = lines[other], lines[one]
        return b"\n".join(lines)
    piece = draw(st.one_of(st.sampled_from(BITS), st.binary(max_size=8)))
    return data[:at] + piece + data[at if kind == "insert" else to :]


@st.composite
def changed_yaml(draw: st.DrawFn, text: bytes) -> bytes:
    """A document some of whose values are others."""
    return _changed(draw, yaml.safe_load(text), scalars, lambda raw: yaml.safe_dump(raw, sort_keys=False, width=10**6))


@st.composite
def changed_json(draw: st.DrawFn, text: bytes) -> bytes:
    """The same of JSON."""
    values = st.one_of(
        st.sampled_from(JSON_NODES), st.integers(-10, 10**19).map(str), st.text(max_size=9).map(json.dumps)
    )
    return _changed(draw, json.loads(text), values, json.dumps)


def _changed(draw: st.DrawFn, raw: Any, values: st.SearchStrategy[str], dump: Any) -> bytes:
    """Values are put in as text, after the rest was written."""
    raw, texts = copy.deepcopy(raw), {}
    for number in range(draw(st.integers(1, 3))):
        mark = f"MARK{number}MARK"
        texts[mark] = draw(values)
        where = _somewhere(draw, raw)
        kind = draw(st.sampled_from(("value", "value", "value", "value", "drop", "add", "wrap", "swap")))
        _change(draw, where, kind, mark)
    text = str(dump(raw))
    for mark, value in texts.items():
        text = text.replace(f'"{mark}"', value).replace(f"'{mark}'", value).replace(mark, value)
    return text.encode("utf-8", "surrogatepass")


def _somewhere(draw: st.DrawFn, raw: Any) -> tuple[Any, Any]:
    """A list or section in it, and the place of one of its values; deep ones as likely as shallow ones."""
    at, key = raw, _key_of(draw, raw)
    while isinstance(at[key], dict | list) and at[key] and draw(st.integers(0, 3)):
        at = at[key]
        key = _key_of(draw, at)
    return at, key


def _key_of(draw: st.DrawFn, at: Any) -> Any:
    return draw(st.sampled_from(list(at))) if isinstance(at, dict) else draw(st.integers(0, len(at) - 1))


def _change(draw: st.DrawFn, where: tuple[Any, Any], kind: str, mark: str) -> None:
    at, key = where
    if kind == "drop" and len(at) > 1:
        del at[key]
    elif kind == "add":
        at.update({mark: 1}) if isinstance(at, dict) else at.append(mark)
    elif kind == "wrap":
        at[key] = [at[key]]
    elif kind == "swap":
        other = _key_of(draw, at)
        at[key], at[other] = at[other], at[key]
    else:
        at[key] = mark
