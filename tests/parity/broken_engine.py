"""A process of its own that breaks one line of the compiled engine and looks for a scenario that notices.

`python -m tests.parity.broken_engine MODULE OLD NEW FIRST` replaces OLD, which must stand once in the module's
source, by NEW as the module is imported; with `SLIMSCHED_JIT=0` the engine then runs in the interpreter. Scenes whose
names begin with FIRST are tried first; `seed N` is the drawn scenario of that seed. It prints the scenario's name and
the first difference; nothing where there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType


class Broken(MetaPathFinder):
    """Finds one module, with a piece of its source replaced."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self.module, self.old, self.new = module, old, new

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self.module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, broken: Broken) -> None:
        super().__init__(fullname, path)
        self._broken = broken

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        found = source.count(self._broken.old)
        if found != 1:
            sys.exit(f"{fullname} has {self._broken.old!r} {found} times: say again what to break")
        return compile(source.replace(self._broken.old, self._broken.new), self.path, "exec")


def main() -> None:
    sys.meta_path.insert(0, Broken(*sys.argv[1:4]))
    from sim.compiled.compiled_simulation import CompiledSimulation
    from tests.parity.compare import compare
    from tests.parity.directed import scenes
    from tests.parity.draws import SeededDraws
    from tests.parity.scenarios import draw_scenario

    first = sys.argv[4]
    tried = [scene.scenario for scene in sorted(scenes(), key=lambda scene: not scene.name.startswith(first))]
    if first.startswith("seed "):
        tried.insert(0, draw_scenario(SeededDraws(int(first.removeprefix("seed "))), first))
    for scenario in tried:
        difference = compare(scenario, CompiledSimulation)
        if difference is not None:
            print(f"{scenario.name}: {difference}")
            return


if __name__ == "__main__":
    main()
