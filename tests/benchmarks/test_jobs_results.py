"""RLTune's page from a drawn trace, with next to no effort: every section, from files, and made once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.study import jobs_results, pages
from jobs.generate import Drawing, Law, draw
from jobs.learning.training import TrainingConfig
from jobs.trace import read_trace, write_trace
from kit.documents import read_checked

SECTIONS = (
    "In short",
    "The abstract's three maxima",
    "How much of the wait goes without learning",
    "The figures",
)
TRAINED = (
    "rltune-faithful",
    "rltune-fixed",
    "waiting",
    "waiting-lam-1",
    "reward",
    "against",
    "value",
    "warm",
    "earlier",
)

EIGHT = jobs_results.StudyEffort(epochs=8, episodes=1, windows=2)


def trace(path: Path, many: int, seed: int = 0) -> Path:
    sizes = {1: 0.6, 2: 0.1, 4: 0.1, 8: 0.15, 16: 0.05}
    law = Law("lognormal", {"mean_s": 1000.0, "cv2": 3.0})
    write_trace(path, draw(Drawing(many, 192, 0.8, law, Law("poisson", {}), sizes, seed=seed)))
    return path


def words(path: Path, folder: Path) -> list[str]:
    effort = ["--epochs", "1", "--episodes", "1", "--windows", "2", "--jobs", "1"]
    return ["jobs", "--trace", str(path), "--out", str(folder / "runs"), "--docs", str(folder), *effort]


def changed_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.release
def test_the_page_of_a_trace_is_made_once_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs_results, "DRAWN_JOBS", 5000)
    given, page = words(trace(tmp_path / "a.parquet", 1600), tmp_path), tmp_path / "jobs-results.md"
    assert main(given) == 0
    told = capsys.readouterr().err
    assert "training 13 of 13: alibaba, rltune-fixed, epoch 1 of 1: mean wait" in told
    of, total = re.findall(r"judging (\d+) of (\d+): ", told)[-1]
    assert of == total
    text = page.read_text()
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == SECTIONS
    data = pages.read_frames(tmp_path / "data", "jobs-")
    of_philly = data["trainings"][data["trainings"]["cluster"] == "Philly"]
    assert set(of_philly["learned"]) == set(TRAINED)
    assert "nan" not in text
    assert (tmp_path / "images" / "jobs-training.svg").is_file()
    first, second = read_checked(tmp_path / "runs" / "philly" / "warm" / "wait" / "waiting.json")["found"]
    waits = data["waits"].set_index(["windows", "table", "policy"])
    assert waits.loc[("Philly, warm", "ablation", "waiting"), "wait_s"] == pytest.approx((first + second) / 2, rel=1e-5)

    before = changed_times(tmp_path / "runs")
    page.unlink()
    assert main(given) == 0
    assert page.read_text() == text
    assert changed_times(tmp_path / "runs") == before
    assert "epoch" not in capsys.readouterr().err

    assert main(words(trace(tmp_path / "b.parquet", 1600, seed=1), tmp_path)) == 2
    assert "begun with another trace: give another folder as --out" in capsys.readouterr().err
    assert changed_times(tmp_path / "runs") == before


@pytest.mark.parametrize(
    "own, epochs",
    [
        ([0.4, 4.0, 1.0, 4.0, 4.0, 4.0, 1.0, 1.0], 6),  # of 10 s: the third in a row is the sixth
        ([0.4, 2.9, 2.9, 2.9, 2.9, 2.9, 2.9, 2.9], 8),
        ([0.4, 4.0, 2.0, 4.0, 4.0, 2.0, 4.0, 4.0], 8),
        ([4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0], 8),  # as far behind from the beginning
        ([2.0, 4.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0], 5),
    ],
)
def test_a_training_that_falls_apart_is_given_up(
    own: list[float], epochs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    history = [{"score": 10 * times, "base_score": 10.0} for times in own]
    made: list[int] = []

    def train(config: TrainingConfig, path: Path, processes: int, told: object) -> None:
        made.append(config.epochs)

    monkeypatch.setattr(jobs_results, "train", train)
    monkeypatch.setattr(jobs_results, "history_in", lambda path: history[: len(made)])
    config = jobs_results.cases_of(read_trace(trace(tmp_path / "a.parquet", 1600)), EIGHT)[0].configs["waiting"]
    jobs_results._trained(config, tmp_path / "x.safetensors", 1, lambda *told: None)
    assert made == list(range(1, epochs + 1))


def test_a_trace_that_is_too_short_is_refused_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "short.parquet", 300)
    assert main(words(path, tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m benchmarks: {path}: 300 jobs leave no window of 256")
    assert not (tmp_path / "jobs-results.md").exists()
    assert list((tmp_path / "runs").rglob("*")) == []
