"""One command, made from its function's signature and docstring: what is typed, what is done, what is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import BoundArguments
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from cyclopts import App, Parameter
from cyclopts.exceptions import (
    ArgumentOrderError,
    CoercionError,
    CycloptsError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from kit.documents import Document
from kit.errors import InputError, nearest
from kit.plugins import telling
from scenarios.terminal.progress import say
from scenarios.terminal.screen import visible_text
from slimsched.arguments import flag_of, new_file, read_by
from slimsched.commands import COMMANDS, RESUMING
from slimsched.working import observing


def text_of(result: Any) -> str:
    """Return a result as text; by its class's name: this module opens none of what makes results."""
    kind = type(result).__name__
    if kind == "CommandResult":
        return str(result.text)
    if kind == "Calibration":
        return "\n".join(f"profile: {path}" for path in result.profiles)
    from scenarios.show.command_tables import format_result, format_score
    from scenarios.show.comparison_table import suite_table
    from scenarios.show.plan_table import format_plan, short_plan
    from scenarios.show.summary_table import format_summary
    from scenarios.show.tables import to_text
    from scenarios.show.wording import lines_of

    match kind:
        case "RunResult":
            return format_result(result.document)
        case "Comparison":
            return format_summary(result.document, None, ending=_ending(result.folder))
        case "Validation":
            return format_summary(None, result.document, ending=_ending(result.folder))
        case "Job":
            comparison = result.comparison.document
            validation = None if result.validation is None else result.validation.document
            replies = short_plan(comparison, result.comparison.results)
            return format_summary(comparison, validation, replies, to_text(["\n".join(result.endings)]))
        case "Capacity":
            from scenarios.runs.capacity_search import GROWTH_LIMIT

            return "\n  ".join(lines_of("capacity", "found", result, GROWTH_LIMIT))
        case "Bound":
            return "\n  ".join(lines_of("capacity", "bound", result))
        case "SuiteScore":
            return to_text(suite_table(result, name) for name in result.entrants)
        case "Plan":
            return format_plan(result)
        case _:
            scores = ((router, format_score(router.score)) for router in result.routers)
            return "\n".join(f"{each.kind}: {score}\nrouter: {each.path}" for each, score in scores)


def _ending(folder: object) -> str:
    return f"all other numbers, and charts: slimsched report {folder}"


STANDARD_OUTPUT: Final = Path("-")
_OPENS_MUCH: Final = (  # torch and numba take seconds
    *RESUMING, "simulate", "capacity", "bound", "plan", "profile check", "jobs whatif", "jobs capacity", "jobs bound",
    "jobs advise", "model slim", "model add", "model join",
)  # fmt: skip
_READ: Final = (
    "scenario", "router", "routers", "model", "profile", "sheet", "accuracy", "log", "trace", "tasks", "weights",
    "undo",
)  # fmt: skip
_OUT_IS_A_FILE: Final = ("profile synth", "model slim", "jobs import", "jobs generate", "jobs init")
_WRITTEN: Final = ("plot", "file", "journal", "trace_file")  # and the JSON
_SEVERAL: Final = "for several values give"
_RAISING: Final[Mapping[str, Any]] = {"exit_on_error": False, "print_error": False, "help_on_error": False}


def function_of(command: str) -> Callable[..., Document]:
    """Return a command's function; its module is opened now."""
    module, _, name = COMMANDS[command][0].rpartition(".")
    function: Callable[..., Document] = getattr(import_module(f"slimsched.{module}"), name)
    return function


def app_of(command: str) -> App:
    """Return the command line of one command."""
    app = App(
        name=f"slimsched {command}",
        help_format="markdown",
        version_flags=(),
        default_parameter=Parameter(negative=(), name_transform=lambda name: flag_of(name)[2:]),
    )
    app.default(function_of(command))
    return app


# ------------------------------------------------------------------------------------------------------ what is wrong


def _problem(error: CycloptsError, command: str) -> InputError:
    """Return what is wrong with a command's words, with the nearest flag that is known."""
    where = f"slimsched {command}"
    if isinstance(error, UnknownOptionError):
        text = _unknown_flag((error.token.keyword or error.token.value).partition("=")[0], command)
    elif isinstance(error, UnusedCliTokensError):
        text = f"unknown {(error.unused_tokens or [''])[0]!r}; it takes no such argument"
    elif isinstance(error, ArgumentOrderError):
        before = error.prior_positional_or_keyword_supplied_as_keyword_arguments[0].tokens[0].keyword
        text = f"unknown {error.token!r}; {_SEVERAL} {before} before each"
    elif isinstance(error.__cause__, ValueError) and str(error.__cause__) and error.argument is not None:
        return InputError(error.argument.name, "", str(error.__cause__))
    elif isinstance(error, CoercionError) and get_origin(error.target_type) is Literal and error.token is not None:
        flag = f"{error.token.keyword}: " if error.token.keyword else ""
        text = f"{flag}unknown {error.token.value!r}; {nearest(error.token.value, get_args(error.target_type))}"
    elif isinstance(error, CoercionError) and error.token is not None and "," in error.token.value:
        text = f"{str(error).rstrip('.')}; {_SEVERAL} {error.token.keyword} before each"
    else:
        text = str(error)
    return InputError(where, "", f"{text} (try {where} --help)")


