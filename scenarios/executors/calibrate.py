"""One device measured, with words before and progress meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hw.device import DeviceSpec
from hw.networks import ModelFile
from policies.chance import derived_seed
from scenarios.executors.announce import announcement, require_budget
from scenarios.terminal.output import Say
from scenarios.terminal.progress import Progress


def calibrate_device(
    model: ModelFile,
    device: DeviceSpec,
    *,
    peer: DeviceSpec | None,
    budget_s: float,
    batch_limit: int,
    log_path: Path,
    seed: int,
    name: str,
    quiet: bool,
    say: Say = lambda _: None,
    budget_key: tuple[str, str] = ("--budget", ""),
    allow_busy: bool = False,
    reserved_s: float = 0.0,
) -> Any:
    """Measure one device; its log lets an interrupted calibration go on.

    Args:
        say: told, before anything is measured, what will be done and what it costs.
        budget_key: who gave the budget, for the message that it is too small.
        reserved_s: what was taken off the budget that the user gave, to be told with it.
    """
    from calibrate.plan import Plan as Steps
    from calibrate.probe import device_name
    from calibrate.session import calibrate

    progress = Progress(f"calibrate {name}", None, unit="point", quiet=quiet)

    def announce(plan: Steps) -> None:
        require_budget(plan, budget_s, log_path, *budget_key, device.kind)
        told = {"name": name, "device": device_name(device), "kind": device.kind}
        say(announcement(plan, **told, budget_s=budget_s, log_path=log_path, reserved_s=reserved_s))
        progress.note = f" ({sum(planned.required for planned in plan.steps)} in any case)"
        begun.enter_context(progress)

    log_path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as begun:
        return calibrate(
            model,
            device,
            budget_s=budget_s,
            batch_limit=batch_limit,
            log_path=log_path,
            seed=derived_seed(seed, f"calibrate:{name}"),
            peer=peer,
            name=name,
            allow_busy=allow_busy,
            on_warning=lambda text: say(f"calibrate {name}: {text}"),
            on_plan=announce,
            on_progress=lambda state: progress.set(state.done, state.total, state.left_s),
        )
