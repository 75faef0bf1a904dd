"""x"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

@dataclass(frozen=True, slots=True)
class GreedyKnobs:
    """The knobs of Algorithm 1 (the arrival rate r belongs to the workload).

    Attributes:
        widths: the width set W, ascending.
        instance_bytes: device memory of an instance by (segment, width).
        context_bytes: device memory the process uses before any instance.
        batch_limit: B_max.
        vram_cap_bytes: M_max.
        utilization_block: U_blk as a share; no load while the latest sample is at or above it.
        idle_unload_ns: t_idle; None never unloads.
        scale_trigger: Q_th, queued requests of one key above which another instance may load.
        scale_cap: N_new, loads for one key until its queue empties.
        head_of_line: `skip` tries the next key when the head's can't be served; `block` is the literal algorithm.
        skip_limit_ns: once the oldest blocked key has waited so long, nothing overtakes it.
        served_width: a batch runs at the requested width, or at its instance's own.
        padded_sizes: the batch sizes the device is given (`padding: grid`); empty for no padding.
        preload: (segment, width) instances to load when the server comes up.
        load_retries: after so many failed loads in a row, what waits for that instance is rejected.
        load_backoff_ns: the wait before the second try; it doubles with each.
    """

    widths: tuple[float, ...]
    instance_bytes: Mapping[tuple[int, float], int]
    context_bytes: int
    batch_limit: int
    vram_cap_bytes: int
    utilization_block: float = 0.95
    idle_unload_ns: int | None = 5_000_000_000
    scale_trigger: int = 64
    scale_cap: int = 2
    head_of_line: Literal["skip", "block"] = "skip"
    skip_limit_ns: int = 500_000_000
    served_width: Literal["requested", "instance"] = "requested"
    padded_sizes: tuple[int, ...] = ()
    preload: tuple[tuple[int, float], ...] = ()
    load_retries: int = 3
    load_backoff_ns: int = 100_000_000
