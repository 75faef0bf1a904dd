import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save

from kit import checkpoint
from kit.errors import InputError
from kit.jit import Ints, Reals, Singles, entry, ints, reals, singles
from policies.compiled.plan_layout import bits
from policies.interfaces import RouterConfig
from policies.observation import ObservationSpec
from policies.ppo import kernels
from policies.ppo.kernels import CompiledRouter
from policies.ppo.ppo_router import EndlessRouter, PPORouter
from policies.ppo.spec import RELU, PolicySpec
from policies.vocabulary import BatchingDelay, Choice, ClusterView, HeadKey, ServerView
from tests.policies.cluster_views import WIDTHS, choice_of, server, view
from tests.policies.ppo.problems import (
    BATCHING_DELAYS_S,
    MICRO_BATCH_SIZES,
    masked_softmax,
    network_of,
    spec_of,
    tensors_of,
)

NOISE = 1e-5  # logits of size 10 in float32, through three layers


def any_server(rng: np.random.Generator, valid: bool | None = None) -> ServerView:
    widths = tuple(bool(integer) for integer in rng.integers(0, 2, 4)) if rng.random() < 0.5 else (True,) * 4
    may = bool(rng.random() < 0.7) if valid is None else valid
    return server(
        int(rng.integers(0, 200)),
        valid=may and any(widths),
        widths=widths,
        utilization=float(rng.random()),
        power_w=float(rng.uniform(0, 260)),
    )


def any_view(servers: int, rng: np.random.Generator) -> ClusterView:
    """Random, with at least one valid server."""
    while True:
        found = view(*[any_server(rng) for _ in range(servers)], fifo=int(rng.integers(1, 3000)))
        if any(server.valid for server in found.servers):
            return found


class Torch(NamedTuple):
    """What torch says of a view: each head's logits, masked servers and widths at -inf."""

    network: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    spec: PolicySpec

    def heads(self, seen: ClusterView, chosen: int) -> list[npt.NDArray[np.float64]]:
        with torch.inference_mode():
            logits = self.network(torch.from_numpy(self.spec.observation.observe(seen))[None])[0][0].double().numpy()
        count = self.spec.servers
        server, width, micro_batch_size = logits[:count].copy(), logits[count : count + 4].copy(), logits[count + 4 :]
        server[[not each.valid for each in seen.servers]] = -np.inf
        width[[not may for may in seen.servers[chosen].widths]] = -np.inf
        return [server, width, micro_batch_size]


def router_of(servers: int, deterministic: bool) -> tuple[Torch, PPORouter]:
    spec = spec_of(servers)
    network = network_of(spec, seed=servers)
    return Torch(network, spec), PPORouter(spec, tensors_of(network), deterministic=deterministic)


def rectified_of(servers: int) -> tuple[Torch, PPORouter]:
    """The same with ReLU, of another library's."""
    spec = replace(spec_of(servers), activation=RELU)
    torch.manual_seed(servers)
    last = torch.nn.Linear(16, sum(spec.head_sizes))
    first, second = torch.nn.Linear(spec.observation.size, 32), torch.nn.Linear(32, 16)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)
    named = {"trunk.0": first, "trunk.1": second, "heads": last}
    tensors = {f"{name}.{part}": value.numpy() for name, of in named.items() for part, value in of.state_dict().items()}
    return Torch(lambda seen: (module(seen),), spec), PPORouter(spec, tensors, deterministic=True)


@pytest.mark.parametrize("servers", [1, 3, 10, 64])
@pytest.mark.parametrize("rectified", [False, True])
def test_the_most_probable_is_torchs(servers: int, rectified: bool) -> None:
    """1000 views: each head takes the largest of torch's logits; a near-tie may fall otherwise, and is counted."""
    reference, router = rectified_of(servers) if rectified else router_of(servers, deterministic=True)
    rng, ties = np.random.default_rng(servers), 0
    for _ in range(1000):
        seen = any_view(servers, rng)
        choice = choice_of(router, seen, rng)
        drawn = (
            choice.server,
            reference.spec.widths.index(choice.width),
            reference.spec.micro_batch_sizes.index(choice.micro_batch_size),
        )
        for logits, index in zip(reference.heads(seen, choice.server), drawn, strict=True):
            assert logits[index] >= logits.max() - NOISE
            ties += index != int(logits.argmax())
    assert ties <= 1  # of thousands: a difference below 1e-5 is rare


