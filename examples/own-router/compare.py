"""The router beside this file from Python, and two bundled ones: `python compare.py`, in this folder."""

from __future__ import annotations

import slimsched

table = slimsched.compare("scenario.yaml", ["jsq", "ladder", "thrifty:Thrifty"])
for each in table.routers:
    figures = {name: each.estimates[name].mean for name in ("latency_mean_s", "accuracy", "energy_per_image_j")}
    print(each.router, {name: None if value is None else round(value, 3) for name, value in figures.items()})
