"""Events, commands and the settings of cores as plain JSON data and back, for stored runs and replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from policies import vocabulary
from policies.greedy import GreedyKnobs
from policies.interfaces import RouterConfig

_WORDS: dict[str, type[Any]] = {
    name: word for name, word in vars(vocabulary).items() if isinstance(word, type) and issubclass(word, msgspec.Struct)
} | {"RouterConfig": RouterConfig, "GreedyKnobs": GreedyKnobs}


def to_jsonable(value: Any) -> Any:
    """Convert an event, a command or a part of one to plain data; a word is a dict with its class name under `is`."""
    if isinstance(value, msgspec.Struct | RouterConfig | GreedyKnobs):
        names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else [each.name for each in fields(value)]
        return {"is": type(value).__name__, **{name: to_jsonable(getattr(value, name)) for name in names}}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, Mapping):
        return {"is": "mapping", "items": [[to_jsonable(key), to_jsonable(item)] for key, item in value.items()]}
    return value


def from_jsonable(data: Any) -> Any:
    """Rebuild the word that `to_jsonable` converted.

    Raises:
        ValueError: the data names no known word, or its fields are not those of the word.
    """
    if isinstance(data, list):
        return tuple(from_jsonable(item) for item in data)
    if not isinstance(data, dict):
        return data
    if data.get("is") == "mapping":
        return {from_jsonable(key): from_jsonable(item) for key, item in data["items"]}
    word = _WORDS.get(str(data.get("is")))
    if word is None:
        raise ValueError(f"unknown event or command {data.get('is')!r}")
    try:
        return word(**{name: from_jsonable(item) for name, item in data.items() if name != "is"})
    except TypeError as error:
        raise ValueError(f"{data['is']}: {error}") from None
