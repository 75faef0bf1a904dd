"""Tide's rules: the more waits the narrower, slower servers get less, the guard takes over, files read back."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from policies.chance import stream
from policies.errors import InputError
from policies.interfaces import RouterConfig
from policies.names import make_router
from policies.ppo import checkpoint
from policies.reward import AccuracyPrior
from policies.rules.context import RouterContext
from policies.rules.costs import worth_of_steps
from policies.tide import knobs
from policies.tide.router import GUARD_ON_S, TideRouter
from policies.tide.spec import TideSpec
from policies.vocabulary import ClusterView, HeadKey, WorkKey
from tests.policies.cluster_views import WIDTHS, LinearCosts, context, server, view

START = knobs.start(4, 4)
RNG = stream(0, "tide")


def tide(speeds: tuple[float, ...] = (1.0, 1.0), guarded: bool = True, **changed: float) -> TideRouter:
    names = [knob.name for knob in knobs.knobs(4, 4)]
    values = START.copy()
    for name, value in changed.items():
        values[names.index(name)] = value
    return TideRouter(values, context(LinearCosts(speeds), servers=len(speeds)), guarded=guarded)


def width(router: TideRouter, fifo: int) -> float:
    return router.choose(view(server(), server(), fifo=fifo), RNG).width


def test_the_more_wait_the_narrower() -> None:
    widths = [width(tide(guarded=False), fifo) for fifo in (1, 4, 16, 64, 256, 4096, 1 << 20)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1] == WIDTHS[0]


def test_a_price_that_falls_with_the_load_would_not_pass_that() -> None:
    upside_down = tide(
        guarded=False, price=0.0, backlog_1ms=0.0, load_now=0.0, queue_2=-2.0, queue_16=-2.0, queue_128=-2.0
    )
    widths = [width(upside_down, fifo) for fifo in (1, 64, 4096)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_the_faster_server_is_chosen_and_equal_ones_by_index() -> None:
    assert tide((1.0, 3.0)).choose(view(server(), server()), RNG).server == 1
    assert tide((1.0, 1.0)).choose(view(server(), server()), RNG).server == 0


def test_activations_stay_unless_the_queue_is_long() -> None:
    head = HeadKey(2, 0.5, 0)
    work = {WorkKey(2, 1.0, 0.5): 400}
    assert tide().choose(view(server(), server(), head=head), RNG).server == 0
    assert tide().choose(view(server(outstanding=work), server(), head=head), RNG).server == 1
    stubborn = tide(move_ms=1e6)
    assert stubborn.choose(view(server(outstanding=work), server(), head=head), RNG).server == 0


def test_a_server_that_falls_behind_its_profile_is_believed_to_be_slow() -> None:
    """Two servers get the same work; one never gets done with it."""
    router, blind = tide(slowness=1.0, guarded=False), tide(slowness=0.0, guarded=False)
    key = WorkKey(1, 1.0, 0.0)
    choices = []
    for each in (router, blind):
        for step in range(40):
            stuck, quick = {key: 40}, {key: 40 if step % 2 else 0}
            seen = view(server(outstanding=stuck), server(outstanding=quick), candidates=1)
            each.choose(at(seen, 1_000_000_000 + step * 50_000_000), RNG)
        last = view(server(outstanding={key: 20}), server(outstanding={key: 40}))
        choices.append(each.choose(at(last, 4_000_000_000), RNG).server)
    assert choices == [1, 0]


def test_a_server_that_was_idle_for_long_is_not_believed_to_be_slow() -> None:
    """It was done with its work at some time before it was looked at again."""
    router = tide((1.0, 0.9), price=-1e4, slowness=1.0, coming=0.0, guarded=False)
    for step in range(20):
        seen = at(view(server(), server(), candidates=8), 1_000_000_000 * (step + 1))
        assert router.choose(seen, RNG).server == 0


def at(seen: ClusterView, now_ns: int) -> ClusterView:
    from msgspec.structs import replace

    return replace(seen, now_ns=now_ns)


def test_only_widths_and_servers_that_may_be_chosen() -> None:
    rng = stream(3, "views")
    router = tide((1.0, 2.0, 0.5))
    for _ in range(200):
        valid = rng.random(3) < 0.6
        valid[rng.integers(3)] = True
        masks = [tuple(bool(x) for x in rng.random(4) < 0.5) for _ in range(3)]
        masks = [mask if any(mask) else (True, False, False, False) for mask in masks]
        servers = [server(int(rng.integers(50)), valid=bool(v), widths=m) for v, m in zip(valid, masks, strict=True)]
        choice = router.choose(
            view(*servers, candidates=int(rng.integers(1, 33)), fifo=int(rng.integers(1, 5000))), RNG
        )
        assert servers[choice.server].valid
        assert servers[choice.server].widths[WIDTHS.index(choice.width)]


def test_the_guard_hands_over_and_back_and_counts() -> None:
    router = tide(price=-1e4)  # time is free: it would always run at full width
    assert width(router, 1) == 1.0
    assert router.handovers == 0
    long = 100_000
    assert width(router, long) == WIDTHS[0], f"a backlog beyond {GUARD_ON_S} s is the fallback's"
    assert width(router, long) == WIDTHS[0]
    assert (router.handovers, router.guarded_decisions) == (1, 2)
    assert width(router, 1) == 1.0
    assert (router.handovers, router.guarded_decisions) == (1, 2)
    assert width(tide(price=-1e4, guarded=False), long) == 1.0


def test_what_the_guard_gave_is_the_width_that_is_held_on_to() -> None:
    """Not the last one that Tide itself chose, before."""
    router = tide((1.0,), price=-1e4, hold=8.0)
    found = [router.choose(view(server(), fifo=fifo), RNG).width for fifo in (1, 100_000, 1)]
    assert found == [1.0, WIDTHS[0], WIDTHS[0]]
    assert router.guarded_decisions == 1


def test_a_blocks_own_time_is_paid_for_by_the_block() -> None:
    """Time that no image of it pays for: with `delay` the same price of a second leads to a narrower width."""
    widths = [width(tide(price=-6.0, delay=delay, guarded=False), 1) for delay in (0.0, 1.0, 30.0)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]


def test_work_that_comes_back_to_a_place_counts_there() -> None:
    """Images between two segments are at no server; where they have their place there is less room for new ones."""
    idle = view(server(), server(), candidates=8)
    for weight, wanted in ((0.0, [0, 0, 0]), (1.0, [0, 1, 0])):
        router = tide(coming=weight, guarded=False)
        assert [router.choose(idle, RNG).server for _ in range(3)] == wanted


def test_what_has_left_or_was_lost_comes_back_no_more() -> None:
    """Through its last segment, or not seen again for long."""
    for leaves in (True, False):
        router = tide((1.0, 0.999), coming=1.0, guarded=False)
        assert router.choose(view(server(), server(), candidates=8), RNG).server == 0
        if leaves:
            for segment in (2, 3, 4):
                seen = view(server(), server(valid=False), head=HeadKey(segment, 1.0, 0), candidates=8)
                assert router.choose(seen, RNG).server == 0
        later = at(view(server(), server(), candidates=8), 1_000_000_000 if leaves else 10**16)
        assert router.choose(later, RNG).server == 0
        assert router.choose(later, RNG).server == 1


def test_the_worth_of_steps_is_that_of_tuples_worth_running() -> None:
    """A bad tuple that costs as much as good ones hardly counts, whatever it has."""
    worths = []
    for bad in (0.3, 0.5):
        table = {
            tuple(WIDTHS[w] for w in code): bad if code == (0, 3, 3, 3) else 0.6 + 0.01 * sum(code)
            for code in product(range(4), repeat=4)
        }
        given = context()
        worths.append(
            worth_of_steps(RouterContext(given.config, given.costs, AccuracyPrior(table), given.power_limits_w))
        )
    assert worths[0] == pytest.approx(worths[1], abs=1e-6)
    assert worths[0] == pytest.approx(np.full((4, 3), 0.01), abs=1e-6)


def test_the_worth_of_steps_adds_up_for_a_table_that_does() -> None:
    gains = np.array([[0.01, 0.0, 0.02], [0.03, 0.01, 0.01], [0.0, 0.0, 0.0], [0.05, 0.02, 0.01]])
    table = {
        tuple(WIDTHS[w] for w in code): 0.5 + sum(gains[s, :w].sum() for s, w in enumerate(code))
        for code in product(range(4), repeat=4)
    }
    given = context()
    made = RouterContext(given.config, given.costs, AccuracyPrior(table), given.power_limits_w)
    assert worth_of_steps(made) == pytest.approx(np.maximum(gains, 1e-5), abs=1e-9)


def test_a_file_reads_back_as_the_same_router(tmp_path: Path) -> None:
    path, router = tmp_path / "tide.safetensors", tide(price=-3.0)
    router.save(path, {"seed": 7})
    again = TideSpec.read(path).chooser(context(servers=2))
    assert again.values == pytest.approx(router.values)
    assert (again.plan() == tide(price=-3.0).plan()).all()
    assert checkpoint.kind_of(path) == "tide"


def test_the_same_router_is_the_same_bytes(tmp_path: Path) -> None:
    """A stage that reads its file is done anew where a byte of it differs."""
    found = set()
    for number in range(5):
        path = tmp_path / f"{number}.safetensors"
        tide().save(path, {"seed": 7})
        found.add(path.read_bytes())
    assert len(found) == 1


def test_numbers_that_would_overflow_are_refused(tmp_path: Path) -> None:
    """As those that are none: what they make of a decision is chance."""
    router = tide()
    for value in (1.4e306, -2e9, np.inf):
        router.values[-1] = value
        router.save(tmp_path / "tide.safetensors", {"seed": 7})
        with pytest.raises(InputError, match=r"tide\.values: holds numbers that are not finite, or beyond 1e\+09"):
            TideSpec.read(tmp_path / "tide.safetensors")


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tide.safetensors"
    tide().save(path, {})
    given = context()
    fewer = RouterConfig(4, (0.5, 1.0), tuple(((True, True),) * 4 for _ in range(2)))
    other = RouterContext(fewer, given.costs, given.prior, given.power_limits_w)
    with pytest.raises(InputError, match=r"trained for 4 segments at widths \[0.25, 0.5, 0.75, 1.0\]"):
        TideSpec.read(path).make(other)


def test_a_file_with_other_knobs_is_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "tide.safetensors"
    tide().save(path, {})
    tensors, header = checkpoint.read(path)
    names = [name for name in json.loads(header["names"]) if name != "hold"]
    checkpoint.write(path, tensors, {**header, "names": json.dumps(names)})
    with pytest.raises(InputError, match=r"another version of Tide, whose knobs differ \(hold\)"):
        TideSpec.read(path).make(context())
    checkpoint.write(path, {"tide.values": tensors["tide.values"][:-1]}, header)
    with pytest.raises(InputError, match=r"tide.values: has the shape \(32,\), not \(33,\): damaged"):
        TideSpec.read(path).make(context())
    checkpoint.write(path, {"tide.values": tensors["tide.values"] * 1e5}, header)
    with pytest.raises(InputError, match=r"tide.values: holds .*: damaged \(of tuned numbers none is beyond 500\)"):
        TideSpec.read(path).make(context())


@pytest.mark.parametrize(
    "change",
    [{"segments": "1000000000"}, {"segments": "-1"}, {"widths": "[" * 100_000}, {"widths": "4"}, {"names": "{"}],
)
def test_a_file_of_any_header_is_refused(change: dict[str, str], tmp_path: Path) -> None:
    """At once: a billion segments would have billions of knobs."""
    path = tmp_path / "tide.safetensors"
    tide().save(path, {})
    tensors, header = checkpoint.read(path)
    checkpoint.write(path, tensors, {**header, **change})
    with pytest.raises(InputError, match="not a router of this version, or damaged"):
        TideSpec.read(path)


def test_knobs_can_be_switched_off() -> None:
    off = knobs.spread(4, 4, ("rates", "worth"))
    names = [knob.name for knob in knobs.knobs(4, 4)]
    assert off[names.index("load")] == 0
    assert off[names.index("worth_1_1")] == 0
    assert off[names.index("price")] > 0
    assert knobs.start(4, 4, ("queue",))[names.index("queue_2")] == 0.0
    assert knobs.start(4, 4, ("placement",))[names.index("batch")] == 1.0
    with pytest.raises(ValueError, match="rates"):
        knobs.spread(4, 4, ("rate",))
    assert {knob.switch for knob in knobs.knobs(4, 4)} - set(knobs.SWITCHES) == {"always"}, "its price is Tide"


def test_it_holds_on_to_a_width_where_changing_must_gain_more() -> None:
    """A queue that narrows a router which holds on to nothing leaves one that holds on as it was."""
    for hold in (-20.0, 8.0):
        router = tide((1.0,), price=-12.0, hold=hold, guarded=False, load_now=0.0, backlog_1ms=0.0)
        assert router.choose(view(server(), fifo=1), RNG).width == 1.0
        assert (router.choose(view(server(), fifo=4096), RNG).width == 1.0) == (hold > 0)


def test_by_its_name_it_has_the_numbers_that_tuning_begins_with() -> None:
    named = make_router("tide", context())
    assert isinstance(named, TideRouter)
    assert named.values == pytest.approx(START, abs=0)
