"""One device measured, with words before and progress meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from calibrate.calibration import Calibration
from calibrate.plan import Plan
from calibrate.probe import device_name
from calibrate.session import Listener, calibrate
from hw.emulated import EmulatedDevice
from policies.chance import derived_seed
from scenarios.executors.announce import announcement, require_budget
from scenarios.terminal.output import Say
from scenarios.terminal.progress import Progress
from sim.profile import Profile


def calibrate_device(
    wanted: Calibration,
    *,
    quiet: bool,
    say: Say = lambda _: None,
    budget_key: tuple[str, str] = ("--budget", ""),
    reserved_s: float = 0.0,
) -> Profile:
    """Measure one device; its log lets an interrupted calibration go on.

    Args:
        wanted: its seed is the run's; the calibration's own comes from it and from the name.
        say: told, before anything is measured, what will be done and what it costs.
        budget_key: who gave the budget, for the message that it is too small.
        reserved_s: what was taken off the budget that the user gave, to be told with it.
    """
    name, log_path, kind = wanted.name, wanted.log_path, wanted.kind
    device = (
        f"emulated {wanted.device.label}" if isinstance(wanted.device, EmulatedDevice) else device_name(wanted.device)
    )
    progress = Progress(f"calibrate {name}", None, unit="point", quiet=quiet)

    def announce(plan: Plan) -> None:
        require_budget(plan, wanted.budget_s, log_path, *budget_key, kind)
        told = {"name": name, "device": device, "kind": kind}
        say(announcement(plan, **told, budget_s=wanted.budget_s, log_path=log_path, reserved_s=reserved_s))
        progress.note = f" ({sum(planned.required for planned in plan.steps)} in any case)"
        begun.enter_context(progress)

    listener = Listener(
        on_warning=lambda text: say(f"calibrate {name}: {text}"),
        on_plan=announce,
        on_progress=lambda state: progress.set(state.done, state.total, state.left_s),
    )
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as begun:
        return calibrate(replace(wanted, seed=derived_seed(wanted.seed, f"calibrate:{name}")), listener)
