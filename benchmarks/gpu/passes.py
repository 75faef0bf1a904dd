"""Checks of CUDA calls of a pass, memory of captured passes, and unequal shares of one GPU at once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.evidence import ROOT
from benchmarks.gpu.stand import CantTellError, Stand
from hw.device_settings import start_daemon
from hw.networks.network_files import ModelFile, Network
from hw.router.local_workers import start_workers
from hw.transport.messages import BenchmarkPaths, BenchmarkTogether, Point, Timed, TogetherResult
from hw.worker.cuda import GraphedInstance, own_stream, reserved_bytes
from hw.worker.instances import Instances, predictions_of, serve
from hw.worker.torch_outfit import torch_workers
from policies.vocabulary import IMAGE
from scenarios.files.scenario_reading import load_scenario

PASSES: Final = 20
BATCH: Final = 32
MEMORY_NETWORK: Final = "large-digit-pairs"
SHARED_S: Final = 1.0
WORTH: Final = 4.0  # times: the widest path over the narrowest, on the smallest share
_CALLS: Final = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaStreamSynchronize", "cudaMemset")


def launches(stand: Stand) -> str:
    """Count calls of CUDA's runtime per pass, by segment: eager in both orders of memory, and captured."""
    stand.require_gpu("CUDA's runtime")
    for name, changes in {
        "contiguous": {"channels_last": False, "graphs": False},
        "channels_last": {"channels_last": True, "graphs": False},
        "captured": {"channels_last": False, "graphs": True},
    }.items():
        maker = stand.instances(**changes)
        with torch.inference_mode(), own_stream(stand.torch_device):
            for segment in range(1, stand.model.spec.segments + 1):
                if not (calls := _calls(maker, segment)):
                    raise CantTellError("torch's profiler sees no calls of CUDA's runtime here")
                stand.tell({f"{name}_{segment}": calls})
    return ""


def _calls(maker: Instances, segment: int) -> str:
    instance, spec = maker.make(segment, 1.0), maker.model.spec
    previous = IMAGE if segment == 1 else 1.0
    rows = maker.inputs(segment, previous, BATCH)

    def run() -> None:
        y = serve(instance, rows, (1.0, previous, BATCH), maker.device.memory_format)
        if segment == spec.segments:
            predictions_of(y)

    for _ in range(3):
        run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(PASSES):
            run()
    maker.free(instance)
    counts = Counter(event.name for event in profiled.events() if event.name.startswith(_CALLS))
    return ", ".join(f"{count / PASSES:g} {name}" for name, count in sorted(counts.items()))


def memory(stand: Stand) -> str:
    """Measure device memory of all instances of the main job's network, captured at all sizes that may be served."""
    stand.require_gpu("captured passes")
    sizes = (1, 2, 4, 8, 12, 16, 24, 32)
    model = Network(MEMORY_NETWORK).build().eval()
    device = replace(stand.device, graphs=True, warm_sizes=sizes)
    before_bytes = reserved_bytes(stand.torch_device)
    maker, loaded = Instances(model, stand.file.path, device, stand.torch_device), list[GraphedInstance]()
    with torch.inference_mode(), own_stream(stand.torch_device):
        for segment in range(1, model.spec.segments + 1):
            for width in model.spec.widths:
                instance = maker.load(segment, width)
                assert isinstance(instance, GraphedInstance)
                loaded.append(instance)
    captured = f"{sum(each.captured for each in loaded)} of {sum(each.tried for each in loaded)}"
    refused = next((each.refused for each in loaded if each.refused), "")
    taken_gb = (reserved_bytes(stand.torch_device) - before_bytes) / 1e9
    stand.tell({"instances": len(loaded), "taken_gb": taken_gb, "captured": captured, "refused": refused})
    return f"refused: {refused}" if refused else ""


def shares(stand: Stand) -> str:
    """Measure the scenario's shares of one GPU: each alone, then all at once; the effect of a width on each."""
    stand.require_gpu("shares")
    if problem := start_daemon():
        raise CantTellError(f"no MPS: {problem}; servers with smaller shares compute each pass several times instead")
    scenario = load_scenario(ROOT / "scenarios" / "gpu.yaml")
    devices_of = [server.device for server in scenario.cluster.named_servers if server.device]
    percents = [device.sm_percent for device in devices_of if device.sm_percent]
    assert scenario.model.checkpoint is not None
    file = ModelFile(Path(scenario.model.checkpoint))
    devices = [(f"{percent}%", replace(stand.device, graphs=True, sm_percent=percent)) for percent in percents]
    model, _ = file.load()
    paths = [
        tuple(Point(s, width, IMAGE if s == 1 else width, BATCH) for s in range(1, model.spec.segments + 1))
        for width in (model.spec.widths[0], model.spec.widths[-1])
    ]
    worth = dict[int, float]()
    with ExitStack() as stack:
        specs = stack.enter_context(torch_workers(devices, file))
        workers = stack.enter_context(start_workers(specs))
        for worker, percent in zip(workers, percents, strict=True):
            worker.wait_until_ready()
            narrow_s, wide_s = worker.ask(BenchmarkPaths(tuple(paths), PASSES), Timed).samples_s
            worth[percent] = wide_s / narrow_s
            stand.tell({f"narrow_{percent}_ms": 1e3 * narrow_s, f"wide_{percent}_ms": 1e3 * wide_s})
        at_once = BenchmarkTogether((paths[1][-2],), SHARED_S)
        with ThreadPoolExecutor(len(workers)) as pool:
            results = list(pool.map(lambda worker: worker.ask(at_once, TogetherResult), workers))
        for percent, result in zip(percents, results, strict=True):
            stand.tell({f"at_once_{percent}_img_s": BATCH * result.results[0].completed / result.results[0].elapsed_s})
    smallest = min(percents)
    few = worth[smallest] < WORTH
    return f"on {smallest} % the widest path takes {worth[smallest]:.1f} times the narrowest" if few else ""
