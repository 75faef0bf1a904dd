"""The HTTP API as an OpenAPI document, for clients' generators and testers. No I/O but its template's."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from hw.door.protocol import Served


def openapi(served: Served, *, asks_tokens: bool) -> dict[str, Any]:
    """Return the document, for this model and its inputs; without a security scheme if no token is required."""
    document: dict[str, Any] = json.loads(files("hw.door").joinpath("openapi.json").read_bytes())
    parameters, schemas = document["components"]["parameters"], document["components"]["schemas"]
    parameters["Model"]["schema"]["enum"] = [served.name]
    parameters["Version"]["schema"]["example"] = served.version
    schemas["Images"]["properties"]["shape"]["example"] = [1, *served.shape]
    if not asks_tokens:
        document["security"] = []
    return document
