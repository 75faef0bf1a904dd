"""Which packages a machine lacks for `make gpu`, and the command that fetches them for it as wheels.

python -m benchmarks.gpu.wheels                 # what is missing here
python -m benchmarks.gpu.wheels --has NAMES     # what a machine lacks that has these (`pip list --format=freeze`)
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Container
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def lacking(has: Container[str]) -> dict[str, str]:
    """What the product needs and is not among these distributions, with what that needs in turn.

    Returns:
        Name -> the version that is here; empty where it is not here either.
    """
    problems: dict[str, str] = {}
    wanted: list[str] = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    for need in map(Requirement, wanted):  # which grows meanwhile
        name = canonicalize_name(need.name)
        if name in has or name in problems or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        try:
            here = distribution(name)
        except PackageNotFoundError:
            problems[name] = ""
        else:
            problems[name] = here.version
            wanted += here.requires or ()
    return problems


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--has", type=Path, metavar="NAMES", help="a file with the names that the machine has")
    parser.add_argument("--python", default="3.12", help="of that machine (3.12)")
    given = parser.parse_args(argv)
    if given.has:
        names = re.findall(r"^[\w.-]+", given.has.read_text(encoding="utf-8"), re.MULTILINE)
        pins = " ".join(f"{name}=={version}" for name, version in lacking({*map(canonicalize_name, names)}).items())
        platforms = " ".join(f"--platform {each}" for each in PLATFORMS)
        print(
            f"pip download --no-deps --only-binary=:all: --python-version {given.python} {platforms} -d wheels {pins}"
        )
        print("there: pip install --no-index --no-deps --target site wheels/*.whl; PYTHONPATH=site make gpu")
        return 0
    missing = lacking({canonicalize_name(each.name) for each in distributions()})
    print("\n".join(missing) or "nothing is missing")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
