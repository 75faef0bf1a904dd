"""An installed wheel, tried as a user has it: in an environment of its own, in an empty folder, far from the checkout.

    python -m tests.installed dist             # commands that take seconds
    python -m tests.installed dist quickstart  # `slimsched run quickstart`, which takes minutes

The environment holds nothing but the wheel. What it needs is read from where this Python has it, so that no download of
gigabytes stands before a trial of seconds; that a fresh environment finds these by their names, `make install` shows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NEEDED: Final = "needed.pth"
SECONDS: Final = (
    ("--help",),
    ("profile", "show", "rtx-2080-ti", "--plot", "profile.html"),
    ("bound", "main-poisson50-10g"),
    ("compare", "live/bursts", "--router", "jsq", "--router", "sticky", "--seed", "0", "--engine", "simpy"),
    ("report", "runs/live-bursts"),
)
"""A template, shipped profiles, scenarios, a whole comparison and its page."""


def wheel_in(folder: Path) -> Path:
    """The only wheel of a folder."""
    (wheel,) = folder.glob("*.whl")
    return wheel.absolute()


class Installed:
    """A wheel in an environment of its own, below a folder."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self._bin = folder / "bin"
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        install = ("-m", "pip", "--python", str(self._bin / "python"), "install", "--quiet", "--no-deps", "--no-index")
        subprocess.run([sys.executable, *install, str(wheel)], check=True)
        ours = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (packages / NEEDED).write_text("".join(f"{path}\n" for path in ours))  # after its own; their .pth are not read

    def run(self, arguments: Sequence[str], folder: Path) -> int:
        """`slimsched` with these arguments, in a folder, with no way to the checkout: its exit code."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run([self._bin / "slimsched", *arguments], cwd=folder, env=kept, check=False).returncode

    def place_of(self, package: str, folder: Path) -> Path:
        """Where it finds a package."""
        program = f"import {package}; print({package}.__path__[0])"
        found = subprocess.run(
            [str(self._bin / "python"), "-I", "-c", program], cwd=folder, capture_output=True, text=True, check=True
        )
        return Path(found.stdout.strip())


def main() -> int:
    """The exit code of the first command that fails, or 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.installed", description=__doc__)
    parser.add_argument("dist", type=Path, help="the folder that holds the wheel")
    parser.add_argument("scenario", nargs="?", help="one to run whole; commands of seconds by default")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slimsched-") as temporary:
        installed = Installed(wheel_in(given.dist), Path(temporary) / "environment")
        folder = Path(temporary) / "empty"
        folder.mkdir()
        commands = [("run", given.scenario)] if given.scenario else SECONDS
        for arguments in commands:
            print(f"$ slimsched {' '.join(arguments)}", flush=True)
            if code := installed.run(arguments, folder):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
