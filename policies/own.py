"""A user's own class, named `module:Class`: found, and known again by its source."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

OWN_CLASS = "module:Class"


def is_own(name: str) -> bool:
    """Whether a name is that of a user's class."""
    module, colon, found = name.partition(":")
    return bool(colon) and found.isidentifier() and all(part.isidentifier() for part in module.split("."))


def own_class(name: str) -> Any:
    """What `module:Class` names: from where Python looks, else from the folder the user is in.

    (An installed command does not look there by itself.) Raises whatever goes wrong in the module.
    """
    module, _, found = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return getattr(importlib.import_module(module), found)


def code_hash(found: Any) -> str:
    """Of the file that a class stands in, without its comments; empty where it stands in none."""
    try:
        source = inspect.getsourcefile(found)
    except TypeError:  # built in
        source = None
    if source is None:
        return ""
    tree = ast.dump(ast.parse(Path(source).read_text(encoding="utf-8")))
    return hashlib.sha256(tree.encode()).hexdigest()[:16]
