"""The pages of scenarios' keys, generated from the schemas so that they can't be wrong.

`python -m benchmarks.study.keys_page` regenerates them.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from jobs.job_scenario_keys import JobsScenario, PolicyFile
from scenarios.files.scenario_keys import Scenario
from scenarios.learn.drawn_clusters import Clusters

_HEAD = """# The keys of a scenario file

Made from `scenarios/files/scenario_keys.py` by `python -m benchmarks.study.keys_page`: edit the descriptions there.

A scenario is a YAML file. In parentheses are a key's type and its default. Unknown keys are refused. Paths are
relative to its folder. Durations are seconds, as a number or as `45s`, `5m`, `1h`, `2d`, `200ms`.
"""
_JOBS_HEAD = """# The keys of a scenario of training jobs

Made from `jobs/job_scenario_keys.py` by `python -m benchmarks.study.keys_page`: edit descriptions there.

`slimsched jobs init TRACE --nodes 64x8` writes a first one. Unknown keys are refused. Paths are relative to its folder.
Times are seconds, as a number or as `45s`, `5m`, `1h`, `2d`.
"""
_POLICY_HEAD = """# The keys of a policy's file

`NAME.jobpolicy.yaml`, for policies without a name: other numbers of preemption, other combinations.
"""
_CLUSTERS_HEAD = """# The keys of a file of drawn clusters

Made from `scenarios/learn/drawn_clusters.py` by `python -m benchmarks.study.keys_page`: edit the descriptions there.

`slimsched train --over FILE` trains [Compass](routers.md#compass) over random clusters, such as the bundled
`scenarios/data/clusters.yaml`. Items of a list are equally likely; name one twice to double its weight. A pair of
numbers is a range, log-uniform, except `load`: uniform.
"""
_ENDLESS = 1e6  # a bound from there on only keeps arithmetic finite
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def pages() -> dict[str, str]:
    """Return each page of `docs`: one list a section, in the file's order."""
    jobs = f"{_page(JobsScenario, _JOBS_HEAD)}\n{_page(PolicyFile, _POLICY_HEAD)}"
    clusters = _page(Clusters, _CLUSTERS_HEAD)
    return {"scenario-keys.md": _page(Scenario, _HEAD), "clusters-keys.md": clusters, "jobs-scenario-keys.md": jobs}


def _page(document: type[BaseModel], head: str) -> str:
    parts = [head]
    shown: dict[type[BaseModel], str] = {}
    for title, model in _sections(document, ""):
        if model in shown:
            parts.append(f"## {title}\n\nThe same keys as {shown[model]}.\n")
            continue
        shown[model] = title
        doc = " ".join((model.__doc__ or "").split())
        rows = [_row(field.alias or name, field) for name, field in model.model_fields.items()]
        parts.append(f"## {title}\n\n{doc}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield f"`{path}`" if path else "The file", model
    for name, field in model.model_fields.items():
        for below in _models(field.annotation):
            kind = below.model_fields.get("kind")
            tags = get_args(kind.annotation) if kind is not None and kind.is_required() else ()
            listed = "[]" if _is_list(field.annotation) else ""
            under = f"{path}.{field.alias or name}" if path else field.alias or name
            title = f"{under}{listed}" + (f" ({tags[0]})" if tags else "")
            yield from _sections(below, title)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the possible sections of a key, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(_is_list(part) for part in get_args(annotation))


def _row(name: str, field: FieldInfo) -> str:
    allowed = _allowed(field.annotation, field.metadata)
    if field.default is None:  # the default shows that null is allowed
        allowed = allowed.replace(" or null", "")
    shown = "; ".join(filter(None, (allowed, _default(field))))
    return f"- `{name}` ({shown}): {field.description or 'which kind this is'}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined:
        return ""
    value = field.default
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    if value == "":
        return "empty"
    return "null" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    bounds = [
        f"{sign}{_number(getattr(rule, name))}"
        for rule in metadata
        for name, sign in _BOUNDS.items()
        if hasattr(rule, name) and getattr(rule, name) < _ENDLESS
    ]
    return " ".join([_type(annotation), ", ".join(bounds)]).rstrip()


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else str(value)


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        rules = [rule for extra in arguments[1:] for rule in getattr(extra, "metadata", [extra])]
        return _allowed(arguments[0], [rule for rule in rules if not isinstance(rule, Discriminator)])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in arguments))
    if origin is tuple:
        items = [part for part in arguments if part is not Ellipsis]
        return f"list: {_type(items[0])}" if Ellipsis in arguments else f"[{', '.join(map(_type, items))}]"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {str: "text", float: "number", int: "integer", bool: "boolean", type(None): "null"}[annotation]


if __name__ == "__main__":
    for name, text in pages().items():
        (Path("docs") / name).write_text(text, encoding="utf-8")
