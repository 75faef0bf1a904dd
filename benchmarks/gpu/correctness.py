"""Checks of the correctness of computed, moved and reported results."""

from __future__ import annotations

import copy
import itertools
from queue import SimpleQueue
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.gpu.stand import SEED, Stand
from hw.networks.servable import gather, rows_of
from hw.router.local_workers import WorkerProcess, start_workers
from hw.transport.messages import Input, Keep, Move, Moved
from hw.transport.shared_memory import Arena
from hw.worker.activations import Activations, KeptMicroBatches, tensor_in
from hw.worker.instances import Instances, serve
from hw.worker.lanes import BatchEnded, LaneEvent, LoadEnded
from hw.worker.torch_lanes import TorchLanes, explain
from hw.worker.torch_outfit import ARENA_BYTES, torch_workers
from kit.random_streams import stream
from policies.vocabulary import IMAGE, RunBatch

BATCHES: Final = (1, 3, 32)
EXACT, OF_TF32 = 1e-4, 2e-3
LIKELY: Final = 0.02  # of the logits' spread: a label that wins by less may differ
LANES = 16
CHAINS = 8
ROUNDS = 12
WAIT_S: Final = 20.0


# --------------------------------------------------------------------------------------------------------- one device


def against_float64(stand: Stand) -> str:
    """Check the worst relative error over all keys, by order of memory and way of computing."""
    exact: Any = copy.deepcopy(stand.model).double()
    settings = {
        f"{order}{'_tf32' if is_tf32 else ''}": (stand.instances(channels_last=order == "nhwc"), is_tf32)
        for order, is_tf32 in itertools.product(("nchw", "nhwc"), (True, False) if stand.is_gpu else (False,))
    }
    worst = dict.fromkeys(settings, 0.0)
    for segment in range(1, stand.model.spec.segments + 1):
        wide = {name: instances.make(segment, 1.0) for name, (instances, _) in settings.items()}
        keys = (key for key in stand.model.spec.work_keys() if key[0] == segment)
        for key, batch in itertools.product(keys, BATCHES):
            x = stand.activations(segment, key[2], batch)
            with torch.inference_mode():
                expected = exact.forward_segment(x.double(), *key)
                for name, (instances, is_tf32) in settings.items():
                    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_tf32
                    y = _served(instances, wide[name], x, key[1], key[2])
                    worst[name] = max(worst[name], float((y.double() - expected).abs().max() / expected.abs().max()))
        for name, (instances, _) in settings.items():
            instances.free(wide[name])
        stand.tell(worst)
    wrong = [name for name, error in worst.items() if error > (OF_TF32 if "tf32" in name else EXACT)]
    return f"too large: {', '.join(wrong)}" if wrong else ""


def _served(instances: Instances, instance: Any, x: Tensor, width: float, previous: float, padded: int = 0) -> Tensor:
    rows = rows_of(x.to(instances.torch_device, instances.device.torch_dtype))
    y = serve(instance, rows, (width, previous, max(padded, len(x))), instances.device.memory_format)
    return y.cpu()


def neighbours(stand: Stand) -> str:
    """Check an image's result with others, padded, in another order, and repeated."""
    instances = stand.instances()
    worst = 0.0
    is_same = True
    for segment in range(1, stand.model.spec.segments + 1):
        instance, previous = instances.make(segment, 1.0), 0.0 if segment == 1 else 1.0
        x = stand.activations(segment, previous, 8)
        with torch.inference_mode():
            together, again = (_served(instances, instance, x, 1.0, previous) for _ in range(2))
            padded = _served(instances, instance, x, 1.0, previous, padded=16)
            mixed = _served(instances, instance, x.flip(0), 1.0, previous).flip(0)
            single = torch.cat([_served(instances, instance, each[None], 1.0, previous) for each in x])
        is_same &= torch.equal(together, again)
        scale = float(together.abs().max())
        worst = max(worst, *(float((each - together).abs().max()) / scale for each in (padded, mixed, single)))
        instances.free(instance)
    stand.tell({"worst_relative": worst, "same_bits_twice": is_same})
    wrong = [*([] if is_same else ["another result the second time"]), *(["others matter"] if worst > OF_TF32 else [])]
    return "; ".join(wrong)


# -------------------------------------------------------------------------------------------------------------- moves


def moves(stand: Stand) -> str:
    """Check activations of every shape moved from one worker to another, and back to readable memory."""
    with torch_workers([("first", stand.device), ("second", stand.device)], stand.file) as specs:
        arenas = specs[0].outfit.arenas  # type: ignore[attr-defined]
        with start_workers(specs) as workers:
            differ = [shape for shape in _shapes(stand) if not _there_and_back(workers, arenas, shape)]
    stand.tell({"same": f"{len(_shapes(stand)) - len(differ)} shapes"})
    return ", ".join(map(str, differ))


def _shapes(stand: Stand) -> list[tuple[int, ...]]:
    spec = stand.model.spec
    return [stand.model.activation_shape(s, w) for s in range(1, spec.segments) for w in spec.widths]


def _there_and_back(workers: list[WorkerProcess], arenas: tuple[Arena, ...], shape: tuple[int, ...]) -> bool:
    """Return whether the same bits come back, in another order."""
    requests, sent = (3, 1, 2), torch.randn(3, *shape, generator=torch.Generator().manual_seed(SEED))
    tensor_in(arenas[0], 0, tuple(sent.shape), torch.float32).copy_(sent)
    workers[0].send(Keep((Input(requests, 0, shape, "float32", False),)))
    moved = _moved(workers[0], Move(1, 1, 0, (1, 2, 3)))
    workers[1].send(Keep((Input((1, 2, 3), 0, moved.shape, moved.dtype, moved.channels_last),)))
    offset = ARENA_BYTES // 2
    back = _moved(workers[1], Move(2, 0, offset, requests))
    return torch.equal(tensor_in(arenas[0], offset, (3, *shape), torch.float32, back.channels_last), sent)