@pytest.mark.parametrize("servers", [1, 3, 10])
def test_choice_drawn_by_the_router_follows_the_distribution_of_torch(servers: int) -> None:
    """2000 views: the uniform number lies in the drawn index's interval of torch's distribution, up to NOISE."""
    reference, router = router_of(servers, deterministic=False)
    rng, again = np.random.default_rng(servers), np.random.default_rng()
    for _ in range(2000):
        seen = any_view(servers, rng)
        again.bit_generator.state = rng.bit_generator.state
        choice = choice_of(router, seen, rng)
        drawn = (
            choice.server,
            reference.spec.widths.index(choice.width),
            reference.spec.micro_batch_sizes.index(choice.micro_batch_size),
        )
        heads = reference.heads(seen, choice.server)
        for logits, index, uniform in zip(heads, drawn, again.random(3), strict=True):
            shares = masked_softmax(logits, np.isfinite(logits))
            above = float(shares[: index + 1].sum())
            assert above - shares[index] - NOISE <= uniform < above + NOISE
            assert shares[index] > 0
        assert again.bit_generator.state == rng.bit_generator.state  # three numbers, as in numpy


def chosen_by_numpy(router: PPORouter, seen: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
    """Server, width among those that it can hold, group and hold: the likeliest of each, or what a number falls on."""
    spec, logits = router.spec, router.logits(router.spec.observation.observe(seen))
    heads = np.split(logits, np.cumsum(spec.head_sizes)[:-1])
    uniforms = None if router.deterministic else rng.random(4)

    def pick(head: int, mask: npt.ArrayLike) -> int:
        shares = masked_softmax(heads[head], mask)
        return int(shares.argmax() if uniforms is None else np.searchsorted(shares.cumsum(), uniforms[head], "right"))

    server = pick(0, [each.valid for each in seen.servers])
    width, micro_batch_size = pick(1, seen.servers[server].widths), pick(2, [True] * len(spec.micro_batch_sizes))
    batching_delay = pick(3, spec.waits.mask(seen))
    return (
        spec.waits.batching_delay(batching_delay, seen)
        if batching_delay
        else Choice(server, spec.widths[width], spec.micro_batch_sizes[micro_batch_size])
    )


def holding_views(count: int) -> list[ClusterView]:
    """Some candidates may be held, for this long or that."""
    rng = np.random.default_rng(count)
    views = []
    for _ in range(count):
        left_ns, candidates = int(rng.integers(0, 3)) * 4_000_000, int(rng.integers(1, 32))
        seen = any_view(3, rng)
        views.append(msgspec.structs.replace(seen, batching_delay_left_ns=left_ns, candidates=candidates))
    return views


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_fourth_head_holds_where_it_may(deterministic: bool) -> None:
    """As numpy says, with four numbers from the stream; going on is what the other heads say."""
    spec = spec_of(3, BATCHING_DELAYS_S)
    tensors = tensors_of(network_of(spec, seed=3))
    router = PPORouter(spec, tensors, deterministic=deterministic)
    compiled, numpy = np.random.default_rng(0), np.random.default_rng(0)
    views = holding_views(2000)
    answers = [router.choose(view, compiled) for view in views]
    assert answers == [chosen_by_numpy(router, view, numpy) for view in views]
    assert compiled.bit_generator.state == numpy.bit_generator.state
    held = [
        (each, batching_delay)
        for each, batching_delay in zip(views, answers, strict=True)
        if isinstance(batching_delay, BatchingDelay)
    ]
    assert 100 < len(held) < 1900
    for seen, batching_delay in held:
        larger = [micro_batch_size for micro_batch_size in spec.micro_batch_sizes if micro_batch_size > seen.candidates]
        assert batching_delay.requests == larger[0]
        assert 0 < batching_delay.wait_ns <= seen.batching_delay_left_ns
    waits_ns = {batching_delay.wait_ns for _, batching_delay in held}
    assert len(waits_ns) >= 2
    assert waits_ns <= {2_000_000, 4_000_000, 8_000_000}


def test_compiled_router_with_former_views_decides_as_a_fresh_one() -> None:
    """Views that share servers with former ones, of any segment: decided as by a router that has seen nothing yet."""
    _, router = router_of(3, deterministic=True)
    rng = np.random.default_rng(0)
    servers = {segment: [any_server(rng, valid=True) for _ in range(3)] for segment in (1, 2, 3)}
    inputs = set()
    for _ in range(300):
        segment = int(rng.integers(1, 4))
        for i in np.flatnonzero(rng.random(3) < 0.3):
            servers[segment][i] = any_server(rng)
        if not any(each.valid for each in servers[segment]):
            continue
        seen = view(*servers[segment], head=HeadKey(segment, 0.5, 0), fifo=int(rng.integers(1, 9)))
        compiled, fresh = router.compiled(), router_of(3, deterministic=True)[1].compiled()
        assert compiled.choose(seen, rng, True) == fresh.choose(seen, rng, True)
        assert compiled.scratch[:11].tobytes() == fresh.scratch[:11].tobytes()
        inputs.add(compiled.scratch[:11].tobytes())
    assert len(inputs) > 200


@entry
def decide_here(
    weights: Singles, sizes: Ints, observation: Singles, codes: Ints, uniforms: Reals, greedy: bool, scratch: Singles
) -> tuple[int, int, int, int]:
    """As an engine in compiled code decides."""
    memory = singles(scratch)
    kernels.observe(singles(observation), 0, sizes, memory, 0)
    return kernels.decide(singles(weights), sizes, ints(codes), 0, 1, reals(uniforms), 0, False, greedy, memory)


@pytest.mark.parametrize("servers", [1, 3, 64])
@pytest.mark.parametrize("deterministic", [True, False])
def test_compiled_code_decides_as_the_router_does(servers: int, deterministic: bool) -> None:
    """The same bits from the observation as Python writes it, decided by one kernel: equal, near-ties included."""
    reference, router = router_of(servers, deterministic)
    compiled = router.compiled()
    eyes, rng = ObservationSpec(reference.spec.power_limits_w), np.random.default_rng(0)
    for _ in range(500):
        seen = any_view(servers, rng)
        codes = np.array([bits(server.widths) if server.valid else 0 for server in seen.servers])
        seed = int(rng.integers(1 << 30))
        uniforms = np.random.default_rng(seed).random(3)
        found = decide_here(
            compiled.weights, compiled.sizes, eyes.observe(seen), codes, uniforms, deterministic, compiled.scratch
        )
        inputs = compiled.scratch[: eyes.size].tobytes()
        choice = choice_of(router, seen, np.random.default_rng(seed))
        assert inputs == compiled.scratch[: eyes.size].tobytes()
        spec = reference.spec
        assert (found[0], spec.widths[found[1]], spec.micro_batch_sizes[found[2]]) == (
            choice.server,
            choice.width,
            choice.micro_batch_size,
        )


def test_logarithms_are_pythons() -> None:
    """`choose` takes log1p in compiled code where `ObservationSpec` does in Python: the same float32 for any count."""
    spec = PolicySpec(1, (1.0,), (1,), (100.0,))
    router = CompiledRouter(spec, (4,), tensors_of(network_of(spec, (4,))))
    for count in (*range(2000), *(10**exponent + 7 for exponent in range(4, 12))):
        seen = view(server(count, widths=(True,), power_w=count / 7), fifo=count)
        router.choose(seen, np.random.default_rng(0), greedy=True)
        assert router.scratch[:5].tobytes() == spec.observation.observe(seen).tobytes()
        assert router.scratch[0] == np.float32(math.log1p(max(count, 1)))


def test_looking_at_a_router_needs_neither_numba_nor_torch() -> None:
    """The command line starts often; deciding needs numba, and never torch."""
    code = """
import sys
import msgspec
import numpy as np
from policies.ppo.ppo_router import PPORouter
from policies.ppo.spec import PolicySpec
shapes = {"trunk.0.weight": (4, 5), "trunk.0.bias": 4, "heads.weight": (3, 4), "heads.bias": 3}
weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
router = PPORouter(PolicySpec(1, (1.0,), (1,), (100.0,)), weights)
assert "numba" not in sys.modules
router.compiled()
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_compiled_code_the_interpreter_decides(tmp_path: Path) -> None:
    """With SLIMSCHED_JIT=0 the same router makes the same decision, from the same source."""
    _, router = router_of(3, deterministic=True)
    router.save(tmp_path / "router.safetensors")
    code = """
import sys
import msgspec
import numpy as np
from kit.jit_cache import IS_ON
from policies.ppo.ppo_router import PPORouter
from tests.policies.cluster_views import choice_of, server, view
router = PPORouter.load(sys.argv[1])
seen = view(server(3), server(1, valid=False), server(7, power_w=100.0))
choice = router.choose(seen, np.random.default_rng(0))
print(choice.server, choice.width, choice.micro_batch_size)
assert not IS_ON
"""
    command = [sys.executable, "-c", code, str(tmp_path / "router.safetensors")]
    environment = os.environ | {"SLIMSCHED_JIT": "0"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seen = view(server(3), server(1, valid=False), server(7, power_w=100.0))
    choice = choice_of(router, seen, np.random.default_rng(0))
    assert done.stdout.split() == [str(choice.server), str(choice.width), str(choice.micro_batch_size)]


# -------------------------------------------------------------------------------------------------------- files

CONFIG = RouterConfig(segments=4, widths=WIDTHS, fits=(((True,) * 4,) * 4,) * 3, micro_batch_sizes=MICRO_BATCH_SIZES)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_saved_router_decides_as_before(tmp_path: Path, deterministic: bool) -> None:
    _, router = router_of(3, deterministic)
    router.save(tmp_path / "router.safetensors")
    loaded = PPORouter.load(tmp_path / "router.safetensors", CONFIG)
    assert (loaded.spec, loaded.deterministic) == (router.spec, deterministic)
    assert {name: value.tobytes() for name, value in loaded._weights.items()} == {
        name: value.tobytes() for name, value in router._weights.items()
    }
    other = PPORouter.load(str(tmp_path / "router.safetensors"), deterministic=not deterministic)
    assert other.deterministic is not deterministic


def test_router_file_for_another_cluster_is_refused(tmp_path: Path) -> None:
    router_of(3, True)[1].save(tmp_path / "router.safetensors")
    with pytest.raises(InputError, match=r"router\.safetensors: .*servers: expected 2, found 3"):
        PPORouter.load(tmp_path / "router.safetensors", replace(CONFIG, fits=CONFIG.fits[:2]))


def test_a_view_of_another_cluster_is_refused() -> None:
    with pytest.raises(InputError, match="trained for 3 servers, asked about 2"):
        router_of(3, True)[1].choose(view(server(), server()), np.random.default_rng(0))


def _written(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A router's file in which one tensor is another."""

    def spoil(path: Path) -> None:
        tensors, header = checkpoint.read(path)
        checkpoint.write(path, {**tensors, "policy.heads.bias": change(tensors["policy.heads.bias"])}, header)

    return spoil


def _write_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "no such file"),
    "a pipe, which nobody waits for": (_write_pipe, "a device or a pipe"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "not a safetensors file"),
    "no spec": (lambda path: checkpoint.write(path, {"a": np.zeros(1)}, {}), "damaged"),
    "not a number": (
        _written(lambda bias: np.full_like(bias, np.nan)),
        r"heads\.bias: holds numbers that are not finite",
    ),
    "no end": (_written(lambda bias: bias + np.inf), r"heads\.bias: holds numbers that are not finite"),
    "whole numbers": (_written(lambda bias: bias.astype(np.int32)), "not a router of this version, or damaged"),
    "another shape": (_written(lambda bias: bias[None]), "not a router of this version, or damaged"),
    "another length": (_written(lambda bias: bias[:-1]), "not a router of this version, or damaged"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_files_that_are_no_router_are_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "router.safetensors"
    router_of(3, True)[1].save(path)
    spoil, words = SPOILED[what]
    spoil(path)
    with pytest.raises(InputError, match=rf"router\.safetensors: .*{words}"):
        PPORouter.load(path)


def _rewritten(path: Path, tensors: dict[str, np.ndarray], header: dict[str, str]) -> None:
    """As another program would write it: with the checksum that was there."""
    path.write_bytes(save({name: np.ascontiguousarray(value) for name, value in tensors.items()}, header))


def test_a_router_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "router.safetensors"
    router_of(3, True)[1].save(path)
    with safe_open(path, framework="numpy") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    _rewritten(path, tensors, header)
    PPORouter.load(path)
    name = "policy.heads.bias"
    changed = {**tensors, name: np.nextafter(tensors[name], np.float32(9))}
    without = {key: value for key, value in header.items() if key != "checksum"}
    for content in ((changed, header), (tensors, {**header, "made_by": "{}"}), (tensors, without)):
        _rewritten(path, *content)
        with pytest.raises(InputError, match=r"checksum: is .*, the content has '[0-9a-f]{16}'"):
            PPORouter.load(path)


def test_without_an_end_it_sees_no_more_completed_than_a_training_run_has() -> None:
    """In every stretch what it would see in a run of that length, whatever came before; all else as it is."""
    stretch_ns, seen = 1000, list[ClusterView]()

    class Watched(PPORouter):
        def choose(self, view: ClusterView, rng: np.random.Generator) -> Choice | BatchingDelay:
            seen.append(view)
            return super().choose(view, rng)

    spec = spec_of(2)
    router = EndlessRouter(Watched(spec, tensors_of(network_of(spec, seed=2)), deterministic=True), stretch_ns)
    rng = np.random.default_rng(0)
    views = [
        msgspec.structs.replace(view(server(), server()), now_ns=at_ns, completed=3 * at_ns)
        for at_ns in range(7, 20 * stretch_ns, 10)
    ]
    for each in views:
        router.choose(each, rng)
    counts = [each.completed for each in seen]
    assert counts[:99] == [each.completed - views[0].completed for each in views[:99]]
    assert counts[100:200] * 18 == counts[200:]
    assert max(counts) <= 3 * stretch_ns
    assert [msgspec.structs.replace(each, completed=0) for each in seen] == [
        msgspec.structs.replace(each, completed=0) for each in views
    ]
