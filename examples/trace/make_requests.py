"""Makes `requests.csv` up, as a log may look: sixteen seconds of 20 requests/s, and 100 more a second in four of them.

No client sent these requests; your own log takes the file's place. In this folder: `python make_requests.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from kit.random_streams import stream

rng = stream(0, "requests of an example")
times_s = np.sort(np.concatenate([rng.uniform(0.0, 16.0, 16 * 20), rng.uniform(9.0, 13.0, 4 * 100)]))
lines = ["received_at,client"]
for time_s in times_s.tolist():
    received_at = datetime(2026, 3, 2, 9, tzinfo=UTC) + timedelta(seconds=time_s)
    lines.append(f"{received_at.isoformat(timespec='milliseconds')},{rng.integers(40)}")
Path("requests.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
