"""Strict documents: YAML text in, a frozen pydantic model out, or one `InputError` that names the key and the remedy.

It refuses what YAML would let pass in silence: unknown keys, duplicate keys, tags that build objects, text where a
number belongs. It opens no file: the caller reads the text and says where it came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from policies.errors import InputError, nearest


class StrictModel(BaseModel):
    """A part of a document: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Document = TypeVar("Document", bound=StrictModel)
_FORMS = {"<word>": "a word", "<number>": "a number", "<parts>": "a list or a section"}


def form(value: Any) -> str:
    """The tag of the form in which a key was given, for a `Discriminator` between them."""
    return "<word>" if isinstance(value, str) else "<number>" if isinstance(value, int | float) else "<parts>"


if TYPE_CHECKING:
    from yaml import SafeLoader
else:
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where PyYAML has it: some six times as fast


class _Loader(SafeLoader):
    """Safe YAML that reads `1e-3` as a number (YAML 1.1 calls it text) and refuses a key given twice."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _mapping_without_duplicates(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates)


def parse(model: type[Document], text: str, source: str) -> Document:
    """Read YAML `text` as a `model`.

    Raises:
        InputError: it is no YAML, or a key or value is not of the model's form; `source` is named in it.
    """
    return validate(model, mapping(text, source), source)


def mapping(text: str, source: str) -> dict[Any, Any]:
    """Read YAML `text` as keys and plain values; raises `InputError` where it is none."""
    try:
        raw = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of SafeLoader
    except UnicodeError as error:  # libyaml's
        raise InputError(source, "", f"not valid YAML: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(source, line, f"not valid YAML: {problem}") from None
    if not isinstance(raw, dict):
        raise InputError(source, "", f"expected keys and values, found {type(raw).__name__}")
    return raw


def validate(model: type[Document], raw: dict[str, Any], source: str) -> Document:
    """Check plain data against a `model`; raises `InputError` as `parse` does."""
    try:
        # Through JSON, because pydantic's strict mode takes lists for tuples and text for enums only from there.
        return model.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise _explain(model, error, source) from None
    except (TypeError, ValueError) as error:
        raise InputError(source, "", f"holds something that is no plain number, text or list: {error}") from None


def _explain(model: type[BaseModel], error: ValidationError, source: str) -> InputError:
    """The first thing that is wrong, unknown keys before all else (they often cause the rest)."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    is_unknown = first["type"] == "extra_forbidden"
    location = first["loc"][:-1] if is_unknown else first["loc"]
    parts, models = _follow(model, location)
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    if is_unknown:
        unknown = str(first["loc"][-1])
        known = {name for each in models for name in _fields(each)}
        return InputError(source, ".".join([*parts, unknown]), f"unknown key; {nearest(unknown, known)}{more}")
    if first["type"] == "union_tag_invalid":
        tag, known = first["ctx"]["tag"], set(re.findall(r"'([^']+)'", first["ctx"]["expected_tags"]))
        if known <= _FORMS.keys():
            allowed = " or ".join(_FORMS[each] for each in sorted(known, reverse=True))
            return InputError(source, ".".join(parts), f"allowed is {allowed} (found {first['input']!r:.80}){more}")
        key = ".".join([*parts, first["ctx"]["discriminator"].strip("'")])
        return InputError(source, key, f"unknown {tag!r}; {nearest(tag, known)}{more}")
    if first["type"] == "union_tag_not_found":
        parts.append(first["ctx"]["discriminator"].strip("'"))
    key = ".".join(parts)
    if first["type"] in ("missing", "union_tag_not_found"):
        return InputError(source, key, f"missing; it must be given{more}")
    message = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] == "value_error" else f" (found {first['input']!r:.80})"
    return InputError(source, key, message[0].lower() + message[1:] + found + more)


def _follow(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], set[type[BaseModel]]]:
    """A location as the user wrote it (pydantic adds a union's tag to it), and the models that may stand there."""
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
    """The keys of a model as a user writes them, with their types."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models_in(annotation: object) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {model for argument in get_args(annotation) for model in _models_in(argument)}


def to_yaml(document: StrictModel) -> str:
    """The text that `parse` reads back as the same document."""
    return dump(document.model_dump(mode="json", by_alias=True, exclude_none=True))


def dump(raw: Mapping[str, Any]) -> str:
    """Plain data as the text that `mapping` reads back."""
    return yaml.dump(raw, Dumper=_Dumper, sort_keys=False, width=160, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Numbers of a list on one line, everything else in blocks."""


def _compact_sequence(dumper: _Dumper, data: list[Any]) -> yaml.SequenceNode:
    flat = all(not isinstance(item, dict | list) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)


_Dumper.add_representer(list, _compact_sequence)
