"""The engine is compiled while a job waits for executors, and by nobody twice."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from kit.jit_cache import is_kept
from policies.vocabulary import Decide
from scenarios.job import main_job
from scenarios.job.main_job import compiling_ahead
from sim.compiled.compiled_simulation import CompiledSimulation


class Started:
    """Processes that are started in place of the compilation."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.processes: list[subprocess.Popen[bytes]] = []
        self.asked: list[list[str]] = []
        self._popen = subprocess.Popen

    def __call__(self, words: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        self.asked.append(words)
        self.processes.append(self._popen([sys.executable, "-c", self.program], **streams))
        return self.processes[-1]


def begun(monkeypatch: pytest.MonkeyPatch, program: str, *, kept: bool) -> Started:
    started = Started(program)
    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(main_job, "is_kept", lambda *_: kept)
    return started


def test_a_process_compiles_until_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started, said = begun(monkeypatch, "import time; time.sleep(0.5)", kept=False), list[str]()
    with compiling_ahead(said.append) as wait:
        wait()
        assert started.processes[0].returncode == 0
    assert started.asked == [[sys.executable, "-m", "scenarios.job.main_job"]]
    assert said[1:] == ["compile: still running; the job waits for it"]


def test_a_job_that_ends_before_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted, say: no process is left behind."""
    started = begun(monkeypatch, "import time; time.sleep(5)", kept=False)
    with pytest.raises(KeyboardInterrupt), compiling_ahead(lambda _: None):
        raise KeyboardInterrupt
    assert started.processes[0].returncode == -9


def test_kept_code_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started, said = begun(monkeypatch, "", kept=True), list[str]()
    with compiling_ahead(said.append) as wait:
        wait()
    assert (started.asked, said) == ([], [])


def test_what_it_compiles_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first steps of a simulation on it, at the lowest priority."""
    given, steps = list[int](), list[int]()
    advance = CompiledSimulation.advance

    def counted(simulation: CompiledSimulation) -> Decide | None:
        steps.append(1)
        return advance(simulation)

    monkeypatch.setattr(os, "nice", given.append)
    monkeypatch.setattr(CompiledSimulation, "advance", counted)
    main_job.main()
    assert (given, steps) == ([main_job.LOWEST_PRIORITY], [1])
    assert is_kept("sim.compiled.event_loop", "run_cluster")
