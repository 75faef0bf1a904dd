"""A visit to a lent GPU: steps with deadlines and predictions, the most telling first; then its table.

    python -m benchmarks.gpu visit 1 --seconds 540 --out runs/visit    # the first command
    python -m benchmarks.gpu visit 2 --seconds 300 --out runs/visit    # the second; the main job resumes
    python -m benchmarks.gpu visit 1 --list                            # what each step predicts; does nothing
    python -m benchmarks.gpu keep runs/visit                           # docs/data/gpu/NAME.json, and the page's table

`visits.csv` next to this file lists the steps. Each is a process group; what a step measured until its deadline counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time  # noqa: TID251 - deadlines are real
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.evidence import ROOT, Finding, Verdict, stamps, write
from benchmarks.gpu.running import in_a_process
from benchmarks.marked import fill
from calibrate.profile_fit import PATH_ERROR, REPEATABILITY
from kit.documents import write_json
from policies.vocabulary import Provenance
from scenarios.files.scenario_reading import read_profile
from scenarios.metrics.fidelity import PREDICTED, ValidationDocument, other_loads, validate_results
from scenarios.metrics.statistics import change_pct, estimate
from scenarios.runs.folder import STAGES
from scenarios.show.tables import Table, columns, to_markdown
from scenarios.terminal.screen import terminated_as_interrupted

SCHEMA: Final = "slimsched.gpu-visit/1"
SECONDS: Final = {1: 540.0, 2: 300.0}
PAGE: Final = ROOT / "docs" / "gpu-measurements.md"
SCENARIO: Final = "scenarios/gpu.yaml"
BESIDE: Final = "compile"  # runs alongside the next steps
_MARGIN_S: Final = 3.0


@dataclass(frozen=True)
class Step:
    """One step of a visit; `predicted` was written before it ran."""

    visit: int
    name: str
    expected_s: float
    deadline_s: float
    predicted: str

    def command(self, out: Path, scenario: str) -> list[str]:
        """Return its command."""
        slimsched = [sys.executable, "-m", "slimsched"]
        if self.name == BESIDE:
            options = ["--router", "compass", "--engine", "compiled", "--out", f"{out}/{BESIDE}"]
            return [*slimsched, "simulate", "paper", *options]
        if self.name == "main":
            return [*slimsched, "run", scenario, "--out", f"{out}/main"]
        return [sys.executable, "-m", "benchmarks.gpu", "--check", self.name, "--out", str(out)]


def steps(visit: int | None = None) -> list[Step]:
    """Return a visit's steps in order; both visits' for None."""
    with (Path(__file__).parent / "visits.csv").open(encoding="utf-8", newline="") as file:
        rows = [Step(int(v), name, float(e), float(d), text) for v, name, e, d, text in list(csv.reader(file))[1:]]
    return [step for step in rows if visit in (None, step.visit)]


def main(argv: Sequence[str]) -> int:
    """Run `visit N` or `keep FOLDER`; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    visiting = verbs.add_parser("visit", help="run the steps of visit 1 or 2")
    visiting.add_argument("visit", type=int, choices=SECONDS)
    visiting.add_argument("--seconds", type=float, help="of all steps together (540 and 300)")
    visiting.add_argument("--stretch", type=float, default=1.0, help="of deadlines, for a slow machine (1)")
    visiting.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone")
    visiting.add_argument("--out", type=Path, default=Path("runs/visit"), help="for the evidence (runs/visit)")
    visiting.add_argument("--scenario", default=SCENARIO, help=f"of the main job ({SCENARIO})")
    visiting.add_argument("--commit", default="", help="that is tried, if git can't say it")
    visiting.add_argument("--list", action="store_true", help="the steps and their predictions; does nothing")
    keeping = verbs.add_parser("keep", help="make the evidence's file and fill the page's table")
    keeping.add_argument("out", type=Path)
    options = parser.parse_args(argv)
    if options.verb == "keep":
        return keep(options.out)
    selected = [
        replace(step, deadline_s=options.stretch * step.deadline_s)
        for step in steps(options.visit)
        if step.name in (options.only or step.name)
    ]
    if options.list:
        for step in selected:
            print(f"{step.name:8}{step.expected_s:4.0f} s, at most {step.deadline_s:4.0f} s  {step.predicted}")
        return 0
    seconds = options.seconds or SECONDS[options.visit]
    return carry_out(selected, seconds, options.out.resolve(), options.scenario, stamps("cuda", options.commit))


