import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

from kit.jit import Ints, Reals, Singles, entry, ints, reals, singles
from policies.observation import ObservationSpec
from policies.ppo import kernels
from policies.ppo.acting import masked_softmax
from policies.ppo.compiled import CompiledRouter, code_of
from policies.ppo.network import PolicyNetwork
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
from policies.vocabulary import ClusterView, HeadKey, Hold, ServerView
from tests.policies.cluster_views import choice_of, server, view
from tests.policies.ppo.problems import HOLDS_S, network_of, spec_of, tensors_of

NOISE = 1e-5  # logits of size 10 in float32, through three layers


def any_server(rng: np.random.Generator, valid: bool | None = None) -> ServerView:
    widths = tuple(bool(each) for each in rng.integers(0, 2, 4)) if rng.random() < 0.5 else (True,) * 4
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
        if any(each.valid for each in found.servers):
            return found


class Torch(NamedTuple):
    """What torch says of a view: each head's logits, masked servers and widths at -inf."""

    network: PolicyNetwork
    spec: PolicySpec

    def heads(self, seen: ClusterView, chosen: int) -> list[npt.NDArray[np.float64]]:
        with torch.inference_mode():
            logits = self.network(torch.from_numpy(self.spec.observation.observe(seen))[None])[0][0].double().numpy()
        count = self.spec.servers
        server, width, group = logits[:count].copy(), logits[count : count + 4].copy(), logits[count + 4 :]
        server[[not each.valid for each in seen.servers]] = -np.inf
        width[[not may for may in seen.servers[chosen].widths]] = -np.inf
        return [server, width, group]


def router_of(servers: int, deterministic: bool) -> tuple[Torch, PPORouter]:
    spec = spec_of(servers)
    network = network_of(spec, seed=servers)
    return Torch(network, spec), PPORouter(spec, tensors_of(network), deterministic=deterministic)


@pytest.mark.parametrize("servers", [1, 3, 10, 64])
def test_the_most_probable_is_torchs(servers: int) -> None:
    """1000 views: each head takes the largest of torch's logits; a near-tie may fall otherwise, and is counted."""
    reference, router = router_of(servers, deterministic=True)
    rng, ties = np.random.default_rng(servers), 0
    for _ in range(1000):
        seen = any_view(servers, rng)
        choice = choice_of(router, seen, rng)
        drawn = choice.server, reference.spec.widths.index(choice.width), reference.spec.groups.index(choice.group)
        for logits, index in zip(reference.heads(seen, choice.server), drawn, strict=True):
            assert logits[index] >= logits.max() - NOISE
            ties += index != int(logits.argmax())
    assert ties <= 1  # of thousands: a difference below 1e-5 is rare


@pytest.mark.parametrize("servers", [1, 3, 10])
def test_what_is_drawn_is_torchs(servers: int) -> None:
    """2000 views: the uniform number lies in the drawn index's interval of torch's distribution, up to NOISE."""
    reference, router = router_of(servers, deterministic=False)
    rng, again = np.random.default_rng(servers), np.random.default_rng()
    for _ in range(2000):
        seen = any_view(servers, rng)
        again.bit_generator.state = rng.bit_generator.state
        choice = choice_of(router, seen, rng)
        drawn = choice.server, reference.spec.widths.index(choice.width), reference.spec.groups.index(choice.group)
        heads = reference.heads(seen, choice.server)
        for logits, index, uniform in zip(heads, drawn, again.random(3), strict=True):
            shares = masked_softmax(logits, np.isfinite(logits))
            above = float(shares[: index + 1].sum())
            assert above - shares[index] - NOISE <= uniform < above + NOISE
            assert shares[index] > 0
        assert again.bit_generator.state == rng.bit_generator.state  # three numbers, as in numpy


@pytest.mark.parametrize("deterministic", [True, False])
def test_numpy_decides_alike(deterministic: bool) -> None:
    """`choose_in_numpy` on the same views and numbers: none of 2000 decisions happens to be a near-tie."""
    _, router = router_of(3, deterministic)
    views = [any_view(3, np.random.default_rng(i)) for i in range(2000)]
    compiled, numpy = np.random.default_rng(0), np.random.default_rng(0)
    assert [router.choose(each, compiled) for each in views] == [router.choose_in_numpy(each, numpy) for each in views]