def _moved(worker: WorkerProcess, move: Move) -> Moved:
    worker.send(move)
    return worker.expect(Moved, WAIT_S)


# -------------------------------------------------------------------------------------------------------------- races


def races(stand: Stand) -> str:
    """Check chains of batches through many lanes at once, moving results while others run.

    If `compacted`, a micro-batch keeps little of what it received.
    """
    wrong = []
    for mode in ("shipped", "compacted"):
        race = _Race(stand, mode)
        compared, differ = race.run()
        text = f"{differ} of {compared} labels, {race.torn} of {race.moved} moves differ"
        stand.tell({mode: text})
        wrong += [f"{mode}: {text}"] if differ or race.torn else []
    return ", ".join(wrong)


class _Race:
    """Lanes of every segment, and chains of batches through them."""

    def __init__(self, stand: Stand, mode: str) -> None:
        self._stand = stand
        self._arenas = (Arena(1 << 25), Arena(1 << 25))
        instances, device = stand.instances(), stand.torch_device
        self._store = Activations(self._arenas, 0, device, KeptMicroBatches(instances.budget))
        self._compacts = mode == "compacted"
        self._events: SimpleQueue[LaneEvent] = SimpleQueue()
        self._lanes = TorchLanes(instances, self._store, self._events.put, lambda: 0, leave=lambda code: None)
        self._chance = stream(SEED, "races")
        self._numbers = itertools.count(1)
        self.moved = self.torn = 0  # moves, and moves with wrong bits

    def run(self) -> tuple[int, int]:
        """Return (labels compared, labels that differ)."""
        segments = self._stand.model.spec.segments
        for lane in range(LANES):
            self._lanes.load(lane, lane % segments + 1, 1.0, False)
            assert isinstance(self._events.get(timeout=WAIT_S), LoadEnded)
        rounds = [self._round(segments) for _ in range(ROUNDS)]
        self._lanes.reset()
        return sum(pair[0] for pair in rounds), sum(pair[1] for pair in rounds)

    def _round(self, segments: int) -> tuple[int, int]:
        """Run some chains from images to labels, in step; stored activations are moved while the others run."""
        images = self._stand.activations(1, IMAGE, 4 * CHAINS, seed=int(self._chance.integers(1 << 30)))
        members = [tuple(range(4 * chain, 4 * chain + 4)) for chain in range(CHAINS)]
        tensor_in(self._arenas[0], 0, tuple(images.shape), torch.float32).copy_(images)
        self._lanes.take([Input(tuple(range(len(images))), 0, tuple(images.shape[1:]), "float32", False)])
        labels: dict[int, int] = {}
        for segment in range(1, segments + 1):
            requests = [request for chain in members for request in chain]
            self._chance.shuffle(requests)  # batches of members of several micro-batches
            parts = [tuple(requests[4 * chain : 4 * chain + 4]) for chain in range(CHAINS)]
            batches = {next(self._numbers): part for part in parts}
            lanes = [lane for lane in range(LANES) if lane % segments + 1 == segment]
            for batch, part in batches.items():
                lane, previous = int(self._chance.choice(lanes)), IMAGE if segment == 1 else 1.0
                self._lanes.run(RunBatch(1, batch, lane, part, segment, previous, 1.0, len(part)))
            for _ in batches:
                ended = self._events.get(timeout=WAIT_S)
                assert isinstance(ended, BatchEnded), ended
                labels.update(zip(batches[ended.batch], ended.predictions, strict=False))
                if segment < segments:
                    self._move(batches[ended.batch])
                if self._compacts:
                    self._store.compact()
        with torch.inference_mode():
            logits = self._stand.model(images, (1.0,) * segments)
        first, second = logits.topk(2, dim=1).values.T
        is_clear = (first - second) > LIKELY * (logits.max() - logits.min())
        expected = logits.argmax(1).tolist()
        clear = [number for number in range(len(images)) if is_clear[number]]
        return len(clear), sum(labels[number] != expected[number] for number in clear)

    def _move(self, part: tuple[int, ...]) -> None:
        """Move a batch's output to another arena, as a router would, while other batches run."""
        expected = gather([self._store.row(request) for request in part]).cpu()
        moved = self._lanes.move(Move(0, 1, 0, part))
        assert moved is not None  # no network is involved here
        came = tensor_in(self._arenas[1], 0, tuple(expected.shape), expected.dtype, moved.channels_last)
        self.moved += 1
        if not torch.equal(came, expected):
            self.torn += 1


# ------------------------------------------------------------------------------------------------------------- memory


def memory(stand: Stand) -> str:
    """Check a shortage of memory: a batch that is too large is reported; without the hog it runs."""
    stand.require_gpu("dedicated memory")
    instances = stand.instances()
    instance, batch = instances.make(1, 1.0), 4096
    x = stand.activations(1, IMAGE, batch)
    free_bytes, _ = torch.cuda.mem_get_info(stand.torch_device)
    hog = torch.empty(free_bytes - (200 << 20), dtype=torch.uint8, device=stand.torch_device)
    reason = ""
    try:
        _served(instances, instance, x, 1.0, IMAGE)
    except Exception as error:
        reason = explain(error)[0]
    del hog
    torch.cuda.empty_cache()
    after = _served(instances, instance, x, 1.0, IMAGE)
    stand.tell({"reason": reason, "left_bytes": 200 << 20})
    return "" if reason == "out_of_memory" and len(after) == batch else f"it said {reason or 'nothing'}"
