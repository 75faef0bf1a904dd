"""What tests of scenarios share: reports without their pictures, where nobody looks at these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.folders import leave_undrawn


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """For all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        yield
