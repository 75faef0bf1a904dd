"""Training and evaluating in a process of its own give what they give here, and leave this process as it was."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load

from hw.networks.datasets import Dataset, load_dataset
from hw.networks.network_files import ModelFile, model_hash, save_model
from hw.networks.network_training import TrainingParams
from hw.subprocesses import apart, here
from kit.errors import InputError
from scenarios.job.network_stages import evaluated, runner_for, trained
from tests.hw.tiny import TINY_NETWORK, tiny_model

SMALL = TrainingParams(epochs=1, batch=16, warmup_epochs=0.5, shift=1, flip=True, checkpoint_epochs=1, seed=3)


@pytest.fixture
def few() -> Dataset:
    digits, kept = load_dataset("digits"), slice(0, 32)
    return dataclasses.replace(
        digits,
        train_images=digits.train_images[kept],
        train_labels=digits.train_labels[kept],
        test_images=digits.test_images[kept],
        test_labels=digits.test_labels[kept],
    )


def _note(told: list[tuple[int, int]], done: int, of: int) -> None:
    told.append((done, of))


def test_only_a_gpu_is_left_to_another_process() -> None:
    assert (runner_for("cuda:1"), runner_for("cuda"), runner_for("cpu")) == (apart, apart, here)


def test_a_network_trained_apart_has_the_same_bits(few: Dataset, tmp_path: Path) -> None:
    hashes, steps, before = [], [], torch.backends.cudnn.deterministic
    for number, runner in enumerate((here, apart)):
        folder = tmp_path / str(number)
        folder.mkdir()
        wanted = partial(trained, TINY_NETWORK, few, SMALL, folder / "checkpoint", folder / "nvml_device")
        steps.append(told := list[tuple[int, int]]())
        hashes.append(model_hash(load(runner(wanted, partial(_note, told)))))
    assert (hashes[0], steps) == (hashes[1], [[(0, 2), (1, 2), (2, 2)]] * 2)
    assert torch.backends.cudnn.deterministic == before


def test_a_network_evaluated_apart_has_the_same_table(few: Dataset, tmp_path: Path) -> None:
    file = ModelFile(tmp_path / "tiny.safetensors")
    save_model(file.path, tiny_model(), "tiny", {})
    tables = [runner(partial(evaluated, file, few, "cpu"), lambda *_: None) for runner in (here, apart)]
    assert np.array_equal(tables[0].correct, tables[1].correct)
    with pytest.raises(InputError, match="'cuda:9' can't be used"):
        evaluated(file, few, "cuda:9", lambda *_: None)
