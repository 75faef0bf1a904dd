"""Strict documents: YAML text in, a frozen pydantic model out, or one `InputError`; and the files that documents name.

Reading (`parse`, `mapping`) refuses what YAML accepts silently: unknown keys, duplicate keys, tags that build objects,
text instead of a number. It also refuses text that would take more time or memory than any document of this project:
any text gets an answer within seconds. Reading opens no file: the caller reads the text and names its source.

Files (`named_files`, `with_paths`): a model marks each key that names a file with a `FileName`. So a new key needs no
entry in a list: the code that makes paths absolute, and the code that checks files for changes, find it by its mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from kit.errors import InputError, nearest
from kit.files import possible_path
from kit.units import parse_duration

_KINDS: Final = {
    "slimsched.scenario": "a scenario of serving, for `slimsched simulate`, `compare`, `run` and SlimCluster-v0",
    "slimsched.jobs": "a scenario of training jobs, for `slimsched jobs compare` and the like",
    "slimsched.jobpolicy": "a policy for training jobs, for `slimsched jobs compare --policy`",
    "slimsched.profile": "a device's profile, for a scenario's servers and `slimsched profile show`",
    "slimsched.clusters": "what clusters are drawn from, for `slimsched train --over`",
    "slimsched.rule": "a router's rule, for --router and a scenario's routers",
    "slimsched.sheet": "a GPU's data sheet, for `slimsched profile synth`",
}


# --------------------------------------------------------------------------------------------------------------- models


class StrictModel(BaseModel):
    """A part of a document: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


def _finite(value: Any) -> Any:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _finite(part)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"contains {value}; numbers must be finite")
    return value


Plain = Annotated[dict[str, Any], AfterValidator(_finite)]  # keys without a model here, with plain values
Document = TypeVar("Document", bound=StrictModel)
_FORMS = {"<word>": "a word", "<number>": "a number", "<parts>": "a list or a section"}


def form(value: Any) -> str:
    """Return the tag of the form in which a key was given, for a `Discriminator` between forms."""
    return "<word>" if isinstance(value, str) else "<number>" if isinstance(value, int | float) else "<parts>"


if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from yaml import SafeLoader
else:
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if PyYAML has it: about six times as fast


_TAG = "tag:yaml.org,2002:"
_NUMBERS = {  # each pattern takes time linear in the length of the text
    f"{_TAG}int": re.compile(r"^[-+]?(0|[1-9][\d_]*|0x[\da-fA-F_]+)$", re.ASCII),
    f"{_TAG}float": re.compile(
        r"^([-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\.\d[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.(inf|Inf|INF))"
        r"|\.(nan|NaN|NAN))$",
        re.ASCII,
    ),
}
_FIRST = list("-+0123456789.")  # the characters that a number begins with
_TEXTS = (f"{_TAG}timestamp", f"{_TAG}merge", f"{_TAG}value", *_NUMBERS)  # what YAML 1.1 takes for another type


