"""Inputs as hypothesis draws them: documents by a model's JSON schema, and damaged files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

Schema = Mapping[str, Any]
NAMES: Final = (
    "fast", "slow", "fast.yaml", "slow.yaml", "t4", "trace.csv", "rates.csv", "accuracy.json", "model.safetensors",
    "ppo.safetensors", "ladder.rule.yaml", "compass.rule.yaml", "jsq", "ppo", "fixed:0.5,1", "milp", "time_s", "count",
    "digits", "a:B", "folder", "no.yaml", "1s", "10ms",
)  # fmt: skip
ODD: st.SearchStrategy[Any] = st.sampled_from(
    (
        None, True, "", "x", -1, 0, 1e-9, 1e308, 2**63, [], {}, [[]], {"a": 1}, "1e400", "1:30", "../..", "\0",
        "\u202etxt.exe", "<script>", "a" * 10_000, float("inf"), float("nan"),
    )
)  # fmt: skip
BYTES: Final = st.sampled_from(
    (b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[2J", b"\r", b"\n\n", b"'", b'"', b",,", b"? ", b"&a ", b"*a ",
     b"{", b"]", b"---\n", b"nan", b"1e400", b"-1", b"9" * 5000, b"[" * 3000, b'"' + b"x" * 140_000)
)  # fmt: skip
TEXTS: Final = st.text(st.characters(codec="utf-8"), max_size=8)


def _resolved(schema: Schema, root: Schema) -> Schema:
    return root["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def values(schema: Schema, root: Schema) -> st.SearchStrategy[Any]:
    """Draw what a part of a schema allows, strings mostly as names of what there is; `root` holds the definitions."""
    schema = _resolved(schema, root)
    if choices := schema.get("anyOf", schema.get("oneOf")):
        return st.one_of([values(choice, root) for choice in choices])
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    match schema.get("type"):
        case "object":
            parts = {key: values(part, root) for key, part in schema.get("properties", {}).items()}
            needed = {key: parts.pop(key) for key in schema.get("required", ())}
            return st.fixed_dictionaries(needed, optional=parts)
        case "array" if "prefixItems" in schema:
            return st.tuples(*(values(part, root) for part in schema["prefixItems"])).map(list)
        case "array":
            least = schema.get("minItems", 0)
            return st.lists(values(schema["items"], root), min_size=least, max_size=max(least, 3))
        case "integer":
            return st.integers(low, high)
        case "number":
            return st.floats(low, high, allow_nan=False, allow_infinity=False)
        case "string":
            return st.sampled_from(NAMES) | TEXTS
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return ODD


@st.composite
def changed(draw: st.DrawFn, document: Any, schema: Schema) -> Any:
    """Change a valid document in one to three places, each to what the schema allows there, or to something odd."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, document, schema, schema)
    return document


def _change(draw: st.DrawFn, part: Any, schema: Schema, root: Schema) -> None:
    known: dict[Any, Any] = schema.get("properties", {})
    if isinstance(part, list):
        known = dict.fromkeys(range(len(part)), schema["items"])
    key = draw(st.sampled_from(list(known)))
    is_there = isinstance(part, list) or key in part
    if is_there and (form := _form_of(part[key], known[key], root)) and draw(st.booleans()):
        _change(draw, part[key], form, root)
    elif is_there and isinstance(part, dict) and draw(st.integers(0, 5)) == 5:
        del part[key]
    else:
        new = values(known[key], root)
        part[key] = draw(st.one_of(new, new, ODD))


def _form_of(value: Any, schema: Schema, root: Schema) -> Schema:
    """Return the schema of the form in which a section or a list of something is given; empty for other values."""
    schema = _resolved(schema, root)
    for form in (_resolved(each, root) for each in schema.get("anyOf", schema.get("oneOf", [schema]))):
        fixed = {key: part["const"] for key, part in form.get("properties", {}).items() if "const" in part}
        if isinstance(value, dict) and fixed.items() <= value.items() and form.get("properties"):
            return form
        if isinstance(value, list) and value and "items" in form:
            return form
    return {}


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut a file, or replace, insert and repeat some of its bytes, in one to three places."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from((0, 1, 2, 5, 20, 100, 1000, len(content)))))
        new = draw(st.one_of(BYTES, st.binary(max_size=8), st.just(content[start:end] * 2)))
        content = content[:start] + new + content[end:]
    return content
