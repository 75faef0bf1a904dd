"""One decision of a plan, for routers outside of the compiled engine."""

from __future__ import annotations

from kit.jit import Ints, entry
from policies.compiled.layout import Plan, Sheet
from policies.compiled.rules import choose


@entry
def choose_once(plan: Ints, sheet: Ints) -> None:
    """Decide about a sheet; the choice stands in the plan."""
    choose(Plan(plan), Sheet(sheet))
