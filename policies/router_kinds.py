"""All kinds of router with a name: the one list behind names, help, file endings, checks and tuning.

It imports no other module, so that help on the command line is fast: `spec` names the class of a kind's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

COMPASS: Final = "compass"
RANDOM: Final = "random"  # a control for studies, never a recommendation
_SPECS: Final = "policies.rules.rule_params"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterKind:
    """One kind of router.

    Attributes:
        name: name on the command line, in scenarios and in rule files.
        help: a few words on what it does.
        spec: `module:Class` of its parameters (`policies.rules.rule_params.RouterSpec`); called without arguments it
        has
            defaults.
        numbers: the parameter set by numbers after a colon (`ladder:8,32`); empty if none may follow.
        needs_numbers: whether the numbers are required.
        is_placed: whether `@placement` may follow.
        is_rule: whether it has files with its name as ending: a rule's text.
        is_tuned: whether `slimsched train` tunes its parameters.
    """

    name: str
    help: str
    spec: str
    numbers: str = ""
    needs_numbers: bool = False
    is_placed: bool = False
    is_rule: bool = True
    is_tuned: bool = True

    def load(self) -> Any:
        """Return the class of its parameters."""
        module, _, name = self.spec.partition(":")
        return getattr(import_module(module), name)


KINDS: Final[Mapping[str, RouterKind]] = {
    kind.name: kind
    for kind in (
        RouterKind(
            name=RANDOM,
            help="server, width and micro-batch size each at random: the paper's baseline",
            spec=f"{_SPECS}:PaperRandom",
            is_rule=False,
            is_tuned=False,
        ),
        RouterKind(
            name="ladder",
            help="width tuples by load",
            spec=f"{_SPECS}:LadderRule",
            numbers="thresholds",
            is_placed=True,
        ),
        RouterKind(
            name="slackfit",
            help="width and group by slack, after SuperServe",
            spec="policies.rules.published_rules:SlackFitRule",
            is_placed=True,
        ),
        RouterKind(
            name="infaas",
            help="each server one tuple by its load, after INFaaS",
            spec="policies.rules.published_rules:InfaasRule",
            is_placed=True,
        ),
        RouterKind(
            name="milp",
            help="tuples and shares from a mixed integer program, after Proteus",
            spec="policies.rules.proteus:MilpRule",
        ),
        RouterKind(
            name="lookahead",
            help="what ends best over the next few micro-batches, for an accuracy's worth",
            spec="policies.rules.lookahead:LookaheadRule",
        ),
        RouterKind(
            name=COMPASS,
            help="server and width at once, with numbers for any cluster",
            spec="policies.rules.compass:CompassRule",
        ),
        RouterKind(
            name="fixed",
            help="one width tuple for every request",
            spec=f"{_SPECS}:FixedRule",
            numbers="tuple",
            needs_numbers=True,
            is_placed=True,
        ),
    )
}
TUNED: Final = tuple(kind.name for kind in KINDS.values() if kind.is_tuned)
CONTROLLED: Final = ("ladder", "lookahead", COMPASS)  # kinds with a dial, whose files may have `control`
RULES: Final = tuple(kind.name for kind in KINDS.values() if kind.is_rule)  # each has a rule file
BASELINES: Final = tuple(kind for kind in RULES if kind != COMPASS)  # the references for Compass in a study
