"""How many GPUs does a load need? Two routers on one to six GPUs, beside the bound that no router can beat.

In this folder: `python sizes.py`. The first run on a machine also compiles the engine, 10 to 20 s. It prints:

    GPUs router mean latency (bound)  p99 latency       accuracy          J/image (bound)
       1 jsq    overloaded: so accurately, at most 279 images/s
       1 ladder  0.153 +-0.000 (0.017) s  0.210 +-0.008 s  74.73% +-0.07%  0.31 +-0.01 (0.27)
       2 jsq    overloaded: so accurately, at most 558 images/s
       2 ladder  0.085 +-0.004 (0.017) s  0.153 +-0.023 s  75.94% +-0.04%  0.58 +-0.01 (0.55)
       3 jsq     0.201 +-0.137 (0.019) s  0.438 +-0.250 s  76.43% +-0.00%  0.93 +-0.00 (0.91)
       3 ladder  0.065 +-0.001 (0.018) s  0.113 +-0.010 s  76.28% +-0.01%  0.79 +-0.01 (0.74)
       4 jsq     0.059 +-0.002 (0.018) s  0.113 +-0.018 s  76.43% +-0.00%  1.02 +-0.01 (0.99)
       4 ladder  0.058 +-0.001 (0.018) s  0.102 +-0.011 s  76.42% +-0.01%  1.01 +-0.01 (0.97)
       6 jsq     0.049 +-0.001 (0.018) s  0.068 +-0.010 s  76.43% +-0.00%  1.19 +-0.01 (1.14)
       6 ladder  0.049 +-0.000 (0.018) s  0.069 +-0.004 s  76.43% +-0.00%  1.19 +-0.01 (1.14)

Full width (`jsq`) needs three GPUs to keep up, and four to be quick. The ladder does with one, at 1.7 points less
accuracy. From four on both are the same, and each further GPU buys less time for more energy: it idles. Energy is
within 15 % of the bound. Latency is three to eleven times the bound, which knows neither queues nor waiting for a batch
to fill. The bound is of the mean rate; intervals are over three seeds.
"""

from __future__ import annotations

import slimsched

print("GPUs router mean latency (bound)  p99 latency       accuracy          J/image (bound)")
for count in (1, 2, 3, 4, 6):
    gpu = {"device": {"emulated": "rtx-2080-ti", "slowdown": 20}, "link": "10gbe"}
    servers = [{"name": f"gpu{index}", **gpu} for index in range(count)]
    scenario = slimsched.load("scenario.yaml", {"cluster.servers": servers})
    table = slimsched.compare(scenario, engine="compiled", out=f"runs/{count}")
    for router in table.routers:
        found = router.estimates
        floor = found["expected_accuracy"].mean
        bound = slimsched.bound("scenario.yaml", changes={"cluster.servers": servers, "slo.floor": floor})
        if bound.energy_per_image_j is None:
            print(f"{count:4} {router.router:6} overloaded: so accurately, at most {bound.capacity_img_s:.0f} images/s")
            continue
        print(
            f"{count:4} {router.router:6}",
            f"{found['latency_mean_s']:.3f} ({bound.latency_mean_s:.3f}) s",
            f"{found['latency_p99_s']:.3f} s",
            f"{found['expected_accuracy']:.2%}",
            f"{found['energy_per_image_j']:.2f} ({bound.energy_per_image_j:.2f})",
            sep="  ",
        )
