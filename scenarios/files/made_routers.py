"""Routers that a scenario's own run makes: what they are called, and their files. It opens nothing that is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.registry import TUNED

PPO: Final = "ppo"  # the paper's router, which a scenario's run trains; in a file of numbers: what it learned
TUNED_HERE: Final = "tuned:"  # before the kind of a rule: the one that the run tunes
MADE_KINDS: Final = (PPO, *TUNED)  # of all that a run can make
ROUTER_SUFFIX: Final = ".safetensors"
RULE_SUFFIX: Final = ".rule.yaml"
KEEPING: Final = "-keeping"  # behind the name of a kind with `control`, as a plan tries it


def made_kind(name: str) -> str | None:
    """Return the kind of a router that a scenario's own run makes: `ppo`, or the kind of a tuned rule; or None."""
    if name == PPO:
        return name
    return name.removeprefix(TUNED_HERE) if name.startswith(TUNED_HERE) else None


def made_name(kind: str) -> str:
    """Return a scenario's name of the router of that kind which its run makes."""
    return kind if kind == PPO else f"{TUNED_HERE}{kind}"


def made_kinds(routers: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds among them that the run makes, each once."""
    return tuple(dict.fromkeys(kind for name in routers if (kind := made_kind(name)) is not None))


def made_file(kind: str) -> str:
    """Return a run folder's name of the router of that kind which it made."""
    return f"{kind}{ROUTER_SUFFIX if kind == PPO else RULE_SUFFIX}"


def planned_file(name: str) -> str:
    """Return a run folder's name of the rule that a plan recommends."""
    return f"{name}{RULE_SUFFIX}"


def score_file(kind: str) -> str:
    """Return a run folder's name of that router's score."""
    return f"score-{kind}.json"


def training_file(kind: str) -> str:
    """Return a run folder's name of the record of its training, step by step."""
    return f"training-{kind}.json"
