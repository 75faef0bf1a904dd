"""The figures that a page shows for a command are those that the command prints, to the page's digits.

The commands are those of simulations and bounds that need only bundled files. Tutorials and how-to pages are
followed by `tests.test_site`, and figures of training, tuning, calibrations and executors are of the commit that their
page names.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slimsched.cli import main

ROOT = Path(__file__).resolve().parents[1]
ENERGY = "simulate main-poisson50-10g --router compass --set duration_s=20 --set slo.floor=0"
CROWDED = 'simulate classes --router compass --set "workload={kind: poisson, rate_img_s: 10600}"'
SINGLE = (
    'simulate main-poisson70-10g --router compass --set "workload={kind: poisson, rate_img_s: 8400}" '
    "--set slo.floor=0.76 --set duration_s=60"
)
STABLE = "--router fixed:0.25,0.5,0.75,1.0@sticky --seed 0 --duration 30s"
QUOTED = (
    ("docs/routers.md", f"{ENERGY} --set slo.energy_weight=0", ("0.162", "76.18")),
    ("docs/routers.md", f"{ENERGY} --set slo.energy_weight=10", ("0.132", "75.65")),
    ("docs/routers.md", f"{ENERGY} --set slo.energy_weight=40", ("0.097", "74.59")),
    ("docs/routers.md", f"{CROWDED} --set slo.refuse=false", ("75.20", "66.0", "74.00", "51.4")),
    ("docs/routers.md", CROWDED, ("75.96", "45.8", "88.9", "74.03", "32.5", "26.9")),
    ("docs/routers.md", f"{SINGLE} --set slo.refuse=false", ("75.23", "68.9")),
    ("docs/routers.md", f"{SINGLE} --set slo.refuse=true", ("76.00", "46.8", "62.4", "5,294")),
    ("docs/how-to/classes.md", "bound classes", ("8,103",)),
    ("docs/how-to/classes.md", "bound classes --set classes.1.floor=0.76", ("5,590",)),
    ("docs/scenarios.md", f"capacity scenarios/main-poisson90-10g.yaml {STABLE}", ("7,490", "7,693")),
    ("docs/scenarios.md", f"capacity scenarios/main-poisson90-1g.yaml {STABLE}", ("3,543", "3,644")),
    ("docs/scenarios.md", f"capacity scenarios/mixed-links.yaml {STABLE}", ("3,418", "3,561")),
    ("docs/scenarios.md", f"capacity scenarios/main-ten-10g.yaml {STABLE}", ("7,215", "7,421")),
    ("docs/scenarios.md", f"capacity scenarios/memory-tight.yaml {STABLE}", ("7,490", "7,693")),
    ("docs/scenarios.md", f"capacity scenarios/night.yaml {STABLE}", ("11,092", "11,428")),
)


@pytest.mark.release
@pytest.mark.parametrize(("page", "command", "figures"), QUOTED)
def test_a_page_has_the_figures_of_its_command(
    page: str,
    command: str,
    figures: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command), "--quiet"]) == 0
    printed, text = capsys.readouterr().out, (ROOT / page).read_text(encoding="utf-8")
    assert [figure for figure in figures if figure not in text] == []
    numbers = [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*\.?\d*", printed)]
    assert [figure for figure in figures if not any(is_rounded(number, figure) for number in numbers)] == [], printed


def is_rounded(number: float, figure: str) -> bool:
    digits = len(figure.partition(".")[2])
    return abs(number - float(figure.replace(",", ""))) <= 0.5000001 * 10.0**-digits
