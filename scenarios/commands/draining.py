"""Commands for whoever operates a cluster while a command serves on it: cluster drain, cluster return."""

from __future__ import annotations

from argparse import Namespace

from scenarios.runs.door import drain
from scenarios.terminal.output import Output


def cluster_drain(arguments: Namespace) -> int:
    """No new block goes there; the command that serves says when it is empty."""
    return _wish(arguments, is_wanted=True)


def cluster_return(arguments: Namespace) -> int:
    """Blocks go there again."""
    return _wish(arguments, is_wanted=False)


def _wish(arguments: Namespace, *, is_wanted: bool) -> int:
    names, drained = drain(arguments.out, arguments.name, is_wanted=is_wanted)
    what = "to be drained; the command that serves says when it is empty" if is_wanted else "to get blocks again"
    text = f"{', '.join(names)}: {what}"
    return Output(arguments).result(text, {"servers": names, "drained": drained})
