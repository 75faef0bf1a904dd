"""`make fuzz`: hostile inputs, torn state, kills and a failing host. Exit code 1 where something ended as nothing may.

    python -m tests.fuzz all --seconds 1200                # all of these, each for its share of the time
    python -m tests.fuzz inputs --count 20000 --seed 0     # in process; each hundredth as a real command
    python -m tests.fuzz corpus                            # what once went wrong
    python -m tests.fuzz state                             # every file of a run folder cut, and filled with junk
    python -m tests.fuzz kills --count 100                 # kill -9 and Ctrl-C at random moments, then resumed
    python -m tests.fuzz host --count 100                  # full disk, vanished folder, few handles, little memory
    python -m tests.fuzz again FOLDER ...                  # kept inputs once more

The same seed draws the same inputs. What fails is kept in `--keep`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import multiprocessing
import os
import sys
import tempfile
import time  # noqa: TID251 - how long it may take
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.fuzz import corpus, host, kills, state
from tests.fuzz.cases import Case, drawn
from tests.fuzz.finished import Finished
from tests.fuzz.inputs import FAMILIES
from tests.fuzz.tally import Tally, say
from tests.fuzz.trial import GOOD, Outcome, attempt

CHUNK = 50  # cases that are drawn together
AS_COMMAND = 100  # one of so many is begun by the interpreter anew
Result = tuple[str, Case, Outcome]


def chunks(count: int, seed: int) -> Iterator[tuple[str, int, int, int]]:
    """(family, seed, first number, how many), the families mixed as often as each is to come."""
    turns = [family for family, (_, often) in FAMILIES.items() for _ in range(often)]
    for number in range(-(-count // CHUNK)):
        yield turns[number % len(turns)], seed * 1_000_003 + number, number * CHUNK, min(CHUNK, count - number * CHUNK)


def work(task: tuple[str, int, int, int]) -> list[Result]:
    """Draw a chunk's cases, and try each."""
    family, seed, first, count = task
    results = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number, case in enumerate(drawn(FAMILIES[family][0](), seed, count), start=first):
            as_command = number % AS_COMMAND == 0 and bool(case.argv) and not any("\0" in word for word in case.argv)
            try:
                outcome = attempt(case, Path(folder) / f"{number}", as_command=as_command)
            except Exception as error:  # ours; the campaign goes on
                outcome = Outcome("crash", f"of the harness: {error!r}")
            results.append(
                (f"{number:06}-{family}", case if outcome.kind not in ("ok", "refused") else Case(family), outcome)
            )
    return results


def warm_up(*, compiled: bool = True) -> None:
    """Import all that calls need, once, and (where not told otherwise) open the compiled engine: forks have it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        from slimsched.cli import main
        from slimsched.launching import function_of
        from tests.fuzz.base import base

        for command in ("run", "simulate", "profile show", "model check"):
            function_of(command)
        for name, content in base().items():
            (Path(folder) / name).write_bytes(content)
        there, here = Path.cwd(), Path(folder)
        os.chdir(here)
        for router in ("random", "compass.rule.yaml", "ppo.safetensors"):
            for engine in ("compiled", "simpy") if compiled else ("simpy",):
                words = ("tiny.yaml", "--router", router, "--engine", engine, "--quiet", "--json", "a.json")
                assert main(["simulate", *words]) == 0, "what every call finds is valid"
        os.chdir(there)
    gc.collect()
    gc.freeze()


def inputs(count: int, seed: int, seconds: float | None, jobs: int, tally: Tally) -> None:
    """So many drawn inputs, or as many as the time allows."""
    with contextlib.redirect_stdout(io.StringIO()):
        warm_up()
    ends_s = time.monotonic() + seconds if seconds else None
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for number, results in enumerate(pool.imap_unordered(work, chunks(count, seed))):
            for name, case, outcome in results:
                tally.add(case, outcome, name)
            if number % 10 == 9:
                say(tally.progress(count))
            if ends_s is not None and time.monotonic() > ends_s:
                pool.terminate()
                break


def in_turn(trials: Iterator[tuple[Case, Outcome]], seconds: float | None, tally: Tally) -> None:
    """One after the other, for as long as the time allows."""
    ends_s = time.monotonic() + seconds if seconds else None
    for number, (case, outcome) in enumerate(trials):
        tally.add(case, outcome, f"{number:06}-{case.family.replace(' ', '-')}")
        if number % 50 == 49:
            say(tally.progress(None))
        if ends_s is not None and time.monotonic() > ends_s:
            break


def corpus_trials(root: Path) -> Iterator[tuple[Case, Outcome]]:
    """Every case of the corpus, judged by what it must come to."""
    with contextlib.redirect_stdout(io.StringIO()):
        warm_up()
    for wanted, cases in (("refused", corpus.refused()), ("ok", corpus.accepted())):
        for name, case in cases:
            found = attempt(case, root)
            if found.kind in GOOD and not corpus.is_as_wanted(wanted, case, found):
                found = Outcome("misread", f"is {found.kind}, should be {wanted}", found.ended)
            yield replace(case, family=f"corpus {wanted}"), Outcome(found.kind, f"{found.note} [{name}]", found.ended)


def again(folders: list[Path], tally: Tally) -> None:
    """Kept inputs once more."""
    for folder in folders:
        case = Case.load(folder)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
            outcome = attempt(case, Path(place) / "box")
        say(f"{folder.name}: {outcome.kind}: {outcome.note}\n{outcome.ended.err[-3000:] if outcome.ended else ''}")
        tally.add(case, outcome, folder.name)


def work_through(given: argparse.Namespace, tally: Tally) -> None:
    """What was asked for; of `all` each kind has its share of the time."""
    seed, count = given.seed, given.count
    with tempfile.TemporaryDirectory(prefix="fuzz-") as text:
        root = Path(text) / "box"
        if given.what == "again":
            again(given.folders, tally)
        if given.what in ("all", "corpus"):
            in_turn(corpus_trials(root), None, tally)
        if given.what in ("all", "inputs"):
            inputs(count or 20_000, seed, _share(given, 0.5), given.jobs, tally)
        if given.what == "kills":
            with contextlib.redirect_stdout(io.StringIO()):
                warm_up()
        if given.what in ("all", "kills"):
            in_turn(kills.chains(count or 100, seed, Path(text)), _share(given, 0.2), tally)
        if given.what in ("all", "state", "host"):
            with Finished.make() as finished:
                if given.what != "host":
                    in_turn(state.trials(finished, seed, root), _share(given, 0.2), tally)
                if given.what != "state":
                    in_turn(host.trials(finished, count or 100, seed, root), _share(given, 0.1), tally)


def _share(given: argparse.Namespace, part: float) -> float | None:
    """Of the time, where there is a limit to it."""
    return None if given.seconds is None else given.seconds * (part if given.what == "all" else 1.0)


def main() -> int:
    """Exit code 1 where something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("all", "inputs", "corpus", "state", "kills", "host", "again"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, help="of inputs, kills or faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="begin nothing more after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other, for inputs")
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="for what fails")
    given = parser.parse_args()
    tally = Tally(given.keep)
    try:
        work_through(given, tally)
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        gc.unfreeze()  # or what libraries hold would be told as leaks
    say(tally.table())
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
