"""Plays seeds; see the package."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import subprocess
import sys
import time  # noqa: TID251 - for how long, and how fast it plays
import traceback
from dataclasses import fields

from tests.swarm.mutations import mutations, put_back

TOGETHER = 20  # seeds that a process is given at once


def main() -> int:
    """Returns the exit status: 1 where a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm", description=__doc__)
    parser.add_argument("--seeds", help="FIRST:END; 1,000 that nobody has played, unless given")
    parser.add_argument("--seconds", type=float, help="no longer than that")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--show", action="store_true", help="what the seed drew, and what happened")
    parser.add_argument("--first", action="store_true", help="end with the first seed that breaks a law")
    parser.add_argument("--mutation", type=int, help="put this one back first")
    parser.add_argument("--mutations", action="store_true", help="each of them: after how many seeds is it found?")
    given = parser.parse_args()
    now = int(time.time())
    first, end = map(int, (given.seeds or f"{now}:{now + (1_000_000 if given.seconds else 1000)}").split(":"))
    if given.mutations:
        return _find_all(first, end)
    if given.mutation is not None:
        put_back(mutations()[given.mutation])
    if given.show:
        return _show(range(first, end))
    return _play(range(first, end), given.seconds, given.jobs, given.first)


def _tried(seed: int) -> tuple[int, str, int, float]:
    """(seed, what it broke, steps, CPU-s)."""
    from tests.swarm.play import play  # once a mutation has been put back

    began_s = time.process_time()
    try:
        steps, why = play(seed).steps, ""
    except Exception as error:
        steps, where = 0, traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {str(error)[:400]} ({where.name})"
    return seed, why, steps, time.process_time() - began_s


def _play(seeds: range, seconds: float | None, jobs: int, is_first: bool) -> int:
    import tests.swarm.play  # noqa: F401 - once, for all processes

    gc.freeze()
    played = broken = steps = 0
    took_s, until_s = 0.0, None if seconds is None else time.monotonic() + seconds
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for seed, why, made, cpu_s in pool.imap(_tried, seeds, TOGETHER) if jobs > 1 else map(_tried, seeds):
            played, steps, took_s = played + 1, steps + made, took_s + cpu_s
            if why:
                broken += 1
                print(f"seed {seed}: {why}\n    python -m tests.swarm --show --seeds {seed}:{seed + 1}", flush=True)
            if (why and is_first) or (until_s is not None and time.monotonic() > until_s):
                break
        pool.terminate()
    if broken and is_first:
        print(f"found after {played} seeds")
    rate = 60 * played / max(took_s, 1e-9)
    print(f"{played} seeds, {steps} steps, {took_s:.1f} CPU-s ({rate:.0f} seeds a minute), {broken} broke a law")
    return int(broken > 0)


def _show(seeds: range) -> int:
    from tests.swarm.mix import Mix
    from tests.swarm.play import play

    for seed in seeds:
        mix = Mix.draw(seed)
        for field in fields(mix):
            print(f"{field.name}: {getattr(mix, field.name)}")
        play(seed, print)
    return 0


def _find_all(first: int, end: int) -> int:
    missed = 0
    for number, mutation in enumerate(mutations()):
        options = ["--first", "--mutation", f"{number}", "--seeds", f"{first}:{end}"]
        found = subprocess.run([sys.executable, "-m", "tests.swarm", *options], capture_output=True, text=True)
        is_found = found.returncode == 1
        missed += not is_found
        told = found.stdout.splitlines() if is_found else [found.stdout + found.stderr, "", "not found"]
        print(f"{mutation.name}: {told[2]}\n    {told[0]}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