def _unknown_flag(flag: str, command: str) -> str:
    takers = [f"slimsched {name}" for name in COMMANDS if flag in flags_of(name)]
    text = f"commands that take it: {', '.join(takers)}; " if takers else ""
    return f"unknown {flag!r}; {text}{nearest(flag, flags_of(command))}"


def flags_of(command: str) -> list[str]:
    """Return its long flags."""
    arguments = app_of(command).assemble_argument_collection()
    return [name for argument in arguments for name in argument.names if name.startswith("--")]


# -------------------------------------------------------------------------------------------------------- what is done


class Terminal:
    """Where words go: results to standard output (unless that is kept for JSON), remarks to standard error."""

    def __init__(self, *, quiet: bool, json: Path | None, written: Sequence[Path]) -> None:
        self.quiet = quiet
        self.written = written
        self._json = json

    def remark(self, text: str) -> None:
        """Print a remark about the work."""
        if not self.quiet:
            say(text)

    def show(self, result: Document) -> int:
        """Print the result as text, and as a document if one was asked for; returns the exit code."""
        from kit.documents import json_text, write_json

        if self._json is not None and self._json != STANDARD_OUTPUT:
            write_json(self._json, dict(result.document))
        text = text_of(result)
        if self._json == STANDARD_OUTPUT:
            sys.stdout.write(json_text(dict(result.document)))
            self.remark(text)
        else:
            sys.stdout.write(visible_text(text) + "\n")
            sys.stdout.flush()
            if afterword := result.afterword:
                sys.stdout.write(visible_text(afterword) + "\n")
        result.require_whole()
        return result.exit_code


def _json_file(text: str) -> Path:
    return STANDARD_OUTPUT if text == "-" else new_file(text)


Words = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]
Json = Annotated[Path | None, read_by(_json_file, allow_leading_hyphen=True)]
Quiet = Annotated[bool, Parameter(alias="-q")]


def launch(command: str, words: Sequence[str], do: Callable[..., int] | None = None) -> int:
    """Do one command with these words behind it; returns the exit code.

    Args:
        do: what is done with command, function and bound arguments; by default the function is called, and its result
            printed.

    Raises:
        InputError: a word is wrong, or something that the command was given.
    """
    app = app_of(command)

    def take(*words: Words, json: Json = None, quiet: Quiet = False, no_own_code: bool = False) -> int:
        """Do the command.

        Args:
            json: write the result as JSON there; - for standard output.
            quiet: no progress, no remarks: results and errors only.
            no_own_code: refuse to run a module:Class that a scenario or a flag names.
        """
        function, bound, *_ = app.parse_args(words, **_RAISING)
        return (do or _show)(command, function, bound, json=json, quiet=quiet, refuses_own_code=no_own_code)

    app.meta.default(take)
    try:
        function, bound, *_ = app.meta.parse_args(words, **_RAISING)
        return function(*bound.args, **bound.kwargs) or 0  # help returns nothing
    except CycloptsError as error:
        raise _problem(error, command) from None


def _show(
    command: str, function: Callable[..., Document], bound: BoundArguments, *, json: Path | None, quiet: bool,
    refuses_own_code: bool,
) -> int:  # fmt: skip
    arguments = bound.arguments
    outputs = [json, *(arguments.get(name) for name in (*_WRITTEN, *(("out",) if command in _OUT_IS_A_FILE else ())))]
    written = list(_paths(outputs))
    if written:
        from scenarios.runs.folder import require_apart

        require_apart(written, _paths(arguments.get(name) for name in _READ))
    terminal = Terminal(quiet=quiet, json=json, written=written)
    if command in _OPENS_MUCH and sys.stderr.isatty():
        terminal.remark(f"{command}: opening what it needs ...")
    with telling(terminal.remark, is_refused=refuses_own_code), observing(terminal):
        return terminal.show(function(*bound.args, **bound.kwargs))


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    for value in values:
        for entry in value if isinstance(value, list | tuple) else [value]:
            if isinstance(entry, str | Path) and str(entry) != "-":
                yield Path(entry)
