"""What tests of training jobs share: commands that simulate in their own process."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes in parallel would take longer to start than runs of so few jobs take."""
    monkeypatch.setattr("hw.host_resources.core_count", lambda: 1)
