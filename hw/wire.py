"""Messages as bytes and back: JSON, so that nothing that comes out of a pipe can execute code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from hw import messages

_WORDS: tuple[type[Any], ...] = tuple(
    word for word in vars(messages).values() if isinstance(word, type) and dataclasses.is_dataclass(word)
)
_NUMBER = {word: number for number, word in enumerate(_WORDS)}
_FIELDS = {word: [attrgetter(field.name) for field in dataclasses.fields(word)] for word in _WORDS}
_WORD = "is"  # the key that marks a message within a message
_encoder = json.JSONEncoder(separators=(",", ":"), default=lambda word: {_WORD: _flat(word)})


def encode(sent: Iterable[messages.ToWorker | messages.FromWorker]) -> bytes:
    """Some messages that travel together: of each its number and its fields."""
    return _encoder.encode([_flat(message) for message in sent]).encode()


def decode(data: bytes) -> list[Any]:
    """The messages that `encode` took apart."""
    return [_built(flat) for flat in json.loads(data)]


def _flat(message: Any) -> list[Any]:
    return [_NUMBER[type(message)], *(field(message) for field in _FIELDS[type(message)])]


def _built(flat: list[Any]) -> Any:
    return _WORDS[flat[0]](*(_value(value) for value in flat[1:]))


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value) if not value or isinstance(value[0], int | float | str) else tuple(map(_value, value))
    if isinstance(value, dict) and _WORD in value:
        return _built(value[_WORD])
    return value
