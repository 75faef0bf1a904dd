"""Training runs for routers learned in simulation, their scores, and router files of what another library has learned.

`episode` returns the runs on which `scenarios.learn.ppo` trains.

`score_router` scores a router on both engines, on a run that training has not seen.

`write_router` writes the file of a router that another library has learned on `SlimCluster-v0`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from kit import checkpoint
from kit.errors import InputError, WorkError
from kit.files import writable_file
from kit.random_streams import derived_seed, stream
from policies.interfaces import RoutingPolicy
from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import RELU, TANH, PolicySpec
from policies.run_records import RunRecord
from scenarios.experiment.resolved_scenario import Experiment
from scenarios.experiment.workloads import TraceSlice
from scenarios.files.bundled_files import ROUTER_SUFFIX
from scenarios.files.scenario_keys import Scenario
from scenarios.metrics.run_result import Score, Simulator
from scenarios.runs.simulated_runs import run_simulation
from sim.simulated_cluster import RunSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


_AS_IT_IS: Final = (1.0, 1.0)  # what the floor is to be kept at
SCORED_S = 60.0  # of arrivals after the warm-up, at most


def episode(experiment: Experiment, seed: int, load_range: tuple[float, float]) -> RunSpec:
    """Return a run to train on, at a rate drawn from a range, in times of the workload's own.

    It is cut at its horizon, so that an episode that blew up costs no more than any other.
    """
    training = experiment.scenario.training
    scale = float(stream(seed, "load").uniform(*load_range))
    return experiment.run_spec(
        seed, duration_s=training.horizon_s, scale=scale, detail=False, end="cut", trace_slice=TraceSlice()
    )


def require_trainable(experiment: Experiment) -> None:
    """Raise `InputError` if the compiled engine can't train for an experiment, or score what was learned."""
    from sim.compiled import UnsupportedScenario

    try:
        for run in (episode(experiment, 0, _AS_IT_IS), experiment.run_spec(0, duration_s=_scored_s(experiment))):
            experiment.simulation(run, "compiled")
    except UnsupportedScenario as error:
        problem = f"routers are trained on the compiled engine, which can't do {error.feature}"
        remedy = "shorten training.horizon_s, or train by yourself on the environment SlimCluster-v0"
        raise InputError(experiment.scenario.name, "", f"{problem}; {remedy}") from None


def require_one_class(scenario: Scenario) -> None:
    """Raise `InputError` if requests have classes: a router learned by gradients does not observe them."""
    if scenario.classes:
        problem = "ppo is trained without classes of requests; take compass, or tuned:compass"
        raise InputError(scenario.name, "classes", problem)


def spec_of(experiment: Experiment) -> PolicySpec:
    """Return the shape of a router that is learned for an experiment."""
    limits_w = tuple(profile.power.cap_w for profile in experiment.profiles)
    return PolicySpec.of(
        experiment.cluster.router, limits_w, experiment.device_names, experiment.scenario.training.batching_delays_s
    )


# --------------------------------------------------------------------------------------------------------- its score


def score_router(experiment: Experiment, make: Callable[[], RoutingPolicy], name: str, seed: int) -> Score:
    """Score a router on both engines.

    Args:
        make: gives a fresh router for each run, because one may remember what it has seen.
        name: of the router; its run draws by it, too.
        seed: of the training.

    Raises:
        WorkError: the engines disagree, so that what was learned may be of another experiment.
    """
    held_out = derived_seed(seed, f"{name}:held-out")
    engines: tuple[Simulator, ...] = ("simpy", "compiled")
    (result, record), (_, compiled) = (
        run_simulation(experiment, make(), name, held_out, duration_s=_scored_s(experiment), engine=engine)
        for engine in engines
    )
    names = [field.name for field in fields(RunRecord)]
    if differ := [name for name in names if getattr(record, name) != getattr(compiled, name)]:
        problem = f"the engines disagree about the trained router's run ({', '.join(differ)}): this is a bug"
        raise WorkError(f"{problem}, please report it")
    rewards = [micro_batch.reward.total for micro_batch in record.micro_batches]
    return Score(
        schema="slimsched.score/1",
        router=name,
        seed=held_out,
        decisions=record.decisions,
        reward=float(np.mean(rewards)) if rewards else None,
        shares=result["shares"],
        latency_s=result["latency_s"]["mean"],
        accuracy=result["accuracy"],
        signatures=result["signatures"],
    )


def _scored_s(experiment: Experiment) -> float:
    return min(experiment.scenario.duration_s, experiment.scenario.warmup_s + SCORED_S)


Layers = Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]
"""Of a network, from its input: weights (outputs, inputs) and biases (outputs,), as `torch.nn.Linear` has them."""
PROVED: Final = 256  # observations on which a module and its file are held against each other
NEAR: Final = 1e-3  # of the largest logit: float32 adds in another order


def write_router(experiment: Experiment, layers: Layers | nn.Sequential, path: Path, deterministic: bool) -> None:
    """Write a router's file for an experiment; `slimsched.save_router` describes what it takes.

    Raises:
        InputError: the network is not one for this experiment, or the file there is not a router.
    """
    if path.suffix != ROUTER_SUFFIX:
        raise InputError("out", "", f"{path}: the file of a learned router ends with {ROUTER_SUFFIX}")
    spec = spec_of(experiment)
    if isinstance(layers, Sequence):
        router = PPORouter(spec, _tensors(layers, spec), deterministic=deterministic)
    else:
        router = _of_module(layers, spec, deterministic)
    if writable_file(path).exists():
        try:
            checkpoint.read(path)
        except InputError:
            raise InputError("out", "", f"{path} exists, and is not a router; name another file") from None
    router.save(path)


# ------------------------------------------------------------------------------------------------------- of a module


