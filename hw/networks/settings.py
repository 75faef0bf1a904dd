"""What tells one network from another, in words; it opens no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kit.documents import no_number
from kit.plugins import is_own, source_hash


def options_of(words: str) -> dict[str, Any]:
    """What a class is called with, from the JSON behind its name; raises `ValueError` where that is no JSON object."""
    try:
        options = json.loads(words or "{}", parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{words!r:.80} is no JSON ({error})") from None
    if not isinstance(options, dict):
        raise ValueError(f'{words!r:.80} is no JSON object, such as {{"classes": 10}}')
    return options


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """Its name and options in one line: two networks are the same where these are."""
    return f"{name} {json.dumps(dict(options), sort_keys=True)}" if options else name


def network_settings(name: str, options: Mapping[str, Any], source: str, key: str) -> dict[str, str]:
    """Name and options, and a user's code: what was made with another one of these is stale.

    Args:
        source, key: where the name stands, for messages.

    Raises:
        InputError: there is no such code.
    """
    code = {f"the code of {name}": source_hash(name, source, key)} if is_own(name) else {}
    return {"model.network": label_of(name, options)} | code
