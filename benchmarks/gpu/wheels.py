"""Which packages a machine with torch and nothing else lacks, and how to bring them as wheels.

python -m benchmarks.gpu.wheels             # what is missing here
python -m benchmarks.gpu.wheels --all       # the command that fetches all of them for another machine
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OF_TORCH: Final = ("torch", "torchvision", "numpy")  # what an image with torch has
MODULES: Final = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml", "scikit-learn": "sklearn"}
PYPROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"


def needed() -> list[str]:
    """Requirements of the product that torch does not bring."""
    every: list[str] = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    return [each for each in every if _name(each) not in OF_TORCH]


def missing() -> list[str]:
    """Those that can't be imported here."""
    return [each for each in needed() if find_spec(MODULES.get(_name(each), _name(each))) is None]


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~ ]", requirement, maxsplit=1)[0]


def main() -> int:
    """Exit code 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the command that fetches all of them")
    parser.add_argument("--python", default="3.12", help="of the other machine (3.12)")
    given = parser.parse_args()
    if given.all:
        names = " ".join(f"'{each}'" for each in needed())
        print(f"pip download --only-binary=:all: --python-version {given.python} --dest wheels {names}")
        print(
            "there: pip install --no-index --no-deps --target wheels/site wheels/*.whl; PYTHONPATH=wheels/site make gpu"
        )
        return 0
    lacking = missing()
    print("\n".join(lacking) or "nothing is missing")
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
