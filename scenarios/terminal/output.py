"""Where words go: results and remarks."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kit.documents import json_text, write_json
from scenarios.terminal.progress import say
from scenarios.terminal.screen import visible_text

Say = Callable[[str], None]
STANDARD_OUTPUT: Final = Path("-")


class Output:
    """Where words go: results to standard output (unless that is kept for JSON), remarks to standard error."""

    def __init__(self, arguments: Namespace) -> None:
        self.quiet: bool = arguments.quiet
        self._json: Path | None = arguments.json

    def remark(self, text: str) -> None:
        """Something about the work."""
        if not self.quiet:
            say(text)

    def result(self, text: str, document: Any) -> int:
        """The result for people, and as a document where one was asked for; returns exit code 0."""
        if self._json == STANDARD_OUTPUT:
            sys.stdout.write(json_text(document))
            self.remark(text)
            return 0
        if self._json is not None:
            write_json(self._json, document)
        sys.stdout.write(visible_text(text) + "\n")
        return 0
