"""What of a server grows with the images that it has served: memory of its processes after some, and after more.

    python -m benchmarks.speed.serve_soak --images 100000 300000

It starts `slimsched serve` on emulated devices, sends images at a rate, and reads anonymous memory (Linux' RssAnon)
after each of the numbers; a first tenth of the least one fills caches. Arenas, which are shared and bounded, do not
count. `router_us` is the CPU time of the router's process for an image.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

from hw.frontend.load_generator import Load, generate

SCENARIO, ROUTER = "paper-live-x1", "fixed:0.25,0.25,0.25,0.25@sticky"
PORT = 8977


def soak(images: list[int], rate: float, per_request: int, log_gb: float) -> list[dict[str, Any]]:
    """Return readings after each number of images."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "slimsched", "serve", SCENARIO, "--router", ROUTER, "--port", str(PORT),
            "--out", f"{folder}/run", "--set", f"serve.log_gb={log_gb:g}",
        ]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
            assert server.stderr is not None
            assert any(line == "serve: ready\n" for line in server.stderr), "it did not start"
            try:
                _send(images[0] // 10, rate, per_request)
                readings = []
                for before, number in pairwise([0, *images]):
                    busy_s, answered = _metrics()
                    _send(number - before, rate, per_request)
                    after_s, after = _metrics()
                    readings.append(
                        {
                            "images": number,
                            "answered": after - answered,
                            "router_us": 1e6 * (after_s - busy_s) / (after - answered),
                            "memory_mb": _memory_mb(server.pid),
                            "log_bytes": sum(path.stat().st_size for path in Path(folder).rglob("*.segment")),
                        }
                    )
            finally:
                server.terminate()
                server.communicate()
    return readings


def _send(images: int, rate: float, per_request: int) -> None:
    url = f"http://127.0.0.1:{PORT}/v2/models/{SCENARIO}"
    generate(Load(url, rate, images / rate, per_request, "", 0))


def _metrics() -> tuple[float, float]:
    """Return CPU time of the router in seconds, and the number of answered images."""
    text = urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return float(values["slimsched_router_busy_seconds_total"]), float(values["slimsched_images_answered_total"])


def _memory_mb(pid: int) -> dict[str, float]:
    """Return the memory of the router and its children, in order."""
    router = psutil.Process(pid)
    processes = [router, *sorted(router.children(recursive=True), key=lambda process: process.pid)]
    return {
        f"{number}: {'router' if process.pid == pid else process.name()}": _anonymous_mb(process.pid)
        for number, process in enumerate(processes)
    }


def _anonymous_mb(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[100_000, 300_000])
    parser.add_argument("--rate", type=float, default=2000.0, help="images a second")
    parser.add_argument("--per-request", type=int, default=8)
    parser.add_argument("--log-gb", type=float, default=10.0)
    options = parser.parse_args()
    print(json.dumps(soak(options.images, options.rate, options.per_request, options.log_gb), indent=1))


if __name__ == "__main__":
    main()
