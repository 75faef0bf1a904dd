"""All commands by name; it opens none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("starting.init", "Write a first scenario."),
    "list": ("starting.names", "List scenarios, routers, profiles, devices and runs."),
    "run": ("running.run", "Run the whole workflow, from the network to the report."),
    "calibrate": ("profiles.calibrate", "Measure devices, and write their profiles."),
    "profile show": ("profiles.show_profile", "Print, check and plot a profile."),
    "profile synth": ("profiles.synthesize_profile", "Make a profile of a GPU from its data sheet."),
    "profile check": ("profiles.check_profile", "Measure a device again, and check its profile."),
    "model train": ("models.train_model", "Train the scenario's network, and fill its accuracy table."),
    "model check": ("models.check_model", "Check that a network keeps the rules of slimmable networks."),
    "model add": ("models.add_models", "Make a family of trained networks, and show which to run where."),
    "model join": (
        "models.join_models",
        "Put several trained networks into one file, to serve them on one cluster.",
    ),
    "model slim": ("models.slim_model", "Make an ordinary trained network slimmable."),
    "train": ("running.train", "Train routers in simulation."),
    "simulate": ("simulating.simulate", "Simulate one run with one router."),
    "compare": ("simulating.compare", "Compare routers in simulation, on the same arrivals."),
    "suite": ("simulating.suite", "Compare routers with the published ones over the suite, at equal accuracy."),
    "plan": (
        "simulating.plan",
        "Show what to run where, its capacity, and the effect of more load or a lost device.",
    ),
    "validate": ("running.validate", "Compare simulation with runs on real processes."),
    "serve": ("serving.serve", "Serve clients over HTTP."),
    "load": ("serving.generate_load", "Send images to a server as clients do, and show the latencies."),
    "capacity": ("simulating.capacity", "Find the largest rate that a router sustains, in simulation."),
    "bound": ("simulating.bound", "Compute a bound that no router can beat."),
    "cluster check": ("serving.check_cluster", "Check every host of a scenario before a run."),
    "cluster steer": ("serving.steer", "Drain servers, or change goals, router or model, during a run."),
    "replay": ("running.replay", "Check that fresh cores repeat the decisions in a run's logs."),
    "report": ("running.report", "Write a run folder's report.html again."),
    "jobs import": ("jobs.verbs.import_log", "Make a trace of a cluster's log, and report what is left out."),
    "jobs inspect": (
        "jobs.verbs.inspect",
        "Show a trace's load, sizes, run times, users, waits, predictability.",
    ),
    "jobs generate": ("jobs.verbs.generate", "Draw a random trace with given load, sizes and run times."),
    "jobs init": (
        "jobs.verbs.init",
        "Write a first scenario for a trace and a cluster, with a comment at each choice.",
    ),
    "jobs compare": (
        "jobs.verbs.compare",
        "Compare policies on the same trace: waits, fairness, the winner, distance from the bound.",
    ),
    "jobs whatif": ("jobs.verbs.whatif", "Compare the same jobs before and after a change of the scenario."),
    "jobs capacity": (
        "jobs.verbs.capacity",
        "Find the largest load, or the fewest nodes, at which waits stay below a limit.",
    ),
    "jobs advise": (
        "jobs.verbs.advise",
        "Advise a running Slurm: another order of waiting jobs, and its effect.",
    ),
    "jobs bound": (
        "jobs.verbs.bound",
        "Compute a bound that no policy can beat, and the price of a GPU-hour over time.",
    ),
}
"""Each command's function in `slimsched`, and the first line of its docstring: the list of all opens none of them."""
JOBS: Final = "Training jobs: read a cluster's log, look at a trace, compare policies."
RESUMING: Final = ("run", "train", "compare", "validate", "calibrate", "model train", "jobs compare")
"""They keep what is finished."""
