"""What every fuzzed call finds: a small whole scenario with all that it can name, every file valid."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from hw.networks.registry import save_model
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
from scenarios.learn.ppo import PolicyNetwork
from scenarios.world.materials import load_world
from tests.hw.worlds import tiny_model
from tests.scenarios.files import write_scenario

TRACE = "time_s,size\n" + "".join(f"{0.01 * (7 * i % 13 + 13 * i):.3f},{i % 5}\n" for i in range(7))
DATES = "time_s,size\n" + "".join(f"2024-02-2{6 + i}T12:00:0{i}+00:00,{i}\n" for i in range(4))
RATES = "minute,count\n" + "".join(f"{i},{10 + 3 * i % 7}\n" for i in range(12))
RULES = {
    "ladder": "schema: slimsched.rule/1\nkind: ladder\nplacement: sticky\ngroup: 4\n"
    "rungs: [[1.0, 1.0], [1.0, 0.5], [0.5, 0.5]]\nthresholds: [4, 16.5]\nmade_by: {command: by hand, seed: 7}\n",
    "fixed": "schema: slimsched.rule/1\nkind: fixed\nplacement: jsq\ngroup: largest\ntuple: [0.5, 1.0]\n",
    "infaas": "schema: slimsched.rule/1\nkind: infaas\nplacement: sticky\ngroup: largest\n"
    "floor: 0.7\ntarget_s: 0.02\nup: 0.04\ndown: 0.46\n",
    "compass": "schema: slimsched.rule/1\nkind: compass\ngroup: largest\nnumbers: {level: -5.5, rise: 1.2}\n",
}


@cache
def base() -> dict[str, bytes]:
    """By name."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        scenario = write_scenario(folder)
        texts = {"trace.csv": TRACE, "dates.csv": DATES, "rates.csv": RATES}
        for name, content in (*texts.items(), *((f"{kind}.rule.yaml", rule) for kind, rule in RULES.items())):
            (folder / name).write_text(content)
        world = load_world(scenario)
        limits_w = tuple(profile.power.cap_w for profile in world.profiles)
        spec = PolicySpec.of(world.cluster.router, limits_w, world.device_names)
        weights = {name: tensor.numpy() for name, tensor in PolicyNetwork(spec, (8,), 0).state_dict().items()}
        PPORouter(spec, weights).save(folder / "ppo.safetensors")
        save_model(folder / "model.safetensors", tiny_model(), "tiny", {})
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
