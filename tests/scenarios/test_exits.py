"""However a command ends: one message, the right code, and no promise that isn't kept."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE
from threading import Event
from types import SimpleNamespace

import pytest
from numba.core.event import trigger_event

from kit.errors import InputError, WorkError
from scenarios.terminal.compiling import GRACE_S, telling
from scenarios.terminal.screen import exit_code
from slimsched import cli


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("a.yaml", "floor", "missing"), 2, "a.yaml"),
        (WorkError("no setting keeps it"), 1, "no setting keeps it"),
        (WorkError("a worker:\nCUDA error\n\x1b[2J"), 1, "a worker:\\nCUDA error\\n\\x1b[2J"),
        (OSError(28, "No space left on device"), 1, "No space left"),
        (OSError(28, "No space left on device", "a\nb.json"), 1, "a\\nb.json: No space left"),
        (MemoryError(), 1, "too large for this machine (out of memory)"),
        (KeyboardInterrupt(), 130, "the same command resumes"),
    ],
)
def test_an_error_is_one_line(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise error

    assert exit_code("made", work) == code
    told = capsys.readouterr().err
    assert told.startswith("made: ")
    assert said in told
    assert told.count("\n") == 1


def test_an_unknown_error_is_no_ones_mistake() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code("made", lambda: 1 // 0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["simulate", "x.yaml"], "nothing of it is kept"),
        (["compare", "x.yaml"], "the same command resumes"),
        (["calibrate", "--model", "x"], "the same command resumes"),
    ],
)
def test_only_who_resumes_says_so(
    command: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("slimsched.launching.launch", interrupted)
    assert cli.main(command) == 130
    assert said in capsys.readouterr().err


def test_a_message_of_any_bytes_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What a file says can't move the terminal's cursor, end the line or fill the screen."""

    def work() -> int:
        raise InputError("x.yaml", "a\nb", "\x1b[2J" + "y" * 100_000 + "\udc80\0")

    assert exit_code("slimsched", work) == 2
    error = capsys.readouterr().err
    assert error.startswith("slimsched: x.yaml: a\\nb: \\x1b[2Jyy")
    assert error.endswith("yy\\udc80\\x00\n")
    assert len(error) < 2100


def test_ctrl_c_ends_a_compilation_that_hears_no_signal() -> None:
    """One call into C, as LLVM's; Python would act on the signal when it returns, a minute later."""
    lines = (
        "import hashlib, signal, types",
        "from numba.core.event import start_event",
        "from scenarios.terminal.compiling import telling",
        "compiled = types.SimpleNamespace(py_func=types.SimpleNamespace(__module__='sim.compiled.compiled_run'))",
        "signal.signal(signal.SIGINT, lambda *_: None)",
        "with telling(lambda text: print(text, flush=True)):",
        "    start_event('numba:compile', data={'dispatcher': compiled})",
        "    hashlib.pbkdf2_hmac('sha512', b'', b'', 100_000_000)",
    )
    with subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=PIPE, stderr=PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("compiling the engine")
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=30)
    assert (child.returncode, told.strip()) == (130, "slimsched: interrupted while compiling")


@pytest.fixture
def _default_sigint() -> Iterator[None]:
    """Python's own handler, also in a process that was started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_default_sigint")
def test_a_signal_that_python_hears_ends_a_compilation_as_it_does_all_else() -> None:
    compiled = SimpleNamespace(py_func=exit_code)
    compiling = trigger_event("numba:compile", data={"dispatcher": compiled})
    with telling(lambda text: None), pytest.raises(KeyboardInterrupt), compiling:
        signal.raise_signal(signal.SIGINT)
    assert signal.set_wakeup_fd(-1) == -1
    Event().wait(GRACE_S + 0.5)  # a watch that was left behind would end this process
