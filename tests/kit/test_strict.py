"""Documents of any text: what a YAML text becomes, and what is refused in one message, in bounded time and memory."""

from __future__ import annotations

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from kit import strict
from kit.errors import InputError
from kit.strict import StrictModel
from tests.rereading import assert_same_again
from tests.scenarios.files import SCENARIO, profile_text

REFUSED = {
    "an alias": ("a: &a [x, x]\nb: &b [*a, *a]", "line 2", "*a is not allowed; write out what it stands for"),
    "nested lists": ("a: " + "[" * 1_000_000, "line 1", "40 levels"),
    "nested sections": ("a: " + "{a: " * 100_000, "line 1", "40 levels"),
    "nested blocks": ("\n".join(" " * level + "a:" for level in range(60)), "line 40", "40 levels"),
    "nested keys": ("? " * 100_000, "line 1", "40 levels"),
    "a long list": ("a: [" + "1," * 450_000 + "]", "line 1", "more than 400,000 values"),
    "a long text": ("a: [" + "1," * 4_500_000 + "]", "", "9,000,005 characters; expected at most 8,000,000"),
    "many directives": ("%TAG !a! x\n%TAG !b! y\n---\na: 1", "", "%TAG"),
    "a tag that builds an object": ("a: !!python/object/apply:os.system [ls]", "line 1", "tag"),
    "a tag of a date": ("b: 1\na: !!timestamp 2024-01-01", "line 2", "tag"),
    "a set": ("a: !!set {x}", "line 1", "tag"),
    "a number that is none": ("a: !!int many", "line 1", "tag"),
    "a list for a key": ("? [a]\n: 1", "line 1", "a list or a section is not text, and so no key"),
    "a section for a key": ("? {a: b}\n: 1", "line 1", "a list or a section is not text, and so no key"),
    "a number for a key": ("a: 1\n1: 2", "line 2", "'1' is not text, and so no key"),
    "nothing for a key": ("~: 2", "line 1", "'~' is not text, and so no key"),
    "a key given twice": ("a: 1\nb: {c: 1, c: 2}", "line 2", "'c' is given twice"),
    "a number of 5,000 digits": ("a: " + "9" * 5000, "line 1", "has 5000 digits"),
    "a number of 19 digits": ("a: -9223372036854775808", "line 1", "digits; expected at most 18"),
    "a NUL": ('a: "x\0y"', "", "control characters are not allowed"),
    "half a character": ("a: \ud800", "", "surrogates not allowed"),
    "half a character, escaped": ('a: "\\ud800"', "line 1", "invalid Unicode character escape code"),
    "two documents": ("a: 1\n---\nb: 2", "line 2", "another document"),
    "nothing": ("", "", "expected keys and values, found nothing: the file is empty"),
    "a comment alone": ("#" * 1_000_000, "", "expected keys and values"),
}


@pytest.mark.parametrize("text, line, problem", REFUSED.values(), ids=REFUSED)
def test_invalid_yaml_is_refused_with_its_line_and_problem(text: str, line: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        strict.mapping(text, "f.yaml")
    assert (caught.value.source, caught.value.key) == ("f.yaml", line)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    "text, value",
    [
        ("010", "010"),  # 8 in YAML 1.1
        ("1:30", "1:30"),  # 90
        ("12:30:45.5", "12:30:45.5"),
        ("2024-01-01", "2024-01-01"),  # a date
        ("=", "="),
        ("0b11", "0b11"),
        ("1e3", 1000.0),
        ("-1.5e-3", -0.0015),
        ("+.5", 0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("-0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("1." + "9" * 100_000 + "x", "1." + "9" * 100_000 + "x"),
        ("!!str 1", "1"),
    ],
)
def test_yaml_scalar_is_read_as_its_only_unambiguous_value(text: str, value: Any) -> None:
    """A scalar that two programs would read as two numbers is a text, which no key for a number accepts."""
    found = strict.mapping(f"a: {text}", "f.yaml")["a"]
    assert found == value
    assert type(found) is type(value)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")) | st.sampled_from("\n\t\0\x1b\u2028"))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from(["010", "1:30", "2024-01-01", "<<", "=", "1e5", "yes", "null", "~", "0x1f", ".inf", "1_0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.just("<<"), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXTS, PLAIN, max_size=5))
def test_mapping_written_as_yaml_reads_back_unchanged(raw: dict[str, Any]) -> None:
    assert strict.mapping(strict.dump(raw), "f.yaml") == raw


@given(
    st.text(alphabet=string.printable + "\0\ufeff\ud800é", max_size=200)
    | st.text(alphabet="{}[]&*!|>'\"%@`-?:,# \na1", max_size=60)
)
def test_any_text_is_an_answer_or_one_message(text: str) -> None:
    """Nothing but `InputError` comes out, and what is accepted is written out and reads the same."""
    try:
        found = strict.mapping(text, "f.yaml")
    except InputError:
        return
    if all(value == value for value in found.values()):  # not-a-number is never itself
        assert strict.mapping(strict.dump(found), "f.yaml") == found


class Group(StrictModel):
    """A document with a list that must not be empty."""

    members: tuple[Member, ...] = Field(min_length=1)


class Member(StrictModel):
    age: int


@pytest.mark.parametrize(
    "text, problem",
    [
        ("members: [{age: x}]", "members.0.age: input should be a valid integer (found 'x')"),
        ("members: [{age: x}, {age: y}]", "members.0.age: input should be a valid integer (found 'x') (and 1 more)"),
        ("members: []", "members: tuple should have at least 1 item after validation, not 0 (found [])"),
    ],
)
def test_consequence_of_an_invalid_value_is_not_counted_as_another_error(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        strict.parse(Group, text, "f.yaml")
    assert str(caught.value) == f"f.yaml: {problem}"


WORDS = ["1e5", "010", "1:30", "2024-01-01", ".inf", ".nan", "1e400", "null", "~", "yes", "-0", "0", "1_0", "1e-300"]
MARKS = ["[]", "{}", "'1'", "*a", "<<", "-1", '"\\0"', "&a b", "!!int 1", "? x", "9" * 30, "{a: 1}", '"\u2028"']
ODD = st.sampled_from([*WORDS, *MARKS, *(f"'{word}'" for word in WORDS)])
TEXTS_OF = {
    "scenario": SCENARIO,
    "profile": profile_text("toy", 1.0),
    "rule": "schema: slimsched.rule/1\nkind: ladder\nplacement: sticky\nmicro_batch_size: largest\n"
    "rungs: [[1, 1], [0.5, 1]]\n"
    "thresholds: [24]\nmade_by: {command: slimsched tune, seed: 7}\n",
}


@pytest.mark.parametrize("kind", TEXTS_OF)
def test_the_texts_to_begin_with_are_accepted(kind: str) -> None:
    assert assert_same_again(kind, TEXTS_OF[kind])


@pytest.mark.parametrize("word", WORDS)
def test_a_text_that_looks_like_a_value_stays_a_text(word: str) -> None:
    """Written without its quotes it would be read as what it looks like."""
    assert assert_same_again("rule", TEXTS_OF["rule"].replace("slimsched tune", f"'{word}'"))


@pytest.mark.parametrize("kind", TEXTS_OF)
@given(data=st.data())
def test_accepted_document_is_written_and_reads_back_unchanged(kind: str, data: st.DataObject) -> None:
    words = re.split(r"([\w.]+)", TEXTS_OF[kind])
    place = data.draw(st.integers(0, len(words) // 2 - 1)) * 2 + 1
    words[place] = data.draw(ODD)
    assert_same_again(kind, "".join(words))
