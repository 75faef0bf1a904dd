"""A small whole scenario with all that it can name, every file valid."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from hw.networks.network_files import save_model
from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import PolicySpec
from scenarios.experiment.scenario_building import load_experiment
from scenarios.learn.ppo import PolicyNetwork
from tests.hw.tiny import tiny_model
from tests.jobs.experiments import trace_of, write_case
from tests.scenarios.files import write_scenario

MAX_CHARACTERS: Final = 2100  # of a message, the paths in it included
TRACE: Final = "time_s,size\n" + "".join(f"{0.01 * (7 * i % 13 + 13 * i):.3f},{i % 5}\n" for i in range(7))
RATES: Final = "minute,count\n" + "".join(f"{i},{10 + 3 * i % 7}\n" for i in range(12))
SHEET: Final = (
    "schema: slimsched.sheet/1\nname: Own\nmultiprocessors: 40\ntflop_s: 8.1\ngb_s: 320\ngb: 16\ntdp_w: 70\n"
    "memory: GDDR\n"
)
CLUSTERS: Final = (
    "schema: slimsched.clusters/1\nname: few\nprofiles: [t4, a100]\nkinds: [1, 2]\nservers: [2, 3]\n"
    "links: [[10gbe], [{latency_s: 1e-5, bandwidth_bytes_s: 1e9}]]\n"
)
RULES: Final = {
    "ladder": "schema: slimsched.rule/1\nkind: ladder\nplacement: sticky\nmicro_batch_size: 4\n"
    "rungs: [[1.0, 1.0], [1.0, 0.5], [0.5, 0.5]]\nthresholds: [4, 16.5]\nmade_by: {command: by hand, seed: 7}\n",
    "fixed": "schema: slimsched.rule/1\nkind: fixed\nplacement: jsq\nmicro_batch_size: largest\ntuple: [0.5, 1.0]\n",
    "infaas": "schema: slimsched.rule/1\nkind: infaas\nplacement: sticky\nmicro_batch_size: largest\n"
    "floor: 0.7\ntarget_s: 0.02\nup: 0.04\ndown: 0.46\n",
    "compass": "schema: slimsched.rule/1\nkind: compass\nmicro_batch_size: largest\n"
    "numbers: {level: -5.5, rise: 1.2}\n",
}


@cache
def base() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        scenario = write_scenario(folder)
        texts = {"trace.csv": TRACE, "rates.csv": RATES, "sheet.yaml": SHEET, "clusters.yaml": CLUSTERS}
        for name, content in (*texts.items(), *((f"{kind}.rule.yaml", rule) for kind, rule in RULES.items())):
            (folder / name).write_text(content)
        experiment = load_experiment(scenario)
        limits_w = tuple(profile.power.cap_w for profile in experiment.profiles)
        spec = PolicySpec.of(experiment.cluster.router, limits_w, experiment.device_names)
        weights = {name: tensor.numpy() for name, tensor in PolicyNetwork(spec, (8,), 0).state_dict().items()}
        PPORouter(spec, weights).save(folder / "ppo.safetensors")
        save_model(folder / "model.safetensors", tiny_model(), "tiny", {})
        write_case(folder, trace_of([(0.0, 10.0, 1), (1.0, 20.0, 2), (2.0, 5.0, 4)])).rename(folder / "jobs.yaml")
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
