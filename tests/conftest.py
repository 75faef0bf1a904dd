"""What all tests share: hypothesis' settings, signals as a shell in front of a user has them, and which tests go where.

Hypothesis draws anew on every run here, and the same every time in CI: a change is judged by itself, not by luck.
"""

import os
import signal
from collections.abc import Iterator

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


# ------------------------------------------------------------------------------------------- beside each other: xdist


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What starts real workers goes first, one after another; the rest file by file, so that fixtures are made once."""
    if config.pluginmanager.hasplugin("xdist"):
        items.sort(key=_may_wait)
        for item in items:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0] if _may_wait(item) else "workers"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Beside real workers, whose time is measured, a process of tests that measure nothing stands back."""
    if "PYTEST_XDIST_WORKER" in os.environ and _may_wait(item) and os.nice(0) < _NICE:
        os.nice(_NICE)


_NICE = 10


def _may_wait(item: pytest.Item) -> bool:
    return item.get_closest_marker("workers") is None