def holding_views(count: int) -> list[ClusterView]:
    """Some candidates may be held, for this long or that."""
    rng = np.random.default_rng(count)
    views = []
    for _ in range(count):
        left_ns, candidates = int(rng.integers(0, 3)) * 4_000_000, int(rng.integers(1, 32))
        seen = any_view(3, rng)
        views.append(msgspec.structs.replace(seen, hold_left_ns=left_ns, candidates=candidates))
    return views


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_fourth_head_holds_where_it_may(deterministic: bool) -> None:
    """In compiled code as in numpy, each with four numbers from the stream; going on is what the other heads say."""
    spec = spec_of(3, HOLDS_S)
    tensors = tensors_of(network_of(spec, seed=3))
    router = PPORouter(spec, tensors, deterministic=deterministic)
    compiled, numpy = np.random.default_rng(0), np.random.default_rng(0)
    views = holding_views(2000)
    found = [router.choose(each, compiled) for each in views]
    assert found == [router.choose_in_numpy(each, numpy) for each in views]
    assert compiled.bit_generator.state == numpy.bit_generator.state
    held = [(each, hold) for each, hold in zip(views, found, strict=True) if isinstance(hold, Hold)]
    assert 100 < len(held) < 1900
    for seen, hold in held:
        larger = [group for group in spec.groups if group > seen.candidates]
        assert hold.requests == larger[0]
        assert 0 < hold.wait_ns <= seen.hold_left_ns
    waits_ns = {hold.wait_ns for _, hold in held}
    assert len(waits_ns) >= 2
    assert waits_ns <= {2_000_000, 4_000_000, 8_000_000}


def test_what_was_read_before_is_not_mixed_up() -> None:
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
        assert compiled is not None
        assert fresh is not None
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
    assert compiled is not None
    eyes, rng = ObservationSpec(reference.spec.power_limits_w), np.random.default_rng(0)
    for _ in range(500):
        seen = any_view(servers, rng)
        codes = np.array([code_of(each.widths) if each.valid else 0 for each in seen.servers])
        seed = int(rng.integers(1 << 30))
        uniforms = np.random.default_rng(seed).random(3)
        found = decide_here(
            compiled.weights, compiled.sizes, eyes.observe(seen), codes, uniforms, deterministic, compiled.scratch
        )
        inputs = compiled.scratch[: eyes.size].tobytes()
        choice = choice_of(router, seen, np.random.default_rng(seed))
        assert inputs == compiled.scratch[: eyes.size].tobytes()
        spec = reference.spec
        assert (found[0], spec.widths[found[1]], spec.groups[found[2]]) == (choice.server, choice.width, choice.group)


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
from policies.ppo.router import PPORouter
from policies.ppo.spec import PolicySpec
shapes = {"trunk.0.weight": (4, 5), "trunk.0.bias": 4, "heads.weight": (3, 4), "heads.bias": 3}
weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
router = PPORouter(PolicySpec(1, (1.0,), (1,), (100.0,)), weights)
assert "numba" not in sys.modules
assert router.compiled() is not None
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_compiled_code_numpy_decides(tmp_path: Path) -> None:
    """With SLIMSCHED_JIT=0 the same router makes the same decision."""
    _, router = router_of(3, deterministic=True)
    router.save(tmp_path / "router.safetensors")
    code = """
import sys
import msgspec
import numpy as np
from policies.ppo.router import PPORouter
from tests.policies.cluster_views import choice_of, server, view
router = PPORouter.load(sys.argv[1])
seen = view(server(3), server(1, valid=False), server(7, power_w=100.0))
choice = router.choose(seen, np.random.default_rng(0))
print(choice.server, choice.width, choice.group)
assert router.compiled() is None
"""
    command = [sys.executable, "-c", code, str(tmp_path / "router.safetensors")]
    environment = os.environ | {"SLIMSCHED_JIT": "0"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    seen = view(server(3), server(1, valid=False), server(7, power_w=100.0))
    choice = choice_of(router, seen, np.random.default_rng(0))
    assert done.stdout.split() == [str(choice.server), str(choice.width), str(choice.group)]
