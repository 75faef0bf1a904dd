"""Which packages a machine lacks for `make gpu`, and the commands that bring them to it as wheels.

python -m benchmarks.gpu.wheels                 # what is missing here, but not what that needs in turn
python -m benchmarks.gpu.wheels --has NAMES     # what a machine lacks that has these (`pip list --format=freeze`)

The second needs all of them here, as it looks for the versions that are here.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def lacking(has: Mapping[str, str], python: str = "") -> dict[str, str]:
    """Return the product's requirements, with their own, that are missing or too old in these distributions.

    Args:
        has: name -> version; empty if unknown.
        python: Python version of the machine with these; empty for the same as here.

    Returns:
        Name -> the version here; empty if it is missing here, too.
    """
    problems: dict[str, str] = {}
    environment = {"extra": "", **({"python_version": python, "python_full_version": f"{python}.0"} if python else {})}
    needed: list[str] = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    for need in map(Requirement, needed):  # the list grows meanwhile
        name = canonicalize_name(need.name)
        version = has.get(name)
        is_met = version is not None and (not version or need.specifier.contains(version, prereleases=True))
        if name in problems or is_met or (need.marker and not need.marker.evaluate(environment)):
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            problems[name] = ""
        else:
            problems[name] = installed.version
            needed += installed.requires or ()
    return problems


def main(argv: list[str] | None = None) -> int:
    """Print what is missing; returns exit code 1 if something is, 2 if it is missing here, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--has", type=Path, metavar="NAMES", help="a file with the names that the machine has")
    parser.add_argument("--python", default="3.12", help="of that machine (3.12)")
    options = parser.parse_args(argv)
    if options.has:
        lines = re.findall(r"^([\w.-]+)(?:==(\S+))?", options.has.read_text(encoding="utf-8"), re.MULTILINE)
        missing = lacking({canonicalize_name(name): version for name, version in lines}, options.python)
        if unknown := [name for name, version in missing.items() if not version]:
            parser.error(f"not here either, so their requirements are unknown: {' '.join(unknown)}; ask there")
        pins = " ".join(f"{name}=={version}" for name, version in missing.items())
        platforms = " ".join(f"--platform {platform}" for platform in PLATFORMS)
        flags = f"--only-binary=:all: --python-version {options.python} {platforms}"
        print(f"here: python -m pip download --no-deps {flags} -d wheels {pins}")
        print(
            "there: python -m pip install --no-index --no-deps --target site wheels/*.whl; export PYTHONPATH=$PWD/site"
        )
        return 0
    missing = lacking({canonicalize_name(each.name): each.version for each in distributions()})
    print("\n".join(missing) or "nothing is missing")
    if missing:
        print("python -m pip list --format=freeze > NAMES; and where nothing is missing, this with --has NAMES")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
