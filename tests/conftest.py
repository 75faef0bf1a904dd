"""What all tests share: hypothesis' settings, signals as a shell in front of a user has them, and which tests go where.

Hypothesis draws anew on every run here, and the same every time in CI: a change is judged by itself, not by luck.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """Ctrl-C interrupts what a test starts, even where a shell started the tests in the background and ignores it.

    A process inherits what is ignored, and nothing else: with a handler here, it begins with the system's default.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def shared_imports(request: pytest.FixtureRequest) -> Iterator[None]:
    """Real workers share one import of torch, which is most of their start: they are forked from a process that has it.

    What they are given travels as it does to a spawned one. Those of commands that tests start are spawned, as ever.
    """
    if all(map(_measures_nothing, request.session.items)):
        yield
        return
    import hw.worker

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hw.executor"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hw.worker, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
        yield


# ------------------------------------------------------------------------------------------- beside each other: xdist

BESIDE = "PYTEST_XDIST_WORKER" in os.environ
NICENESS = 10


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts real workers goes first, one after another; the rest file by file, so that fixtures are made once."""
    if BESIDE:
        items.sort(key=_measures_nothing)
        for item in items:
            file = item.nodeid.split("::")[0]
            item.add_marker(pytest.mark.xdist_group(file if _measures_nothing(item) else "workers"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A process of tests that measure nothing stands back behind the workers of the other one."""
    if BESIDE and _measures_nothing(item) and os.nice(0) < NICENESS:
        os.nice(NICENESS)


def _measures_nothing(item: pytest.Item) -> bool:
    return item.get_closest_marker("workers") is None
