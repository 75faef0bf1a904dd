"""The printed tables of what slimming gains: each metric in its column."""

from __future__ import annotations

from calibrate.slimming import Effort, FullWidth, Point, Rival, Slimming, Spread, Timing
from scenarios.show.slimming import format_slimming

HALF = Spread(0.5, 0.4, 0.6)
NARROW = {"served": Timing(0.002, HALF, 0.625), "views": Timing(0.003, Spread(0.75, 0.7, 0.8), 0.3125)}
FULL = {"served": Timing(0.004, Spread(1.0, 1.0, 1.0), None)}
FOUND = Slimming(
    network="net",
    device="chip",
    execution={"device": "cpu", "threads": "1"},
    effort=Effort(),
    points=(
        Point(None, 0.5, 8, 20, 0.2, 5, {**NARROW, "packed": Timing(0.001, Spread(0.25, 0.2, 0.3), 0.9375)}),
        Point(None, 1.0, 8, 100, 1.0, 5, FULL),
        Point(2, 0.5, 8, 20, None, 3, NARROW),
    ),
    full_width=(FullWidth(8, 0.004, 5, {"plain stack": Rival(0.005, Spread(0.8, 0.7, 0.9))}),),
    absent={"one piece": "a reason"},
)


def test_each_metric_is_in_its_column() -> None:
    """Times in ms, the share in percent, what there is none of as `-`; a rival nobody measured has no column."""
    lines = [" ".join(line.split()) for line in format_slimming(FOUND).splitlines()]
    assert lines[0] == "net on chip (device cpu, threads 1)"
    assert "batch width ideal served ms /full saved views/full packed/full rounds" in lines
    assert "8 0.5 0.20 2.000 0.50 [0.40 0.60] 62 % 0.75 0.25 5" in lines
    assert "8 1 1.00 4.000 1.00 [1.00 1.00] - - - 5" in lines
    assert "batch served ms plain stack ms served/ rounds" in lines
    assert "8 4.000 5.000 0.80 [0.70 0.90] 5" in lines
    assert "segment batch width ideal served ms /full saved views/full rounds" in lines
    assert "2 8 0.5 - 2.000 0.50 [0.40 0.60] 62 % 0.75 3" in lines
    assert lines[-1] == "- one piece: a reason"
