"""What all tests share: hypothesis' settings, signals as a shell in front of a user has them, and which tests go where.

Hypothesis draws again on every run here, and the same every time in CI: a change is judged by itself, not by luck.
It has no deadlines: a busy machine is not a mistake.
"""

import multiprocessing
import os
import secrets
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# Ray's nodes that tests start let in who has the token; a process reads it once, when it first imports Ray.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

from tests.ray_nodes import RAY_HOSTS, RayNodes, ray_nodes  # noqa: E402 - it takes the token from there

settings.register_profile("here", deadline=None, max_examples=25)
settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "2000")))
settings.load_profile("ci" if os.environ.get("CI") else "here")


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
    import hw.router.local_workers

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hw.worker.torch_outfit", "hw.router.local_workers"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hw.router.local_workers, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
        yield


@pytest.fixture(scope="session")
def ray_hosts() -> Iterator[RayNodes]:
    """Three nodes of Ray, which take 20 s to start; whoever adds one or ends one leaves them as they were."""
    with ray_nodes(RAY_HOSTS, {"PYTHONPATH": str(ROOT)}) as opened:
        yield opened


# ------------------------------------------------------------------------------------------- in parallel: xdist

BESIDE = "PYTEST_XDIST_WORKER" in os.environ
NICENESS = 19
WORKERS = "workers"
RAY = "ray"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What starts real workers goes first, one after another; the rest file by file, so that fixtures are made once.

    A scheduler of our own, for that of xdist 3.8 (`--dist loadgroup`) finds no group with pytest 9.2.
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.partition("::")[0])

    config.option.loadscopereorder = False  # the order of the tests is that of the groups
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order in which they are given to processes; what starts nodes of Ray goes last of its group, or of all."""
    items.sort(key=lambda item: (BESIDE and _measures_nothing(item), item.get_closest_marker(RAY) is not None))
    for item in items:
        if not _measures_nothing(item):  # real processes on a host that others use, too
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A process of tests that measure nothing stands back behind the workers of the other one."""
    if BESIDE and _measures_nothing(item) and os.nice(0) < NICENESS:
        os.nice(NICENESS)


def _measures_nothing(item: pytest.Item) -> bool:
    return _group(item.nodeid.partition("::")[0]) != WORKERS


@cache
def _group(file: str) -> str:
    """Of all tests of a file; the process that gives them out has not imported it."""
    return WORKERS if "pytest.mark.workers" in (ROOT / file).read_text(encoding="utf-8") else file
