"""The benchmark: `make bench-peers`, or `python -m benchmarks.speed.peers` where Ray Serve and LitServe are installed.

Every measurement has processes of its own, with a bare loop before and after. First each system's settings are tried
once; the best for throughput and the best for latency are then measured `--repeats` times, the systems in turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.speed.peers import lit_serve, nothing, ours, ray_serve
from benchmarks.speed.peers.figures import Repeat, format_report, repeat_of, summarise
from benchmarks.speed.peers.forwards import (
    BATCH_LIMIT,
    LOW_LOAD,
    MODEL,
    PARTS,
    SATURATION,
    Job,
    pin_process,
    split_cores,
)
from benchmarks.speed.peers.load import IN_FLIGHT
from benchmarks.speed.peers.processes import end_all
from kit.errors import InputError

SETTINGS: dict[str, Sequence[dict[str, Any]]] = {
    "ours": ours.SETTINGS,
    "ray": ray_serve.SETTINGS,
    "litserve": lit_serve.SETTINGS,
}
_NEEDS = {"ray": "ray", "litserve": "litserve"}
_OVERLOAD = 1.5  # times the bare loop
_MOST_WRONG = 0.01  # of the labels: batches of another size round differently
_LIMIT_S = 240.0


class MeasurementError(Exception):
    """A measurement's process failed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 2 for what the user can mend, 1 where a measurement failed."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    try:
        return _main(options)
    except (InputError, MeasurementError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1


def _main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        if str(options.model) == nothing.NAME:
            options.model = nothing.write(Path(folder))
        return _compare(options)


def _compare(options: argparse.Namespace) -> int:
    missing = [name for name in options.systems if name in _NEEDS and importlib.util.find_spec(_NEEDS[name]) is None]
    if missing:
        print(f"not installed here: {', '.join(missing)}; `make bench-peers` installs them", file=sys.stderr)
        return 2
    core, others = split_cores()
    pin_process(others)  # what starts the measurements stays off the model's core, too
    model, _ = nothing.model_file(str(options.model)).load()
    shape = tuple(model.spec.input_shape)
    interval_s = options.interval_ms / 1000
    base = Job("bare", str(options.model), shape, {}, PARTS, options.seconds, interval_s, 0.0, core, others)
    bare = _carry_out(base)
    base = replace(base, overload_per_s=options.overload or _OVERLOAD * bare["images_per_s"])
    tried = {name: _tune(replace(base, system=name, seconds=options.tune_seconds), options.tune)
             for name in options.systems}  # fmt: skip
    chosen = {name: _best(found) for name, found in tried.items()}
    repeats = _measure(base, chosen, options.repeats)
    report = {
        "schema": "slimsched.peers/1",
        "machine": _machine(core, others),
        "load": _load(options, shape, base.overload_per_s),
        "tried": tried,
        "chosen": chosen,
        **summarise(repeats),
    }
    print(_heading(report))
    print(format_report(report))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.peers", description=__doc__)
    text = "a network's file (default: %(default)s), or `nothing`: one that does next to nothing"
    parser.add_argument("--model", type=Path, default=MODEL, help=text)
    text = "requests a second that overload ours (default: 1.5 times the bare loop)"
    parser.add_argument("--overload", type=float, help=text)
    parser.add_argument("--systems", nargs="+", choices=sorted(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of saturation, and of low load")
    parser.add_argument("--interval-ms", type=float, default=20.0, help="between requests at low load")
    parser.add_argument("--tune-seconds", type=float, default=3.0, help="for each setting that is tried")
    parser.add_argument("--no-tune", dest="tune", action="store_false", help="take every system's first setting")
    parser.add_argument("--json", type=Path, help="where the report goes")
    return parser.parse_args(arguments)


# -------------------------------------------------------------------------------------------------------- measurements


def _tune(job: Job, tune: bool) -> list[dict[str, Any]]:
    """Each setting once, with what it reached; one that fails is told about and not taken."""
    found: list[dict[str, Any]] = []
    for settings in SETTINGS[job.system] if tune else SETTINGS[job.system][:1]:
        try:
            got = _carry_out(replace(job, settings=settings)) if tune else None
        except MeasurementError as error:
            found.append({"settings": settings, "failed": str(error)})
            continue
        if got is None:
            found.append({"settings": settings, "images_per_s": None, "p50_s": None})
        else:
            p50_s = float(np.median(got["latencies_s"]))
            found.append({"settings": settings, "images_per_s": got["images_per_s"], "p50_s": p50_s})
            _tell(f"  {settings}: {got['images_per_s']:.0f} images/s, p50 {1000 * p50_s:.2f} ms")
    return found


def _best(tried: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings for each part."""
    worked = [one for one in tried if "failed" not in one]
    if not worked:
        raise MeasurementError(f"no setting worked: {tried[-1]['failed']}")
    return {
        SATURATION: max(worked, key=lambda one: one["images_per_s"] or 0.0)["settings"],
        LOW_LOAD: min(worked, key=lambda one: one["p50_s"] or 0.0)["settings"],
    }


def _measure(base: Job, chosen: Mapping[str, dict[str, dict[str, Any]]], count: int) -> dict[str, list[Repeat]]:
    """All systems in turns, bare loops between; who is first changes from repeat to repeat."""
    found: dict[str, list[Repeat]] = {name: [] for name in chosen}
    names = list(chosen)
    for number in range(count):
        before = _carry_out(base)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            got = _both_parts(replace(base, system=name), chosen[name])
            after = _carry_out(base)
            found[name].append(repeat_of(got[SATURATION], got[LOW_LOAD], (before, after)))
            before = after
            one = found[name][-1]
            _tell(f"{number + 1}/{count} {name}: {one.images_per_s:.0f} images/s, p50 {1000 * one.p50_s:.2f} ms")
    return found


def _both_parts(job: Job, settings: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """In one process where both have the same settings."""
    if settings[SATURATION] == settings[LOW_LOAD]:
        both = _carry_out(replace(job, settings=settings[SATURATION]))
        return {SATURATION: both, LOW_LOAD: both}
    return {part: _carry_out(replace(job, settings=settings[part], parts=(part,))) for part in PARTS}


def _carry_out(job: Job) -> dict[str, Any]:
    """One measurement in processes of its own; nothing of them is left."""
    _tell(f"{job.system} {job.settings or ''}")
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        source, destination, log = (Path(folder) / name for name in ("job.json", "out.json", "log"))
        source.write_text(job.as_json(), encoding="utf-8")
        path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, "-m", "benchmarks.speed.peers.child", str(source), str(destination)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
            ended = _wait(process)
        if not destination.exists():
            tail = log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
            raise MeasurementError(f"{job.system} {job.settings}: {'failed' if ended else 'took too long'}\n{tail}")
        found: dict[str, Any] = json.loads(destination.read_text(encoding="utf-8"))
    wrong = max(found.get("wrong", 0.0), found.get("wrong_single", 0.0))
    if wrong > _MOST_WRONG:
        raise MeasurementError(f"{job.system} {job.settings}: {100 * wrong:.1f} % of its labels are wrong")
    return found


def _wait(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended in time; its descendants have ended in any case."""
    known: dict[int, psutil.Process] = {}
    try:
        for _ in range(round(_LIMIT_S)):
            known |= {child.pid: child for child in psutil.Process(process.pid).children(recursive=True)}
            try:
                process.wait(1.0)
                return True
            except subprocess.TimeoutExpired:
                continue
        return False
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        end_all(list(known.values()))


# -------------------------------------------------------------------------------------------------------------- telling


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _machine(core: Sequence[int], others: Sequence[int]) -> dict[str, Any]:
    packages = ("ray", "litserve", "uvloop", "fastapi", "torch", "numpy")
    return {
        "cpu": _cpu_name(),
        "model_core": list(core),
        "other_cores": list(others),
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _load(options: argparse.Namespace, shape: Sequence[int], overload_per_s: float) -> dict[str, Any]:
    return {
        "model": str(options.model),
        "request_bytes": 4 * int(np.prod(shape)),
        "batch_limit": BATCH_LIMIT,
        "in_flight": IN_FLIGHT,
        "overload_per_s": overload_per_s,
        "seconds": options.seconds,
        "interval_s": options.interval_ms / 1000,
        "repeats": options.repeats,
    }


def _heading(report: Mapping[str, Any]) -> str:
    machine, load = report["machine"], report["load"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("ray", "litserve", "torch", "python"))
    lines = [
        f"{load['model']}, {load['request_bytes']} bytes a request, batches of at most {load['batch_limit']}",
        f"{machine['cpu']}; model on core {machine['model_core']}, all else on {machine['other_cores']}; {versions}",
        *(f"{name}: {part} with {settings}" for name, both in report["chosen"].items()
          for part, settings in both.items()),
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
