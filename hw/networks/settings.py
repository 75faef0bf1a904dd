"""Identifies networks by their settings in words; without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kit.documents import no_number
from kit.plugins import is_own, source_hash


def options_of(words: str) -> dict[str, Any]:
    """Return a class's arguments, from the JSON behind its name; raises `ValueError` if that is not a JSON object."""
    try:
        options = json.loads(words or "{}", parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{words!r:.80} is no JSON ({error})") from None
    if not isinstance(options, dict):
        raise ValueError(f'{words!r:.80} is no JSON object, such as {{"classes": 10}}')
    return options


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """Return its name and options in one line: two networks are the same if these are."""
    return f"{name} {json.dumps(dict(options), sort_keys=True)}" if options else name


def network_settings(name: str, options: Mapping[str, Any], source: str, key: str) -> dict[str, str]:
    """Return name and options, and the hash of a user's code: results for other values of these are stale.

    Args:
        source, key: of the name, for messages.

    Raises:
        InputError: the code does not exist.
    """
    code = {f"the code of {name}": source_hash(name, source, key)} if is_own(name) else {}
    return {"model.network": label_of(name, options)} | code
