"""Alibaba's openb pods (2023): `openb_pod_list_*.csv`, times in seconds from the trace's start, shares of a GPU.

Columns: github.com/alibaba/clusterdata, cluster-trace-gpu-v2023 (Weng et al., USENIX ATC 2023). A pod of one GPU may
ask for thousandths of it (`gpu_milli`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from jobs.delimited import Columns, columns, first_line, split_header
from jobs.fields import named, numbers, status_of
from jobs.lines import blocks
from jobs.rows import Options, Rows
from jobs.tally import Tally

_REQUIRED: Final = (
    "name", "num_gpu", "gpu_milli", "gpu_spec", "pod_phase", "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip


def looks_like(lines: Sequence[str]) -> bool:
    """Whether these are the first lines of such a log."""
    return set(_REQUIRED) <= set(lines[0].split(","))


def read(path: Path, _: Options, tally: Tally) -> Iterator[Rows]:
    """Its rows."""
    line, rest = first_line(path, blocks(path))
    names = split_header(line, ",", str(path), _REQUIRED, "is it an openb_pod_list file?")
    for block in columns(rest, names, _REQUIRED, tally, ",", quoted=True):
        yield _rows(block)


def _rows(block: Columns) -> Rows:
    start_s, end_s = numbers(block.of("scheduled_time")), numbers(block.of("deletion_time"))
    gpus, milli = numbers(block.of("num_gpu")), numbers(block.of("gpu_milli"))
    return Rows(
        lines=block.lines,
        submit_s=numbers(block.of("creation_time")),
        start_s=start_s,
        run_s=end_s - start_s,
        gpus=gpus,
        gpu_share=np.where(gpus == 1, milli / 1000, 1.0),
        texts={
            "job_id": block.of("name"),
            "gpu_types": block.of("gpu_spec"),
            "status": named(block.of("pod_phase"), status_of),
        },
        is_date=False,
        refused={"never started": np.isnan(start_s), "not yet ended": np.isnan(end_s)},
    )
