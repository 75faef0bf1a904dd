"""Prints what the product asks of a GPU, by counts of the null CUDA: `python -m tests.nullcuda.counts [NETWORK]`.

Counts, order and memory are those of torch on a GPU but for what libraries launch and hold inside; times are not.
"""

from __future__ import annotations

import sys

from tests.nullcuda import cases
from tests.nullcuda.build import missing
from tests.nullcuda.harness import run_case

POWERS = (1, 2, 4, 8, 16, 32)
HALFWAY = (1, 2, 4, 8, 12, 16, 24, 32)  # if padding costs more than a pass saves


def main(network: str) -> None:
    """Print a line for each figure."""
    for channels_last, order in ((False, "contiguous"), (True, "channels_last")):
        launches = run_case(cases.eager_launches, network, 32, channels_last)
        print(f"kernels of an uncaptured pass, {order}, by segment: {', '.join(map(str, launches))}", flush=True)
    print("calls of a captured pass (k kernel, g graph, m copy, p pageable copy, w wait):")
    for rows, calls in run_case(cases.pass_traces).items():
        print(f"  segment {rows}: {calls}, waits {calls.count('w')}", flush=True)
    for sizes in (POWERS, HALFWAY):
        found = run_case(cases.loaded, network, sizes, False)
        print(
            f"all instances of {network} at {len(sizes)} sizes: {found['captures']} captures of "
            f"{found['captured_nodes']} kernels, {found['launches']} kernels launched, {found['waits']} waits, "
            f"{found['held_bytes'] / 1e9:.2f} GB reserved",
            flush=True,
        )
    for number, run in enumerate(run_case(cases.served_runs, 2, 8 << 30, op_ns=50_000), start=1):
        before, ready, after = (run[moment]["captures"] for moment in ("before", "ready", "after"))
        print(
            f"run {number} of a cluster: {ready - before} captures by the preload, {after - ready} in the run",
            flush=True,
        )


if __name__ == "__main__":
    if problem := missing():
        sys.exit(problem)
    main(sys.argv[1] if len(sys.argv) > 1 else "large-digit-pairs")
