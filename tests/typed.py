"""What is typed, read as the command line reads it; nothing is done."""

from __future__ import annotations

from collections.abc import Sequence

from slimsched.cli import command_of
from slimsched.launching import launch


def typed(words: Sequence[str]) -> str:
    """The command; raises `InputError` for a word that is none of its own."""
    command = command_of(words)
    if command:
        launch(command, words[len(command.split()) :], do=lambda *_, **__: 0)
    return command
