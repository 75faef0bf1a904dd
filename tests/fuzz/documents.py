"""Documents from their model alone: any keys that a scenario may have, with values at and beyond their limits."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel

NAMES = ("fast", "slow", "fast", "slow", "a-b")
FILES = {
    "profile": ("fast.yaml", "slow.yaml", "a100", "t4", "no.yaml"),
    "file": ("trace.csv", "rates.csv", "dates.csv"),
    "tuning_file": ("rates.csv", "trace.csv"),
    "accuracy": ("accuracy.json",),
    "checkpoint": ("model.safetensors", "ppo.safetensors"),
    "routers": ("random", "jsq", "ppo", "sticky", "ladder.rule.yaml", "compass.rule.yaml", "fixed:0.5,1", "milp"),
    "column": ("count", "minute"),
    "time_column": ("time_s", "size"),
    "network": ("digits", "a:B"),
    "dataset": ("digits", "folder"),
}
NUMBERS = (1, 2, 3, 4, 6, 8, 0, 1, 2, 3, 5, 7, 16, 32, 100, 1000, 2**31, 2**53, 2**63, -1)
REALS = (
    0.1,
    0.2,
    0.25,
    0.3,
    0.4,
    0.9,
    0.0,
    1e-9,
    1e-6,
    1e-3,
    0.01,
    0.05,
    0.1,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    4.0,
    10.0,
    100.0,
    1e3,
    1e7,
    1e12,
    -1.0,
)


def documents(model: type[BaseModel], keep: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Of a model; what is kept is mostly left as it is."""
    return _model(model).flatmap(lambda found: st.just({**keep, **found}))


def _model(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def found(draw: st.DrawFn) -> dict[str, Any]:
        raw = {}
        for name, field in model.model_fields.items():
            if field.is_required() or draw(st.integers(0, 5)) == 5:
                raw[field.alias or name] = draw(_value(field.annotation, name))
        return raw

    return found()


def _value(annotation: Any, name: str) -> st.SearchStrategy[Any]:
    """Mostly of the type; now and then of none."""
    return st.integers(0, 40).flatmap(lambda chance: _odd if chance == 40 else _typed(annotation, name))


_odd: st.SearchStrategy[Any] = st.sampled_from(
    (None, True, "", "x", -1, 1e308, [], {}, [[]], {"a": 1}, "1e400", float("inf"), float("nan"))
)


def _typed(annotation: Any, name: str) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _typed(arguments[0], name)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.sampled_from([each for each in arguments if each is not NoneType]).flatmap(
            lambda each: _value(each, name)
        )
    if origin is tuple:
        inner = _value(arguments[0], name)
        if arguments[-1] is Ellipsis:
            return st.lists(inner, max_size=3)
        return st.tuples(*(_value(each, name) for each in arguments)).map(list)
    if origin is dict:
        return st.just({})
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation)
    plain = {bool: st.booleans(), int: st.sampled_from(NUMBERS), float: st.sampled_from(REALS)}
    return plain.get(annotation, st.sampled_from(FILES.get(name, NAMES)))
