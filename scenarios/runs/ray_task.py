"""What runs on a host of a Ray cluster for `ray_pool`: a task, and what the host says of itself.

Each of its processes keeps what all tasks have in common, and first looks whether it computes as its asker does.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import numpy as np

from hw.version import code_here
from kit.chance import stream
from kit.errors import InputError, WorkError
from scenarios.runs.provenance import PRODUCT, version_of

ALIKE: Final = (PRODUCT, "ray", "numpy", "numba", "scipy", "simpy", "pydantic")  # what computes, and what travels
ARITHMETIC: Final = "the last digits of sin, exp and so on"

Facts = Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """What the tasks of one piece of work have in common.

    Attributes:
        key: tells it from others.
        at: where Ray keeps it (in a list, or Ray would fetch it for every task): pickled, work and content.
    """

    key: str
    at: list[Any]


@dataclass(frozen=True)
class Refused:
    """What a host finds wrong with what it was given, which was right where it came from; `node`: Ray's name of it."""

    node: str
    error: InputError


@cache
def facts_here() -> Facts:
    """What must be the same on all hosts, so that they compute the same to the last bit."""
    versions = {name: str(version_of(name)) for name in ALIKE}
    python = platform.python_version()
    return {"Python": python, **versions, "code": code_here(), ARITHMETIC: _arithmetic()}


def _arithmetic() -> str:
    """Names how elementary functions round here: that is up to the processor and the C library."""
    numbers = stream(0, "arithmetic").uniform(0.01, 20.0, 2000)
    made = [function(numbers) for function in (np.sin, np.exp, np.log, np.log10, np.tanh, np.sqrt)]
    functions: tuple[Callable[[float], float], ...] = (math.sin, math.exp, math.log, math.lgamma, math.expm1)
    made += [np.array([function(number) for number in numbers.tolist()]) for function in functions]
    return hashlib.sha256(b"".join(each.tobytes() for each in made)).hexdigest()[:16]


def difference(theirs: Facts, ours: Facts) -> str | None:
    """What a host has otherwise, in words; None where it is as this one."""
    names = [name for name in ours if theirs.get(name) != ours[name]]
    if len(names) > 1 and PRODUCT in names:  # then of course
        names = [name for name in names if name != "code"]
    there, here = (", ".join(f"{name} {facts.get(name, 'none')}" for name in names) for facts in (theirs, ours))
    return f"has {there}; here: {here}" if names else None


def facts() -> Facts:
    """Of the host on which it is called."""
    return facts_here()


_KEPT: dict[str, tuple[Any, Any]] = {}


def do(given: Given, wanted: Facts, task: Any) -> Any:
    """One task; what is wrong with its input here is returned, with where that is."""
    try:
        work, common = _kept(given, wanted)
        return work(common, task)
    except InputError as error:
        return Refused(_node(), error)


def prepare(given: Given, wanted: Facts, preparing: Callable[[Any], object]) -> Any:
    """What has to be done once on a host."""
    try:
        preparing(_kept(given, wanted)[1])
    except InputError as error:
        return Refused(_node(), error)
    return None


def _kept(given: Given, wanted: Facts) -> tuple[Any, Any]:
    """Work and content; raises `WorkError` on a host that has come later, and has other versions."""
    if given.key not in _KEPT:
        if (problem := difference(facts_here(), wanted)) is not None:
            raise WorkError(f"host {platform.node()}, which joined meanwhile, {problem}; install the same on both")
        import ray  # it is running

        _KEPT.clear()
        _KEPT[given.key] = ForkingPickler.loads(ray.get(given.at[0]))
    return _KEPT[given.key]


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