@terminated_as_interrupted()
def carry_out(selected: Sequence[Step], seconds: float, out: Path, scenario: str, stamp: Mapping[str, str]) -> int:
    """Run each step in turn, in the remaining time; the evidence is written after each."""
    began_s, findings = time.monotonic(), list[Finding]()
    out.mkdir(parents=True, exist_ok=True)
    folder = out / f"visit-{selected[0].visit}"
    folder.mkdir(exist_ok=True)
    predicted = {step.name: step.predicted for step in selected}
    beside: subprocess.Popen[bytes] | None = None
    try:
        for step in selected:
            left_s = seconds - (time.monotonic() - began_s) - _MARGIN_S
            if step.name == BESIDE:
                beside = _alongside(step.command(out, scenario), folder / "compile.log")
                continue
            if left_s < min(step.expected_s, step.deadline_s) / 4:
                finding = Finding(step.name, "skipped", f"{left_s:.0f} s are left")
            else:
                deadline_s = min(step.deadline_s, left_s)
                command, log = step.command(out, scenario), folder / "visit.log"
                finding = in_a_process(command, step.name, deadline_s, log, first=signal.SIGTERM)
            if step.name == "main":
                finding = _of_main(finding, out / "main")
            findings.append(finding)
            write(folder, f"python -m benchmarks.gpu visit {step.visit}", stamp, predicted, findings)
            print(f"{step.name} {finding.verdict} in {finding.took_s:.1f} s {finding.reason}", flush=True)
        if beside is not None:
            wrong = "" if beside.poll() == 0 else f"it ended with {beside.poll()}" if beside.poll() else "not done"
            findings.append(Finding(BESIDE, "failed" if wrong else "passed", wrong))
            write(folder, f"python -m benchmarks.gpu visit {selected[0].visit}", stamp, predicted, findings)
    finally:
        if beside is not None and beside.poll() is None:
            os.killpg(beside.pid, signal.SIGKILL)
    return int(any(each.verdict == "failed" for each in findings))


def _alongside(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, process_group=0)


def _of_main(finding: Finding, folder: Path) -> Finding:
    """Judge the main job, which reports no verdict, by its files: they show its progress."""
    stages = sorted(path.stem for path in (folder / STAGES).glob("*.json"))
    numbers: dict[str, Any] = {"stages": ", ".join(stages), **_calibrated(folder / "profiles")}
    if (document := _validation(folder)) is not None:
        numbers |= {"runs": len(document["pairs"]), **compared(document)}
    verdict: Verdict = "failed" if finding.reason else "passed"
    return Finding(finding.id, verdict, finding.reason, numbers, finding.took_s)


def _calibrated(folder: Path) -> dict[str, Any]:
    """Return each profile's own statements: its mean errors, and the number of captured passes."""
    numbers: dict[str, Any] = {}
    for path in sorted(folder.glob("*.yaml")):
        profile = read_profile(path, "--out")
        errors = {error.metric: error.mean_abs_pct for error in profile.errors}
        numbers[f"{path.stem}_repeatability_pct"] = errors.get(REPEATABILITY)
        numbers[f"{path.stem}_paths_pct"] = errors.get(PATH_ERROR)
        numbers[f"{path.stem}_captured"] = profile.execution.get("captured", "all")
    return numbers


def _validation(folder: Path) -> ValidationDocument | None:
    """Return the complete validation, or that of the runs until the job was cut: each seed runs all routers first."""
    if (path := folder / "validation.json").exists():
        whole: ValidationDocument = json.loads(path.read_text())
        return whole
    runs = []
    for path in (folder / STAGES).glob("validate-*.jsonl"):
        *lines, _ = path.read_text().split("\n")  # a kill may leave half a line
        runs += [row["run"] for row in map(json.loads, lines) if "run" in row]
    return validate_results(runs, Provenance.MEASURED) if runs else None


