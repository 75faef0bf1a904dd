"""Routers over loads: a table of pandas, and a plot of matplotlib, in `loads.png`.

In this folder: `python loads.py`. It needs pandas: `pip install 'slim-scheduler[frames]'`. The first run on a machine
also compiles the engine, 10 to 20 s. It prints:

                                         latency_p99_s  expected_accuracy  energy_per_image_j
    router                         load
    fixed:0.25,0.5,0.75,1.0@sticky 0.3          0.0156             0.7533              0.1653
                                   0.5          0.0252             0.7533              0.1298
                                   0.7          0.0446             0.7533              0.1140
                                   0.9          0.0715             0.7533              0.1044
                                   1.1          0.6049             0.7533              0.1010
    ladder                         0.3          0.0298             0.7642              0.2572
                                   0.5          0.0465             0.7618              0.1722
                                   0.7          0.0564             0.7581              0.1317
                                   0.9          0.0692             0.7547              0.1058
                                   1.1          0.0728             0.7520              0.0879
    slackfit                       0.3          0.0305             0.7643              0.2588
                                   0.5          0.1136             0.7592              0.1990
                                   0.7          0.1164             0.7460              0.1411
                                   0.9          0.1156             0.7368              0.1089
                                   1.1          0.1148             0.7295              0.0885

The ladder gives up accuracy as load grows, and so its p99 stays below 75 ms. The fixed tuple is faster and cheaper at
light load, and can't keep up beyond 7,500 images/s: there its p99 only shows how long the run was. No rule here is
tuned; slackfit as it ships is slower and less accurate than the ladder from a load of 0.5 on. Runs of 4 s are short: a
study needs longer ones.
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")  # it writes a file, and opens no window

import matplotlib.pyplot as plt
import pandas

import slimsched

FIXED = "fixed:0.25,0.5,0.75,1.0@sticky"  # one tuple of widths for all
CAPACITY_IMG_S = 7500  # what that carries on the cluster of this scenario, which is bundled
SHOWN = {
    "latency_p99_s": "p99 latency in s",
    "expected_accuracy": "accuracy, by the table, of the widths that ran",
    "energy_per_image_j": "energy in J/image",
}

frames = []
for load in (0.3, 0.5, 0.7, 0.9, 1.1):
    changes = {"workload.rate_img_s": load * CAPACITY_IMG_S, "duration_s": 4, "warmup_s": 1}
    scenario = slimsched.load("main-poisson70-10g", changes)
    table = slimsched.compare(
        scenario, [FIXED, "ladder", "slackfit"], seeds=[0, 1, 2], engine="compiled", out=f"runs/load-{load}"
    )
    frames.append(table.to_frame().assign(load=load))
runs = pandas.concat(frames)  # a row a router, load and seed; a column for every number of a run

found = runs.groupby(["router", "load"])[list(SHOWN)].agg(["mean", "std"])  # over the seeds
print(found.xs("mean", axis="columns", level=1).round(4).to_string())

figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
for axis, (column, title) in zip(axes, SHOWN.items(), strict=True):
    for router, row in found[column].groupby("router"):
        loads = row.index.get_level_values("load")
        axis.errorbar(loads, row["mean"], row["std"], label=router, marker="o", capsize=3)
    axis.set(title=title, xlabel=f"load, as a share of {CAPACITY_IMG_S:,} images/s")
axes[0].set(yscale="log", yticks=[0.02, 0.05, 0.1, 0.2, 0.5])
axes[0].yaxis.set_major_formatter("{x:g}")
axes[0].minorticks_off()
axes[0].legend(title="mean and deviation of 3 seeds")
figure.savefig("loads.png", dpi=120)
