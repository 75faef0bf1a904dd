"""What the hardware's tests serve: the tiny network, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hw.networks.architectures import SlimResNet
from hw.networks.network_files import save_model
from tests.hw.tiny import tiny_model


@pytest.fixture(scope="module")
def model() -> SlimResNet:
    return tiny_model()


@pytest.fixture(scope="module")
def path(model: SlimResNet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_model(file, model, "tiny", {})
    return file