def compared(document: ValidationDocument) -> dict[str, Any]:
    """Return mean and p99 of each router in simulation and on executors, in ms, their errors, and loads that differ."""
    numbers: dict[str, Any] = {}
    for row in document["rows"]:
        pairs = [pair for pair in document["pairs"] if pair["router"] == row["router"]]
        for measure in PREDICTED:
            simulated_s = estimate([measure.of(pair["simulated"]) for pair in pairs])["mean"]
            hardware_s = row["executors"][measure.stem]["mean"]
            if simulated_s is None or hardware_s is None:
                continue
            name = f"{row['router']}_{measure.stem.removeprefix('latency_')}"
            numbers[f"{name}_simulated_ms"] = 1e3 * simulated_s
            numbers[f"{name}_measured_ms"] = 1e3 * hardware_s
            numbers[f"{name}_error_pct"] = change_pct(simulated_s, hardware_s)
    different = [f"{load.server} {load.simulated} and {load.executors}" for load in other_loads(document)]
    return {**numbers, "other_loads": ", ".join(different) or "none"}


# ------------------------------------------------------------------------------------------------- evidence and page


def keep(out: Path) -> int:
    """Join both visits' evidence into one file of docs/data/gpu, and fill the page's table from it.

    A rehearsal on the null CUDA is marked as such: nothing in it was measured on a GPU.
    """
    findings, stamp = list[dict[str, Any]](), dict[str, str]()
    for visit in SECONDS:
        path = out / f"visit-{visit}" / "evidence.json"
        if path.exists():
            evidence = json.loads(path.read_text())
            stamp = evidence["stamps"]
            findings += [{"visit": visit, **finding} for finding in evidence["found"]]
    if not findings:
        print(f"{out}: no visit-1/evidence.json or visit-2/evidence.json; run python -m benchmarks.gpu visit 1 first")
        return 2
    is_rehearsal = "Null GPU" in stamp.get("gpu", "")
    document = {
        "schema": SCHEMA,
        "rehearsal": is_rehearsal,
        "stamps": stamp,
        "predicted": [asdict(step) for step in steps()],
        "found": findings,
    }
    kind = "rehearsal" if is_rehearsal else stamp.get("gpu", "gpu").split()[-1].lower()
    path = ROOT / "docs" / "data" / "gpu" / f"{kind}-{stamp.get('commit', 'unknown')[:8]}.json"
    write_json(path, document)
    fill(PAGE, "visit", table_of(document))
    print(f"{path}; {PAGE}")
    return 0


def table_of(document: Mapping[str, Any]) -> str:
    """Return each step's prediction next to its result, as Markdown."""
    findings = {(finding["visit"], finding["id"]): finding for finding in document["found"]}
    header = (
        "Rehearsed on the null CUDA: durations are this machine's, numbers are not a GPU's."
        if document["rehearsal"]
        else f"Measured on {document['stamps'].get('gpu')} at commit {document['stamps'].get('commit', '')[:8]}."
    )
    rows = []
    for step in document["predicted"]:
        finding = findings.get((step["visit"], step["name"]))
        result = "" if finding is None else f"{finding['verdict']} {finding['reason']}".strip()
        numbers = "" if finding is None or document["rehearsal"] else _briefly(finding["numbers"])
        took = "" if finding is None else f"{finding['took_s']:.0f}"
        rows.append([f"{step['visit']}: {step['name']}", step["predicted"], result, numbers, took])
    return f"{header}\n\n{to_markdown(Table(columns('step', 'predicted', 'outcome', 'found', 's'), rows))}"


def _briefly(numbers: Mapping[str, Any]) -> str:
    texts = (f"{value:.4g}" if isinstance(value, float) else value for value in numbers.values())
    return "; ".join(f"{name} {text}" for name, text in zip(numbers, texts, strict=True))
