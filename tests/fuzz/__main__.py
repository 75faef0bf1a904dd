"""`make fuzz`: hostile inputs, torn state, kills and a failing host. Exit code 1 where something ended as nothing may.

    python -m tests.fuzz inputs --count 20000 --seed 0     # in process; each hundredth as a real command
    python -m tests.fuzz state                             # every file of a finished run folder cut and filled with junk
    python -m tests.fuzz kills --count 100                 # kill -9 and Ctrl-C at random moments, then resumed
    python -m tests.fuzz host                              # full disk, vanished folder, few file handles, little memory
    python -m tests.fuzz again FOLDER ...                  # kept inputs once more

The same seed draws the same inputs. What fails is kept in `--keep`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import tempfile
import time  # noqa: TID251 - how long it may take
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.cases import Case, drawn
from tests.fuzz.inputs import FAMILIES
from tests.fuzz.tally import Tally, say
from tests.fuzz.trial import Outcome, attempt

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
            outcome = attempt(case, Path(folder) / f"{number}", as_command=as_command)
            results.append((f"{number:06}-{family}", case if outcome.kind not in ("ok", "refused") else Case(family), outcome))
    return results


def warm_up() -> None:
    """Import and compile all that calls need, once: forked processes have it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        from scenarios.cli import handler_of, main
        from tests.fuzz.base import base

        for command in ("run", "simulate", "profile show", "model check"):
            handler_of(command)
        for name, content in base().items():
            (Path(folder) / name).write_bytes(content)
        there, here = Path.cwd(), Path(folder)
        os.chdir(here)
        for router in ("random", "tide.safetensors", "ppo.safetensors"):
            main(["simulate", "tiny.yaml", "--router", router, "--engine", "compiled", "--quiet", "--json", "a.json"])
            main(["simulate", "tiny.yaml", "--router", router, "--quiet", "--json", "a.json"])
        os.chdir(there)
    gc.collect()
    gc.freeze()


def inputs(count: int, seed: int, seconds: float | None, jobs: int, tally: Tally) -> None:
    """So many drawn inputs, or as many as the time allows."""
    sys.stdout.flush()
    with open(os.devnull, "w") as nowhere:
        kept = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        warm_up()
        os.dup2(kept, 1)
        os.close(kept)
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


def again(folders: list[Path], tally: Tally) -> None:
    """Kept inputs once more, in process and as commands."""
    for folder in folders:
        case = Case.load(folder)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
            outcome = attempt(case, Path(place) / "box")
        say(f"{folder.name}: {outcome.kind}: {outcome.note}\n{outcome.ended.err[-3000:] if outcome.ended else ''}")
        tally.add(case, outcome, folder.name)


def main() -> int:
    """Exit code 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("inputs", "again"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="end after so long")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="for what fails")
    given = parser.parse_args()
    tally = Tally(given.keep)
    try:
        if given.what == "inputs":
            inputs(given.count, given.seed, given.seconds, given.jobs, tally)
        else:
            again(given.folders, tally)
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        gc.unfreeze()  # or what libraries hold would be told as leaks
    say(tally.table())
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