class _Loader(SafeLoader):
    """Safe YAML without its pitfalls.

    `1e-3` is a number (YAML 1.1 reads text); `010` is text and not 8, `1:30` is text and not 90, and a date is text. A
    key is a text, and occurs once.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML copies it for a class that adds to it
        first: [(tag, pattern) for tag, pattern in known if tag not in _TEXTS]
        for first, known in SafeLoader.yaml_implicit_resolvers.items()
    }


for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, _FIRST)


def _mapping_of_texts(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    keys: set[str] = set()
    for key_node, _ in node.value:
        if key_node.tag != f"{_TAG}str":
            shown = f"{key_node.value!r:.40}" if isinstance(key_node, yaml.ScalarNode) else "a list or a section"
            raise _refused(f"{shown} is not text, and so no key; write it in quotes", key_node.start_mark)
        if key_node.value in keys:
            raise _refused(f"the key {key_node.value!r:.80} is given twice", key_node.start_mark)
        keys.add(key_node.value)
    return {str(key): value for key, value in loader.construct_mapping(node, deep=True).items()}


def _number(loader: _Loader, node: yaml.ScalarNode) -> int | float:
    try:
        number = loader.construct_yaml_int(node) if node.tag.endswith("int") else loader.construct_yaml_float(node)
    except ValueError:  # Python's limit on digits
        number = None
    if number is None or (isinstance(number, int) and abs(number) >= 2**63):
        raise _refused(f"{node.value:.20}... has {len(node.value)} digits; expected at most 18", node.start_mark)
    return number


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_of_texts)
for _tag in _NUMBERS:
    _Loader.add_constructor(_tag, _number)


# ------------------------------------------------------------------------------------------------------------- bounds

MAX_CHARACTERS: Final = 8_000_000
MAX_VALUES: Final = 400_000
MAX_LEVELS: Final = 40


def _require_bounded(text: str) -> None:
    """Raise `_RefusedError` for too many values or levels, a tag or an alias, before anything is built."""
    if re.search("^%TAG", text, re.MULTILINE):  # libyaml's time grows with the square of their number
        raise _refused("%TAG is not allowed", None)
    values = levels = 0
    for event in yaml.parse(text, Loader=SafeLoader):
        if isinstance(event, yaml.AliasEvent):  # a few of them can expand to any size
            raise _refused(f"*{event.anchor:.80} is not allowed; write out what it stands for", event.start_mark)
        if isinstance(event, yaml.CollectionEndEvent):
            levels -= 1
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            if event.tag not in (None, f"{_TAG}str"):
                raise _refused(f"the tag {event.tag!r:.80} is not allowed; leave it out", event.start_mark)
            values += 1
            if values > MAX_VALUES:
                raise _refused(f"more than {MAX_VALUES:,} values", event.start_mark)
            if levels >= MAX_LEVELS:
                raise _refused(f"nested more than {MAX_LEVELS} levels deep", event.start_mark)
            if isinstance(event, yaml.CollectionStartEvent):
                levels += 1


_TOO_DEEP: Final = "maximum nesting depth"  # PyYAML's text from 6.0.4 on


class _RefusedError(yaml.MarkedYAMLError):
    """Valid YAML that isn't a document of ours."""


def _refused(problem: str, mark: Any) -> _RefusedError:
    return _RefusedError(None, None, problem, mark)


# ------------------------------------------------------------------------------------------------------------- reading


def parse(model: type[Document], text: str, source: str) -> Document:
    """Read YAML `text` as a `model`.

    Raises:
        InputError: the text isn't YAML, or a key or value does not fit the model; `source` is named in it.
    """
    return validate(model, mapping(text, source), source)


