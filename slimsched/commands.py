"""All commands by name; it opens none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("starting.init", "Write a first scenario of your own."),
    "list": ("starting.names", "List what commands can name; the devices and runs here."),
    "run": ("running.run", "Do the whole job, from the network to the report."),
    "calibrate": ("profiles.calibrate", "Measure how devices run a network, into profiles."),
    "profile show": ("profiles.show_profile", "Print, check and plot a profile."),
    "profile synth": ("profiles.synthesize_profile", "Make a profile of a GPU from its data sheet."),
    "profile check": ("profiles.check_profile", "Measure a device again: does its profile still hold?"),
    "model train": ("models.train_model", "Train the scenario's network, and fill its accuracy table."),
    "model check": ("models.check_model", "Check that a network keeps the rules of slimmable ones."),
    "model add": ("models.add_models", "Make a family of trained networks, and tell which of them to run where."),
    "model join": (
        "models.join_models",
        "Put several trained networks into one file, for one cluster that serves them all.",
    ),
    "model slim": ("models.slim_model", "Make an ordinary trained network slimmable."),
    "train": ("running.train", "Train routers in simulation."),
    "simulate": ("simulating.simulate", "Simulate one run with one router."),
    "compare": ("simulating.compare", "Compare routers in simulation, on the same arrivals."),
    "suite": ("simulating.suite", "Race routers at equal accuracy over the suite, next to the published ones."),
    "plan": (
        "simulating.plan",
        "Tell what to run where, how much that carries, and what comes of more load or a loss.",
    ),
    "validate": ("running.validate", "Compare simulation with runs on real processes."),
    "serve": ("serving.serve", "Serve clients over HTTP."),
    "load": ("serving.generate_load", "Send images to a server as clients would, and tell how long answers took."),
    "capacity": ("simulating.capacity", "Find the largest rate that a router carries, by simulation."),
    "bound": ("simulating.bound", "Compute a bound that no router can beat."),
    "cluster check": ("serving.check_cluster", "Look at every host of a scenario before a run."),
    "cluster steer": ("serving.steer", "Drain servers, or change goals, router or model, while a run goes on."),
    "replay": ("running.replay", "Feed a run's logs to fresh cores: do they decide the same?"),
    "report": ("running.report", "Write a run folder's report.html again."),
    "jobs import": ("jobs.verbs.import_log", "Make a trace of a cluster's log; tells what is left out, and why."),
    "jobs inspect": (
        "jobs.verbs.inspect",
        "Tell what a trace holds: load, sizes, run times, users, waits, predictability.",
    ),
    "jobs generate": ("jobs.verbs.generate", "Draw a trace with a load, sizes and run times that you choose."),
    "jobs init": (
        "jobs.verbs.init",
        "Write a first scenario for a trace and a cluster, with a comment at each choice.",
    ),
    "jobs compare": (
        "jobs.verbs.compare",
        "Compare policies on the same trace: waits, fairness, who wins, how far from the bound.",
    ),
    "jobs whatif": ("jobs.verbs.whatif", "Compare the same jobs before and after a change of the scenario."),
    "jobs capacity": (
        "jobs.verbs.capacity",
        "Find the largest load, or the fewest nodes, at which waits stay below a limit.",
    ),
    "jobs advise": (
        "jobs.verbs.advise",
        "Advise a running Slurm: another order of the jobs that wait, and what it would bring.",
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
