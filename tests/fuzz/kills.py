"""`slimsched run` killed (kill -9) or interrupted (Ctrl-C) at random moments of each stage, and resumed until it ends.

A chain of kills ends with a run that ends by itself. Then everything from the profiles on must be what the profiles and
the network that were kept make on their own, to the last bit; every request of the real runs must have ended; no
temporary file, no process and no shared memory may be left; and the user's files must be as they were.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time  # noqa: TID251 - moments are chosen in seconds
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml

from kit.documents import read_json
from kit.random_streams import stream
from slimsched.cli import main
from tests.fuzz.box import Box
from tests.fuzz.finished import NAME, scenario_text
from tests.fuzz.state import RUN, documents, names_below
from tests.fuzz.trial import ENVIRONMENT, Ended, Outcome, be_the_child, judge, watched

STAGES: Final = ("model", "accuracy", "calibrate-large", "calibrate-small", "serving", "train", "compare", "validate")
COMMAND: Final = ("run", NAME, "--out", RUN)
KILLS_OF_EACH: Final = 3
AS_COMMAND: Final = 10  # one of so many is begun by the interpreter again
LONGEST_S: Final = 600.0
LOOK_EVERY_S: Final = 0.01
SHARED_MEMORY: Final = Path("/dev/shm")
_BEGINS: Final = re.compile(r"^([a-z-]+): (?!skipped)", re.MULTILINE)
OF_THE_NETWORK: Final = ("model.safetensors", "accuracy.json")
OF_THE_PROFILES: Final = ("ppo.safetensors", "score-ppo.json", "training-ppo.json", "results.json", "comparison.json")


@dataclass
class Chain:
    """One run folder, killed again and again.

    Attributes:
        lengths_s: how long each stage took when nobody disturbed it.
        network: what an undisturbed run makes of the network, which no clock has a part in.
    """

    box: Box
    lengths_s: dict[str, float]
    network: dict[str, Any]

    def kill(self, stage: str, share: float, sign: signal.Signals, *, as_command: bool) -> Ended:
        """Begin, wait until a stage has begun (or a later one), and end it after a share of that stage's time."""
        began_s = time.monotonic()
        process, said = begin(self.box.here, as_command=as_command)
        begun_s: float | None = None
        try:
            while process.poll() is None and time.monotonic() - began_s < LONGEST_S:
                if begun_s is None and set(_BEGINS.findall(text_of(said / "err"))) & set(STAGES[STAGES.index(stage) :]):
                    begun_s = time.monotonic()
                if begun_s is not None and time.monotonic() - begun_s >= share * self.lengths_s[stage]:
                    break
                time.sleep(LOOK_EVERY_S)
            if process.poll() is None:
                # who presses Ctrl-C reaches the command and all its workers; a kill reaches one process
                os.killpg(process.pid, sign) if sign == signal.SIGINT else process.send_signal(sign)
            process.wait(60)
        finally:
            code = end(process)
        return Ended(code, text_of(said / "out"), text_of(said / "err"), 0.0, time.monotonic() - began_s, 0)


def begin(here: Path, *, as_command: bool = False) -> tuple[Forked | subprocess.Popen[bytes], Path]:
    """The command in a session of its own, and where it shows what: forked, or begun again as a user begins it."""
    said = here.with_name("said")
    said.mkdir(exist_ok=True)
    if not as_command:
        return Forked(here, said), said
    with (said / "out").open("wb") as out, (said / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "slimsched", *COMMAND],
            cwd=here, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=ENVIRONMENT, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
    return process, said


class Forked:
    """The command in a process that has imported everything; it can do what is needed of a `subprocess.Popen`."""

    def __init__(self, here: Path, said: Path) -> None:
        self.returncode: int | None = None
        for name in ("out", "err"):
            (said / name).write_bytes(b"")
        self.pid = os.fork()
        if self.pid == 0:
            be_the_child(self._work, here, said, lambda: None)

    @staticmethod
    def _work() -> int:
        sys.modules["__main__"] = ModuleType("__main__")  # or its workers would import the harness, too
        return main(COMMAND)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self, timeout: float = LONGEST_S) -> int:
        ends_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > ends_s:
                raise subprocess.TimeoutExpired(COMMAND, timeout)
            time.sleep(LOOK_EVERY_S)
        return code

    def send_signal(self, sign: signal.Signals) -> None:
        os.kill(self.pid, sign)