def mapping(text: str, source: str) -> dict[str, Any]:
    """Read YAML `text` as keys and plain values; raises `InputError` if it isn't, or exceeds a document's limits."""
    if len(text) > MAX_CHARACTERS:
        problem = f"has {len(text):,} characters; expected at most {MAX_CHARACTERS:,}: is it the file that you mean?"
        raise InputError(source, "", problem)
    try:
        _require_bounded(text)
        raw = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except UnicodeError as error:  # from libyaml
        raise InputError(source, "", f"not valid YAML: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
        if _TOO_DEEP in problem:  # a scanner that looks far ahead refuses before the count here
            raise InputError(source, line, f"nested more than {MAX_LEVELS} levels deep") from None
        if mark and Path(source).suffix not in (".yaml", ".yml", ""):
            raise InputError(source, "", f"is it the file that you mean? {line} is not valid YAML: {problem}") from None
        kind = "" if isinstance(error, _RefusedError) else "not valid YAML: "
        helps = _of_yaml(text, mark) if kind else ""
        raise InputError(source, line, f"{kind}{problem}{helps}") from None
    if not isinstance(raw, dict):
        content = "nothing: the file is empty" if raw is None else type(raw).__name__
        remedy = "is it the file that you mean? `slimsched init` writes a first scenario"
        raise InputError(source, "", f"expected keys and values, found {content}; {remedy}")
    return raw


def _of_yaml(text: str, mark: Any) -> str:
    """Return a remedy for the commonest mistakes in YAML itself."""
    lines = text.splitlines()
    if mark is None:
        return "; is it the file that you mean?"
    if mark.line < len(lines) and "\t" in lines[mark.line]:
        return "; the line has a tab: indent with spaces"
    return "; look at indentation, brackets and quotes there and in the line before"


def validate(model: type[Document], raw: dict[str, Any], source: str) -> Document:
    """Check plain data against a `model`; raises `InputError` as `parse` does."""
    # First the schema: a document of another kind has another one, and few keys in common.
    allowed, schema = get_args(_fields(model).get("schema")), raw.get("schema")
    if allowed and schema is not None and schema not in allowed:
        kind = _KINDS.get(str(schema).partition("/")[0])
        prefix = f"{kind}; " if kind else ""
        raise InputError(source, "schema", f"found {schema!r:.80}: {prefix}expected {allowed[0]!r}")
    try:
        # Through JSON, because pydantic's strict mode takes lists for tuples and text for enums only from there.
        return model.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        refusal = _explain(model, error, source)
        raise InputError(source, with_name(raw, refusal.key), refusal.problem) from None
    except (TypeError, ValueError) as error:
        raise InputError(source, "", f"holds something that is not a plain number, text or list: {error}") from None


def with_name(raw: Any, key: str) -> str:
    """Return a dotted key with the name of the list's item on its path: `servers.2.link (gpu-a)`."""
    name, node = None, raw
    for part in key.split("."):
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
            name = node.get("name", name) if isinstance(node, dict) else name
        else:
            node = node.get(part) if isinstance(node, dict) else None
    return f"{key} ({name:.100})" if isinstance(name, str) and not key.endswith(")") else key


MAX_LISTED: Final = 10  # numbers of a range that are written out


def _numbers(value: Any) -> list[str]:
    """Return the numbers of a range such as 0-9; none for any other value."""
    ends = re.fullmatch(r"\s*(\d{1,9})\s*(?:-|\.\.+)\s*(\d{1,9})\s*", value) if isinstance(value, str) else None
    numbers = range(int(ends[1]), int(ends[2]) + 1) if ends else range(0)
    listed = [str(number) for number in numbers[:MAX_LISTED]]
    return [*listed, "..."] if len(numbers) > MAX_LISTED else listed


_RATES: Final = ("img_s", "gb_s", "flop_s")  # endings of keys that aren't durations


def _number_remedy(key: str, text: str) -> str:
    """Return what to write for a text with one number in it, or, if only its author knows, that a unit is needed."""
    number = re.match(r"([1-9]\d*(\.\d+)?|0?\.\d+)\s*(?=\D*$)", text[:80])
    if number is None:
        return ""
    if text.endswith("%"):
        return f"; write {float(number[1]) / 100:g}"
    if key.endswith("_s") and not key.endswith(_RATES):
        with suppress(ValueError):
            return f"; write it in seconds: {parse_duration(text):.12g}"
    if number[0] == text:
        return f"; write it without quotes: {text}"
    return "; write a number in the unit that the key's name ends with"


def _remedy(key: str, kind: str, value: Any, context: Mapping[str, Any], *, is_item: bool) -> str:
    """Return a remedy for some common mistakes; empty for others. An item is one of a list."""
    if kind == "less_than_equal" and context.get("le") == 1 and isinstance(value, int | float) and 1 < value <= 100:
        return f"; {value:g} % is {value / 100:g}"
    if (kind == "tuple_type" or (kind == "int_type" and is_item)) and (numbers := _numbers(value)):
        return f"; write each number of a list: [{', '.join(numbers)}]"
    if kind in ("float_type", "int_type") and isinstance(value, str):
        return _number_remedy(key, value.strip())
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "; in quotes it is a text" + (', such as "yes"' if isinstance(value, bool) else f': "{value}"')
    if kind in ("tuple_type", "list_type") and isinstance(value, str | int | float):
        alone = ", which is this one number" if isinstance(value, int | float) else ""
        return f"; write a list in brackets: [{value!s:.40}]{alone}"
    if kind == "literal_error" and isinstance(value, str):
        close = nearest(value, re.findall(r"'([^']+)'", context["expected"])).partition("? ")
        return f"; {close[0]}?" if close[1] else ""
    return ""


def _explain(model: type[BaseModel], error: ValidationError, source: str) -> InputError:
    """Return the first error, unknown keys before all others (which they often cause)."""
    details = sorted(_causes(error), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    is_unknown = first["type"] == "extra_forbidden"
    location = first["loc"][:-1] if is_unknown else first["loc"]
    parts, models = _follow(model, location)
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    if is_unknown:
        unknown = str(first["loc"][-1])
        names = {name for each in models for name in _fields(each)} - {unknown}  # which another kind may have
        remedy = "a number has no comma (1000, not 1,000); " if unknown.isdigit() else ""
        remedy += nearest(unknown, names)
        return InputError(source, ".".join([*parts, unknown]), f"unknown key; {remedy}{more}")
    if first["type"] == "union_tag_invalid":
        tag, names = first["ctx"]["tag"], set(re.findall(r"'([^']+)'", first["ctx"]["expected_tags"]))
        if names <= _FORMS.keys():
            literals = sorted(_words_in([_fields(each)[parts[-1]] for each in _follow(model, location[:-1])[1]]))
            allowed = " or ".join(_FORMS[name] for name in sorted(names, reverse=True))
            allowed = allowed.replace("a word", f"a word ({', '.join(literals)})", 1) if literals else allowed
            return InputError(source, ".".join(parts), f"expected {allowed} (found {first['input']!r:.80}){more}")
        key = ".".join([*parts, first["ctx"]["discriminator"].strip("'")])
        return InputError(source, key, f"unknown {tag!r}; {nearest(tag, names)}{more}")
    if first["type"] == "union_tag_not_found":
        parts.append(first["ctx"]["discriminator"].strip("'"))
    key = ".".join(parts)
    if first["type"] in ("missing", "union_tag_not_found"):
        hint = f": `schema: {get_args(_fields(model)['schema'])[0]}`" if key == "schema" else ""
        return InputError(source, key, f"missing; it must be given{hint}{more}")
    message = first["msg"].removeprefix("Value error, ")
    shown = "" if first["type"] == "value_error" else f" (found {first['input']!r:.80})"
    helps = _remedy(
        key,
        first["type"],
        first["input"],
        first.get("ctx", {}),
        is_item=any(isinstance(part, int) for part in location[-1:]),
    )
    return InputError(source, key, message[0].lower() + message[1:] + shown + helps + more)


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors without their consequences: pydantic also calls a list too short if its only items are
    wrong."""
    errors = error.errors()
    return [
        detail
        for detail in errors
        if detail["type"] != "too_short"
        or not any(other["loc"][: len(detail["loc"])] == detail["loc"] for other in errors if other is not detail)
    ]


def _follow(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], set[type[BaseModel]]]:
    """Return a location as the user wrote it (pydantic adds a union's tag), and the models expected there."""
    parts: list[str] = []
    models = {model}
    for part in location:
        is_key = any(part in _fields(each) for each in models)
        if is_key:
            models = {sub for each in models if part in _fields(each) for sub in _models_in(_fields(each)[str(part)])}
        if is_key or isinstance(part, int) or not (models or part.startswith("<")):
            parts.append(str(part))
    return parts, models


def _fields(model: type[BaseModel]) -> dict[str, object]:
    """Return the keys of a model as a user writes them, with their types."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models_in(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {model for argument in get_args(annotation) for model in _models_in(argument)}


def _words_in(annotations: Sequence[object]) -> set[str]:
    """Return the texts that types allow literally."""
    texts: set[str] = set()
    for kind in annotations:
        parts = get_args(kind)
        texts |= {part for part in parts if isinstance(part, str)} if get_origin(kind) is Literal else _words_in(parts)
    return texts


# ------------------------------------------------------------------------------------------------- writing and changing


def to_yaml(document: StrictModel) -> str:
    """Return the text that `parse` reads back as the same document."""
    return dump(plain(document))


def plain(document: StrictModel) -> dict[str, Any]:
    """Return the data that `to_yaml` writes: all values except nulls."""
    return document.model_dump(mode="json", by_alias=True, exclude_none=True)


def dump(raw: Mapping[str, Any]) -> str:
    """Return plain data as the text that `mapping` reads back."""
    return yaml.dump(raw, Dumper=_Dumper, sort_keys=False, width=160, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """A dumper with the numbers of a list on one line, and all else in blocks."""


def _compact_sequence(dumper: _Dumper, data: list[Any]) -> yaml.SequenceNode:
    flat = all(not isinstance(item, dict | list) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


_Dumper.add_representer(list, _compact_sequence)
for _tag, _pattern in _NUMBERS.items():  # texts that the loader would read as numbers are quoted
    _Dumper.add_implicit_resolver(_tag, _pattern, _FIRST)


def change(raw: dict[str, Any], key: Sequence[str], value: Any, source: str) -> None:
    """Set a key of what was read; creates missing sections, and appends an item directly after a list's last."""
    node: Any = raw
    for depth, part in enumerate(key):
        is_last, path = depth == len(key) - 1, ".".join(key[: depth + 1])
        if isinstance(node, list):
            largest = len(node) if is_last else len(node) - 1
            if not (part.isascii() and part.isdigit() and int(part) <= largest):
                problem = f"no such item; the list has {len(node)}, counted from 0"
                raise InputError(source, path, f"{problem}; a whole one at {len(node)} is added")
            at: Any = int(part)
        elif isinstance(node, dict):
            at = part
        else:
            raise InputError(source, path, f"{'.'.join(key[:depth])} is {node!r:.80} and no section; change that")
        if is_last and isinstance(node, list):
            node[at : at + 1] = [value]
        elif is_last:
            node[at] = value
        else:
            node = node[at] if isinstance(node, list) else node.setdefault(at, {})


# -------------------------------------------------------------------------------------------- files that documents name


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class FileName:
    """A mark (with `Annotated`) of a document's key whose text names a file.

    Attributes:
        is_path: whether a text is a path; a router's name, for example, isn't.
        find: returns the file that a text stands for; None if it stands for none.
        split: returns the text before the path, and the path.
    """

    is_path: Callable[[str], bool] = lambda text: True
    find: Callable[[str], Path | None] = Path
    split: Callable[[str], tuple[str, str]] = lambda text: ("", text)


PossiblePath = Annotated[str, AfterValidator(possible_path)]
FilePath = Annotated[PossiblePath, FileName()]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def plain_name(text: str) -> str:
    """Return a name that is valid for files and folders, too; raises ValueError, with a similar one, for any other."""
    if re.fullmatch(NAME, text):
        return text
    near = as_name(text)
    allowed = "up to 100 letters, digits, `.`, `_` and `-`, the first a letter or a digit"
    raise ValueError(f"{text!r:.80} can't be a name; expected {allowed}" + (f", such as {near}" if near else ""))


def as_name(text: str, otherwise: str = "") -> str:
    """Return a similar plain name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or otherwise


Name = Annotated[str, AfterValidator(plain_name)]


@dataclass(frozen=True)
class NamedFile:
    """A file that a document names: its key and its path."""

    key: str
    path: Path


def marker_of(field: FieldInfo) -> FileName | None:
    """Return the mark of a key that names a file; None if it has none."""
    return next((each for each in _metadata(field.annotation, *field.metadata) if isinstance(each, FileName)), None)


@cache
def _fields_of(kind: type[BaseModel]) -> tuple[tuple[str, str, FileName | None], ...]:
    """Return each field's name, key and mark, cached because a scenario may have many servers."""
    return tuple((name, field.alias or name, marker_of(field)) for name, field in kind.model_fields.items())


def named_files(document: StrictModel, key: str = "") -> Iterator[NamedFile]:
    """Yield every file that a document names, in the order of its keys."""
    for name, alias, marker in _fields_of(type(document)):
        yield from _found(getattr(document, name), marker, f"{key}.{alias}" if key else alias)


def with_paths(document: Model, rename: Callable[[str], str]) -> Model:
    """Return a document with every path in it renamed; unset keys stay unset."""
    update = {}
    for name, _, marker in _fields_of(type(document)):
        value = getattr(document, name)
        if (renamed := _renamed(value, marker, rename)) is not value:
            update[name] = renamed
    return document.model_copy(update=update) if update else document


def _found(value: Any, marker: FileName | None, key: str) -> Iterator[NamedFile]:
    if isinstance(value, StrictModel):
        yield from named_files(value, key)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _found(item, marker, f"{key}.{index}")
    elif isinstance(value, str) and marker is not None and (path := marker.find(value)) is not None:
        yield NamedFile(key, path)


def _renamed(value: Any, marker: FileName | None, rename: Callable[[str], str]) -> Any:
    """Return a value with its paths renamed: the very same object if nothing in it changes."""
    if isinstance(value, BaseModel):
        return with_paths(value, rename)
    if isinstance(value, tuple):
        parts = tuple(_renamed(part, marker, rename) for part in value)
        return value if all(part is original for part, original in zip(parts, value, strict=True)) else parts
    if isinstance(value, str) and marker is not None and marker.is_path(value):
        before, path = marker.split(value)
        return before + rename(path)
    return value


def _metadata(annotation: Any, *metadata: Any) -> Iterator[Any]:
    """Yield all metadata attached to a type and the types in it."""
    yield from metadata
    for part in get_args(annotation):
        yield from _metadata(part, *getattr(part, "__metadata__", ()))
