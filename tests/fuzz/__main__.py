"""`make fuzz`: torn state, kills and a failing host. Exit code 1 where something ended as nothing may.

    python -m tests.fuzz all --seconds 1200                # all of these, each for its share of the time
    python -m tests.fuzz state                             # every file of a run folder cut, and filled with junk
    python -m tests.fuzz kills --count 100                 # kill -9 and Ctrl-C at random moments, then resumed
    python -m tests.fuzz host --count 100                  # full disk, vanished folder, few handles, little memory

The same seed draws the same damages, moments and faults. Hostile inputs are drawn by `tests/fuzz/test_inputs.py`.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tempfile
import time  # noqa: TID251 - how long it may take
from collections.abc import Iterator
from pathlib import Path

from slimsched.launching import function_of
from tests.fuzz import host, kills, state
from tests.fuzz.finished import Finished
from tests.fuzz.tally import Tally, say
from tests.fuzz.trial import Outcome

SHARES = {"kills": 0.4, "state": 0.4, "host": 0.2}  # of the time for all


def in_turn(trials: Iterator[tuple[str, Outcome]], seconds: float, tally: Tally) -> None:
    """One after the other, for as long as the time allows."""
    ends_s = time.monotonic() + seconds
    for number, (family, outcome) in enumerate(trials):
        tally.add(family, outcome)
        if number % 50 == 49:
            say(tally.progress())
        if time.monotonic() > ends_s:
            break


def work_through(given: argparse.Namespace, tally: Tally) -> None:
    """What was asked for; of `all` each kind has its share of the time."""

    def share(kind: str) -> float:
        return float(given.seconds * (SHARES[kind] if given.what == "all" else 1.0))

    with tempfile.TemporaryDirectory(prefix="fuzz-") as text:
        root = Path(text) / "box"
        if given.what in ("all", "kills"):
            in_turn(kills.chains(given.count, given.seed, Path(text)), share("kills"), tally)
        if given.what in ("all", "state", "host"):
            with Finished.make() as finished:
                if given.what != "host":
                    in_turn(state.trials(finished, given.seed, root), share("state"), tally)
                if given.what != "state":
                    in_turn(host.trials(finished, given.count, given.seed, root), share("host"), tally)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("all", *SHARES))
    parser.add_argument("--count", type=int, default=100, help="of kills or faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing more after so long")
    given = parser.parse_args()
    for command in ("run", "replay", "report", "compare", "simulate"):
        function_of(command)  # imported once; forks have it
    gc.collect()
    gc.freeze()
    tally = Tally()
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
