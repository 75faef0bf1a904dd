"""What several commands need: the scenario and folder that the flags name, and where their runs are made."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kit.named_files import named_files
from scenarios.commands.outputs import require_apart, require_beside
from scenarios.files.reading import load_scenario
from scenarios.files.spec import Scenario
from scenarios.tasks.asked import Asked, run_folder_of
from scenarios.tasks.asked import spread as spread_over
from scenarios.terminal.output import Output

if TYPE_CHECKING:
    from kit.parallel import Jobs


def read_scenario(arguments: Namespace) -> Scenario:
    """The scenario; raises `InputError` also where a result would replace a file that it names."""
    scenario = load_scenario(arguments.scenario)
    require_apart(arguments, (file.path for file in named_files(scenario)))
    return scenario


def asked_of(arguments: Namespace, output: Output) -> Asked:
    """The scenario, and its run folder; the one by default must not be another scenario's.

    Raises:
        InputError: something is wrong with the one or the other.
    """
    scenario = read_scenario(arguments)
    folder = run_folder_of(scenario, arguments.scenario, arguments.out)
    require_beside(arguments, folder)
    return Asked(arguments.scenario, scenario, folder, output)


def spread(arguments: Namespace, own: Callable[[], Jobs]) -> AbstractContextManager[Jobs]:
    """Where a command's runs are made: on the cluster that `--ray` names, or on this machine; raises `InputError`."""
    return spread_over(arguments.ray, getattr(arguments, "jobs", None), own)
