"""Faults put back into the product's code, one at a time, to see after how many seeds each is found."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType

import yaml


@dataclass(frozen=True)
class Mutation:
    """One place of one module, as it would be with the fault."""

    name: str
    module: str
    right: str
    wrong: str


def mutations() -> list[Mutation]:
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return [Mutation(**{key: value.rstrip("\n") for key, value in entry.items()}) for entry in yaml.safe_load(text)]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with one place changed."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation
        self._code: CodeType

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._mutation.module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        source = spec.loader.get_data(spec.loader.path).decode()
        count = source.count(self._mutation.right)
        assert count == 1, f"{self._mutation.name}: its place is there {count} times"
        changed = source.replace(self._mutation.right, self._mutation.wrong)
        self._code = compile(changed, spec.loader.path, "exec")
        return ModuleSpec(name, self, origin=spec.origin)

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def put_back(mutation: Mutation) -> None:
    """From here on this process has it; its module must not have been imported yet."""
    assert mutation.module not in sys.modules, "imported already"
    sys.meta_path.insert(0, _Finder(mutation))
