"""What was accepted is written out again and reads the same: for any text of a scenario, a profile or a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kit import strict
from kit.errors import InputError
from policies.router_names import rule_from_dict
from scenarios.files.scenario_keys import Scenario
from sim.device_profile import Profile

SOURCE = "any.yaml"
READ: Mapping[str, Callable[[str], Any]] = {
    "scenario": lambda text: strict.parse(Scenario, text, SOURCE),
    "profile": lambda text: Profile.from_yaml(text, SOURCE),
    "rule": lambda text: rule_from_dict(strict.mapping(text, SOURCE), SOURCE),
}
WRITE: Mapping[str, Callable[[Any], str]] = {
    "scenario": Scenario.to_yaml,
    "profile": Profile.to_yaml,
    "rule": lambda rule: strict.dump(rule.to_dict()),
}


def assert_same_again(kind: str, text: str) -> bool:
    """Whether a text is accepted; raises `AssertionError` where what is written out of it is another document.

    Anything but `InputError` that the reader raises comes through.
    """
    try:
        found = READ[kind](text)
    except InputError:
        return False
    written = WRITE[kind](found)
    assert READ[kind](written) == found, f"written out as another {kind}:\n{written}"
    assert WRITE[kind](READ[kind](written)) == written
    return True
