"""What a router may be called: a rule by name, a class of one's own, or a file; what endings mean, what files hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from policies import strict
from policies.errors import InputError
from policies.names import parse_router_name
from policies.rules.specs import RuleSpec, rule_from_dict
from scenarios.files.documents import read_text, write_text


def write_rule(path: Path, rule: RuleSpec) -> None:
    """A rule's file (`*.rule.yaml`), which `scenarios.files.router_names.read_rule` reads."""
    write_text(path, strict.dump(rule.to_dict()))


TRAINED_ROUTER = "ppo"  # in a scenario: the router that this run trains
ROUTER_SUFFIX = ".safetensors"
RULE_SUFFIX = ".rule.yaml"


def is_router_file(name: str) -> bool:
    """Whether a router's name is that of a file: a trained one, or a rule."""
    return name.endswith((ROUTER_SUFFIX, RULE_SUFFIX))


def router_file(name: str) -> Path | None:
    """The file that a router's name stands for; None for a rule by name, or a class."""
    return Path(name) if is_router_file(name) else None


def read_rule(path: Path, source: str | None = None, key: str = "") -> RuleSpec:
    """A rule from its file (`*.rule.yaml`).

    Raises:
        InputError: it is missing or broken, or a key or value in it is none of a rule.
    """
    return rule_from_dict(strict.mapping(read_text(path, source, key), str(path)), str(path))


def check_router(name: str, source: str, key: str = "") -> None:
    """Whether a name can be a router: raises `InputError` for an unknown one, or for a file that is not there."""
    if name == TRAINED_ROUTER:
        return
    if name.endswith(ROUTER_SUFFIX):
        if not Path(name).is_file():
            raise InputError(source, key, f"{name}: no such router file; `slimsched train` writes one")
        return
    if name.endswith(RULE_SUFFIX):
        read_rule(Path(name), source, key)
        return
    try:
        parse_router_name(name, source, key)
    except InputError as error:
        raise InputError(source, key, f"{error.problem}, or `ppo`: the router that the run trains") from None


def require_distinct_names(routers: Sequence[str]) -> None:
    """Raises `InputError` where two routers would be one row of a table."""
    names: dict[str, str] = {}
    for router in routers:
        other = names.setdefault(display_name(router), router)
        if other != router:
            raise InputError(
                "routers", "", f"{other} and {router} would both be called {display_name(router)!r}; rename one file"
            )


def display_name(router: str) -> str:
    """A router's name in results: of a file no folder and no ending, so that no path of a machine is in a result."""
    for suffix in (ROUTER_SUFFIX, RULE_SUFFIX):
        if router.endswith(suffix):
            return Path(router).name.removesuffix(suffix)
    return router