def _of_module(layers: nn.Sequential, spec: PolicySpec, deterministic: bool) -> PPORouter:
    """Return the router of a `torch.nn.Sequential`, whose own logits it must have.

    Raises:
        InputError: it is another module, or computes what a router's file can't hold.
    """
    import torch
    from torch import nn

    if not isinstance(layers, nn.Sequential):
        problem = f"a {type(layers).__name__}: give the torch.nn.Sequential that makes logits of an observation"
        raise InputError("layers", "", f"{problem}, or (weights, biases) of each layer")
    module = deepcopy(layers).cpu().double().eval()
    kinds, parts = {nn.Tanh: TANH, nn.ReLU: RELU}, list(_flat(module))
    activations = {kinds[type(part)] for part in parts if type(part) in kinds}
    if len(activations) > 1:
        raise InputError("layers", "", "have Tanh and ReLU; a router has one of them after all layers but the last")
    observations = torch.as_tensor(_observations(spec), dtype=torch.float64)
    try:
        with torch.no_grad():
            folded = list(_folded(parts, tuple(kinds), observations.shape[1]))
            expected = module(observations).numpy()
    except (RuntimeError, TypeError, ValueError) as error:
        first = next((part.in_features for part in parts if isinstance(part, nn.Linear)), observations.shape[1])
        reason = (
            f"{str(error).splitlines()[0]:.200}"
            if first == observations.shape[1]
            else f"the first Linear takes {first}"
        )
        raise InputError(
            "layers", "", f"do not take observations of {observations.shape[1]} numbers: {reason}"
        ) from None
    spec = replace(spec, activation=next(iter(activations), TANH))
    router = PPORouter(spec, _tensors(folded, spec), deterministic=deterministic)
    logits = np.array([router.logits(each.numpy().astype(np.float32)) for each in observations])
    difference = float(np.abs(logits - expected).max())
    if not difference <= NEAR * max(1.0, float(np.abs(expected).max())):
        names = ", ".join(dict.fromkeys(type(part).__name__ for part in parts if type(part) not in (nn.Linear, *kinds)))
        problem = f"give other logits than a router of them, by up to {difference:.3g}"
        remedy = "a router has Linear, one of Tanh and ReLU after each but the last, and besides what is affine"
        raise InputError("layers", "", f"{problem}; {remedy} (input scaling, say); look at: {names or 'forward hooks'}")
    return router


def _flat(module: nn.Sequential) -> Iterator[nn.Module]:
    from torch import nn

    for part in module:
        yield from _flat(part) if isinstance(part, nn.Sequential) else (part,)


def _folded(parts: Sequence[nn.Module], kinds: tuple[type, ...], inputs: int) -> Iterator[tuple[Any, Any]]:
    """Fold modules between two activations into one layer, found by their outputs for zero and for each input alone."""
    import torch

    def layer(chain: Sequence[nn.Module], inputs: int) -> tuple[Tensor, Tensor]:
        values = torch.cat([torch.zeros(1, inputs), torch.eye(inputs)]).double()
        for part in chain:
            values = part(values)
        return (values[1:] - values[0]).T, values[0]

    chain = list[Any]()
    for part in parts:
        if isinstance(part, kinds):
            yield (folded := layer(chain, inputs))
            chain, inputs = [], len(folded[1])
        else:
            chain.append(part)
    yield layer(chain, inputs)


def _observations(spec: PolicySpec) -> npt.NDArray[np.float32]:
    """Return observations of idle and of full clusters (`policies.observation`), the same ones every time."""
    rng = np.random.default_rng(0)
    counts = np.log1p(10.0 ** rng.uniform(-1, 5, (PROVED, spec.observation.size)))
    shares = rng.random((PROVED, spec.observation.size))
    is_share = [index >= 2 and (index - 2) % 3 > 0 for index in range(spec.observation.size)]
    return np.where(is_share, shares, counts).astype(np.float32)


# --------------------------------------------------------------------------------------------------------- of layers


def _tensors(layers: Layers, spec: PolicySpec) -> checkpoint.Tensors:
    """Return tensors by the names of `PolicyNetwork`, as float32."""
    weights = [_plain(weight) for weight, _ in layers]
    biases = [_plain(bias) for _, bias in layers]
    sizes = [spec.observation.size, *(bias.size for bias in biases[:-1]), sum(spec.head_sizes)]
    expected = [((fan_out, fan_in), (fan_out,)) for fan_in, fan_out in pairwise(sizes)]
    if [(weight.shape, bias.shape) for weight, bias in zip(weights, biases, strict=True)] != expected:
        shapes = ", ".join(f"{weight.shape} and {bias.shape}" for weight, bias in zip(weights, biases, strict=True))
        outputs = f"{sizes[-1]} outputs ({'+'.join(map(str, spec.head_sizes))})"
        shapes_expected = (
            f"the first takes {sizes[0]} inputs, the last gives {outputs}, each takes what the one before gives"
        )
        problem = f"weights and biases of shapes {shapes or 'none'}; {shapes_expected}, weights are (outputs, inputs)"
        raise InputError("layers", "", problem)
    if not all((np.abs(each) <= checkpoint.MOST).all() for each in (*weights, *biases)):
        raise InputError("layers", "", f"hold numbers that are not finite, or beyond {checkpoint.MOST:g}; train again")
    names = [*(f"trunk.{index}" for index in range(len(layers) - 1)), "heads"]
    return {
        f"{name}.{part}": value
        for name, *values in zip(names, weights, biases, strict=True)
        for part, value in zip(("weight", "bias"), values, strict=True)
    }


def _plain(values: Any) -> npt.NDArray[np.float32]:
    """Return a tensor's present values, detached from learning."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float32)