def end(process: Forked | subprocess.Popen[bytes]) -> int:
    """The process and all that it began; returns its exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def chains(count: int, seed: int, root: Path) -> Iterator[tuple[str, Outcome]]:
    """So many kills: each chain has some in each stage. A last run ends each chain, and is looked at."""
    rng = stream(seed, "fuzz:kills")
    lengths_s, network = undisturbed(root / "undisturbed")
    done = 0
    while done < count:
        box = _box(root / f"chain{done}")
        chain = Chain(box, lengths_s, network)
        memory = set(SHARED_MEMORY.iterdir())
        for stage in (stage for stage in STAGES for _ in range(KILLS_OF_EACH)):
            sign = signal.SIGKILL if rng.random() < 0.6 else signal.SIGINT
            ended = chain.kill(stage, float(rng.random()), sign, as_command=done % AS_COMMAND == 0)
            yield f"{sign.name} {stage}", _killed(chain, ended, sign)
            done += 1
            if done == count:
                break
        yield "resumed", _resumed(chain, memory)
        box.remove()


def _box(root: Path) -> Box:
    box = Box(root, {NAME: scenario_text().encode()})
    (box.root / "said").mkdir()
    (box.here / RUN).mkdir()
    box.look()
    return box


def undisturbed(root: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """How long each stage takes when it is let be, and what it makes of the network."""
    box = _box(root)
    process, said = begin(box.here)
    began_s: dict[str, float] = {}
    while process.poll() is None:
        for stage in _BEGINS.findall(text_of(said / "err")):
            began_s.setdefault(stage, time.monotonic())
        time.sleep(LOOK_EVERY_S)
    told = text_of(said / "err")
    end(process)
    if process.returncode:
        raise RuntimeError(f"undisturbed, it ended with {process.returncode}: {told[-1000:]}")
    times = [began_s[stage] for stage in STAGES] + [time.monotonic()]
    found = documents(box.here / RUN)
    box.remove()
    lengths_s = {stage: times[place + 1] - times[place] for place, stage in enumerate(STAGES)}
    return lengths_s, {name: found[name] for name in OF_THE_NETWORK}


def _killed(chain: Chain, ended: Ended, sign: signal.Signals) -> Outcome:
    """A kill leaves the user's files alone; an interruption ends in one line, and shows what the next start does."""
    lost = chain.box.changes((RUN, "../said", "../called"))
    if lost or ended.code in (0, -signal.SIGKILL):
        return judge(ended, lost) if lost or ended.code == 0 else Outcome("ok", "", ended)
    last = ended.err.strip().splitlines()[-1] if ended.err.strip() else ""
    if sign == signal.SIGINT and ended.code == 130 and last.startswith("slimsched: interrupted"):
        if "Traceback" in ended.err:
            return Outcome("traceback", ended.err[ended.err.index("Traceback") :][-400:], ended)
        return Outcome("ok", "", ended)
    return Outcome("unclear", f"exit code {ended.code} after {sign.name}: {last[:300]}", ended)


def _resumed(chain: Chain, memory: set[Path]) -> Outcome:
    """The last start: it ends well, and what it leaves is whole."""
    process, said = begin(chain.box.here)
    began_s = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LONGEST_S)
    code = end(process)
    err = text_of(said / "err")
    ended = Ended(code, "", err, 0.0, time.monotonic() - began_s, 0)
    if lost := chain.box.changes((RUN, "../said", "../called")):
        return Outcome("foreign file", "; ".join(lost[:5]), ended)
    if ended.code:
        return judge(ended, []) if ended.code > 0 else Outcome("too slow", f"{LONGEST_S:.0f} s", ended)
    problems = [*_left_behind(chain.box.here / RUN, memory), *_differences(chain)]
    return Outcome("misread", "; ".join(problems), ended) if problems else Outcome("ok", "", ended)


def _left_behind(run: Path, memory: set[Path]) -> Iterator[str]:
    temporary = [name for name in names_below(run) if name.endswith(".tmp") or ".tmp." in name]
    if temporary:
        yield f"temporary files are left: {temporary[:3]}"
    left = sorted(str(path) for path in set(SHARED_MEMORY.iterdir()) - memory)
    if left := [name for name in left if name not in _maps()]:  # others on this machine may be at work with theirs
        yield f"shared memory is left: {left[:3]}"


def _maps() -> str:
    texts = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            texts.append(path.read_text())
    return "".join(texts)


def _differences(chain: Chain) -> Iterator[str]:
    """What is not as it would be without a kill."""
    run = chain.box.here / RUN
    found = documents(run)
    yield from (f"{name} differs" for name in OF_THE_NETWORK if found.get(name) != chain.network[name])
    again, problem = _from_profiles(chain.box, run)
    if problem:
        yield problem
    yield from (
        f"{name} differs from what the kept profiles make"
        for name in OF_THE_PROFILES
        if not problem and found.get(name) != again.get(name)
    )
    pairs = read_json(run / "validation.json")["pairs"]
    if len(pairs) != len(yaml.safe_load(scenario_text())["validate"]["routers"]):
        yield f"{len(pairs)} pairs of runs are kept"
    for pair in pairs:
        images = pair["executors"]["images"]
        if images["arrived"] != images["completed"] + images["failed"] + images["in_flight"]:
            yield f"requests of a real run are lost: {images}"
    if told := _call(chain.box.here, "replay", RUN, "--quiet"):
        yield f"the event logs do not replay: {told}"


def _from_profiles(box: Box, run: Path) -> tuple[dict[str, Any], str]:
    """What training and comparison make of the run's profiles, network and accuracy table; and what went wrong."""
    fresh = box.root / "said" / "fresh"
    shutil.copytree(
        run, fresh, ignore=shutil.ignore_patterns(*OF_THE_PROFILES, "train.json", "compare.json", "training")
    )
    problem = ""
    for command in ("train", "compare"):
        if told := _call(box.here, command, NAME, "--out", os.path.relpath(fresh, box.here), "--quiet"):
            problem = f"{command} on the kept profiles: {told}"
            break
    found = documents(fresh)
    shutil.rmtree(fresh)
    return found, problem


def _call(here: Path, *command: str) -> str:
    """What a command says that is let be, where it does not end well."""
    ended = watched(lambda: main(command), here, here.with_name("called"))
    return "" if ended.code == 0 else f"exit code {ended.code}: {ended.err[-300:]}"
