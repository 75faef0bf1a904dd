"""Training and evaluation: exact resume, the sandwich, shared prefixes, files."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from hw.networks import network_training
from hw.networks.architectures import SlimResNet
from hw.networks.datasets import Dataset, load_dataset
from hw.networks.network_files import Network, model_hash
from hw.networks.network_training import (
    EpochReport,
    TrainingParams,
    _augment,
    _Training,
    autocast_dtype,
    evaluate,
    recipe,
    train,
)
from hw.networks.slimmable import Weights
from kit.errors import InputError, WorkError
from tests.hw.tiny import TINY_NETWORK, TINY_SPEC, tiny_model

SMALL = TrainingParams(epochs=2, batch=16, warmup_epochs=0.5, shift=1, flip=True, checkpoint_epochs=1, seed=3)
ADAM = dataclasses.replace(SMALL, optimizer="adamw", learning_rate=2e-3, weight_decay=0.05, clip_norm=1.0)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    return dataclasses.replace(
        digits,
        train_images=digits.train_images[:48],
        train_labels=digits.train_labels[:48],
        test_images=digits.test_images[:40],
        test_labels=digits.test_labels[:40],
    )


@pytest.mark.parametrize("params", [SMALL, ADAM], ids=["sgd", "adamw"])
def test_resuming_changes_nothing(params: TrainingParams, few: Dataset, tmp_path: Path) -> None:
    """Two epochs at once and one epoch plus a resumed one give the same weights, bit for bit."""
    whole = train(TINY_NETWORK, few, params)

    class StoppedError(Exception):
        pass

    def stop(report: EpochReport) -> None:
        if report.epoch == 1:
            raise StoppedError

    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(StoppedError):
        train(TINY_NETWORK, few, params, on_epoch=stop, checkpoint=checkpoint)
    epochs: list[int] = []
    resumed = train(
        TINY_NETWORK, few, params, on_epoch=lambda report: epochs.append(report.epoch), checkpoint=checkpoint
    )
    assert epochs == [2]
    assert model_hash(resumed.state_dict()) == model_hash(whole.state_dict())
    assert model_hash(resumed.state_dict()) != model_hash(
        train(TINY_NETWORK, few, dataclasses.replace(params, seed=4)).state_dict()
    )


def test_no_more_threads_learn_than_a_quota_pays_for(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch counts the machine's cores, a quota may pay for fewer; afterwards there are as many as before."""
    monkeypatch.setattr("hw.networks.network_training.core_count", lambda: 2)
    before, seen = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:
        train(TINY_NETWORK, few, dataclasses.replace(SMALL, epochs=1), lambda _: seen.append(torch.get_num_threads()))
        assert (seen, torch.get_num_threads()) == ([2], 3)
    finally:
        torch.set_num_threads(before)


def test_a_foreign_or_damaged_checkpoint_is_refused(few: Dataset, tmp_path: Path) -> None:
    """Of other settings, or with a weight that changed on the disk: it is not trained on in silence."""
    checkpoint, once = tmp_path / "checkpoint.safetensors", dataclasses.replace(SMALL, epochs=1)
    train(TINY_NETWORK, few, once, checkpoint=checkpoint)
    with pytest.raises(InputError, match="another model"):
        train(TINY_NETWORK, few, SMALL, checkpoint=checkpoint)
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(InputError, match="its tensors are not those that were written"):
        train(TINY_NETWORK, few, once, checkpoint=checkpoint)


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"network": Network("slimresnet-tiny")}, "choose a model and a data set that fit"),
        ({"device": "cuda:77"}, r"can't be used .*expected cpu"),
        ({"device": "no such device"}, r"can't be used .*expected cpu"),
        ({"batch": 64}, "too few images: 48 for batches of 64"),
        ({"growth": ((0.9, 4), (0.1, 6))}, "shares must ascend"),
        ({"growth": ((1.0, 4),)}, "shares must ascend"),  # it leaves no epoch for whole images
        ({"growth": ((0.5, 16),)}, "pixels be at most 8"),
        ({"learning_rate": 1e30}, "diverged in epoch 1"),  # weights that are not numbers are not saved as trained
    ],
)
def test_training_with_unusable_settings_is_refused_without_a_checkpoint(
    changes: dict[str, Any], problem: str, few: Dataset, tmp_path: Path
) -> None:
    network, checkpoint = changes.pop("network", TINY_NETWORK), tmp_path / "checkpoint.safetensors"
    with pytest.raises((InputError, WorkError), match=problem):
        train(network, few, dataclasses.replace(SMALL, **changes), checkpoint=checkpoint)
    assert not checkpoint.exists()


def test_training_learns_every_width(few: Dataset) -> None:
    """After some epochs the widest and the narrowest network know their training images better than chance."""
    reports: list[EpochReport] = []
    params = dataclasses.replace(SMALL, epochs=30, learning_rate=0.05, flip=False, shift=0)
    model = train(TINY_NETWORK, few, params, on_epoch=reports.append)
    assert reports[-1].loss_widest < reports[0].loss_widest
    with torch.inference_mode():
        for widths in ((0.5,) * 3, (1.0,) * 3, (0.5, 1.0, 0.5)):
            found = model(torch.from_numpy(few.train_images), widths).argmax(1).numpy()
            assert np.mean(found == few.train_labels) > 0.5


def test_adamw_decays_matrices_alone(few: Dataset) -> None:
    """So strong a decay that one step leaves nothing: norms and biases are as long as they were."""
    params = dataclasses.replace(ADAM, epochs=1, batch=48, learning_rate=1e-3, weight_decay=1000.0, warmup_epochs=0.01)
    torch.manual_seed(0)
    run = _Training(TINY_NETWORK, few, params)
    images, labels = next(run._batches(np.random.default_rng(0), None))
    run._sandwich_step(images, labels, np.random.default_rng(0))
    for name, parameter in run.model.named_parameters():
        largest = parameter.detach().abs().max()
        assert largest == pytest.approx(1.0, abs=0.01) if name.endswith("_scale") else largest < 0.01


def test_long_gradients_are_clipped(few: Dataset) -> None:
    """The first step of SGD is its rate times the gradient, once more by its momentum: so long and no longer."""
    params = dataclasses.replace(SMALL, clip_norm=1e-3, weight_decay=0.0, momentum=0.5)
    run = _Training(TINY_NETWORK, few, params)
    before = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    images, labels = next(run._batches(np.random.default_rng(0), None))
    run._sandwich_step(images, labels, np.random.default_rng(0))
    moved = torch.cat([(after - before[name]).flatten() for name, after in run.model.named_parameters()])
    assert moved.norm().item() == pytest.approx(1.5 * params.learning_rate * 1e-3, rel=0.01)


def test_the_digits_split_is_fixed_and_stratified(digits: Dataset) -> None:
    """Every class gives about a quarter of its images to the test, and the training part is normalized."""
    for label in range(10):
        counts = [np.sum(labels == label) for labels in (digits.train_labels, digits.test_labels)]
        assert counts[1] / sum(counts) == pytest.approx(0.25, abs=0.01)
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    assert np.mean(digits.train_images) == pytest.approx(0, abs=1e-4)
    assert np.std(digits.train_images) == pytest.approx(1, abs=1e-4)
    assert isinstance(digits.test_images, np.ndarray), "they are no bytes"
    assert digits.test_images.dtype == np.float32


def test_digit_pairs_spell_their_class_with_noise_of_their_own(digits: Dataset) -> None:
    """Each half is nearest to a digit of its own part, which is the one that stands there in the number."""
    pairs, again = load_dataset("digit-pairs"), load_dataset("digit-pairs")
    assert np.array_equal(pairs.train_images, again.train_images)
    assert np.array_equal(pairs.train_labels, again.train_labels)
    assert set(pairs.train_labels) == set(pairs.test_labels) == set(range(pairs.classes)) == set(range(100))
    for part in ("train", "test"):
        images, labels = getattr(pairs, f"{part}_images"), getattr(pairs, f"{part}_labels")
        parts = {other: getattr(digits, f"{other}_images").reshape(-1, 64) for other in ("train", "test")}
        border = images[:, 0, :4].ravel()  # no ink: noise alone
        assert np.corrcoef(border[:-1], border[1:])[0, 1] == pytest.approx(0, abs=0.02)
        for side, found in enumerate((labels // 10, labels % 10)):
            half = images[:, 0, 4:12, 8 * side : 8 * side + 8].reshape(-1, 64)
            half = half * (3 / border.std() / 6.01)  # scaled as digits are
            half -= half.mean() - parts[part].mean()
            far = {other: cdist(half, plain) for other, plain in parts.items()}
            nearest = far[part].argmin(axis=1)
            assert np.mean(getattr(digits, f"{part}_labels")[nearest] == found) > 0.99
            other = "test" if part == "train" else "train"
            assert np.mean(far[part].min(axis=1) < far[other].min(axis=1)) > 0.95


def test_missing_data_that_cannot_be_downloaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", no_network)
    monkeypatch.setenv("SLIMSCHED_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"can't be downloaded .*no network.*SLIMSCHED_DATA"):
        load_dataset("cifar100")


def test_missing_folder_is_downloaded_and_a_damaged_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a network, torchvision fetches the files to the folder that SLIMSCHED_DATA names."""
    asked: list[str | Path] = []
    monkeypatch.setattr(
        "torchvision.datasets.cifar.download_and_extract_archive", lambda url, root, **_: asked.append(root)
    )
    with pytest.raises(InputError):  # it is as missing as before: nothing was really fetched
        load_dataset("cifar100", tmp_path)
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(InputError):
        load_dataset("cifar100", tmp_path)
    assert list(map(Path, asked)) == [tmp_path]


def test_augmentation_moves_and_mirrors_and_invents_nothing(few: Dataset) -> None:
    """Each image is a window of its padded, perhaps mirrored self; every shift and both mirrorings occur."""
    images = torch.arange(400 * 1 * 4 * 4, dtype=torch.float32).reshape(400, 1, 4, 4)
    params = dataclasses.replace(SMALL, shift=1, flip=True)
    found = _augment(images, params, np.random.default_rng(0))
    seen = set()
    for before, after in zip(images, found, strict=True):
        views = {}
        for mirrored in (False, True):
            padded = np.pad(np.asarray(before.flip(-1) if mirrored else before), ((0, 0), (1, 1), (1, 1)), mode="edge")
            for row, column in itertools.product(range(3), range(3)):
                views[mirrored, row, column] = padded[:, row : row + 4, column : column + 4]
        match = [view for view, pixels in views.items() if np.array_equal(pixels, after)]
        assert len(match) == 1
        seen.update(match)
    assert len(seen) == 18


def test_a_step_does_not_wait_for_what_is_uploaded(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA finishes all that was asked of it before a copy that is waited for: a GPU would be idle twice a step."""
    waits: list[bool] = []
    upload = torch.Tensor.to

    def noted(tensor: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        waits.append(not named.get("non_blocking", False))
        return upload(tensor, *given, **named)

    monkeypatch.setattr(torch.Tensor, "to", noted)
    params = dataclasses.replace(SMALL, shift=1, flip=True)
    _augment(torch.zeros(4, 1, 4, 4), params, np.random.default_rng(0))
    assert waits == [False, False]


def test_as_many_images_are_asked_about_at_once_as_there_is_room_for(
    few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 images of 64 pixels, where there is room for 960 pixels."""
    sizes = list[int]()
    monkeypatch.setattr(network_training, "_MOST_VALUES", 960)

    def answer(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return torch.zeros(len(x), 10)

    network_training.top1(answer, few)
    assert sizes == [15, 15, 10]


def test_images_grow_with_the_epochs(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its share of the epochs is over a size holds; then the next, and the images' own at last."""
    seen: list[int] = []
    run_segment = SlimResNet.run_segment

    def spy(self: SlimResNet, segment: int, weights: Weights, x: torch.Tensor) -> torch.Tensor:
        if segment == 1:
            seen.append(x.shape[-1])
        return run_segment(self, segment, weights, x)

    monkeypatch.setattr(SlimResNet, "run_segment", spy)
    params = dataclasses.replace(SMALL, epochs=4, batch=48, growth=((0.25, 4), (0.75, 6)), probe_epochs=0)
    train(TINY_NETWORK, few, params)
    passes = 2 + params.random_tuples
    tried = [4, 6]  # once each, before the first epoch
    assert seen == tried + [4] * passes + [6] * 2 * passes + [8] * passes


def test_half_precision_trains_and_resumes(few: Dataset, tmp_path: Path) -> None:
    """float16 needs a scaler whose state is part of the checkpoint; `auto` is float32 on a CPU."""
    assert autocast_dtype("auto", "cpu") is None
    params = dataclasses.replace(SMALL, precision="float16")
    trained, plain = train(TINY_NETWORK, few, params), train(TINY_NETWORK, few, SMALL)
    assert model_hash(plain.state_dict()) != model_hash(trained.state_dict())
    first = _Training(TINY_NETWORK, few, params)
    first.epoch(0, lambda *_: None)
    first.save(tmp_path / "checkpoint.safetensors", 1)
    second = _Training(TINY_NETWORK, few, params)
    assert second.resume(tmp_path / "checkpoint.safetensors") == 1
    assert (
        second._scaler.state_dict()
        == first._scaler.state_dict()
        != _Training(TINY_NETWORK, few, params)._scaler.state_dict()
    )
    for run in (first, second):
        run.epoch(1, lambda *_: None)
    assert model_hash(second.model.state_dict()) == model_hash(first.model.state_dict())


def test_shared_prefixes_change_no_bit(few: Dataset) -> None:
    """The evaluation that shares prefixes equals running every tuple on its own."""
    model = tiny_model()
    progress: list[tuple[int, int]] = []
    found = evaluate(model, few, on_progress=lambda done, all_: progress.append((done, all_)), batch=16)
    assert progress == [(16, 40), (32, 40), (40, 40)]
    assert found.tuples == tuple(TINY_SPEC.tuples())
    with torch.inference_mode():
        for column, widths in enumerate(found.tuples):
            for start in range(0, 40, 16):
                part = slice(start, start + 16)
                labels = model(torch.from_numpy(few.test_images[part]), widths).argmax(1).numpy()
                assert np.array_equal(found.correct[part, column], labels == few.test_labels[part])
    assert found.top1()[found.tuples[0]] == found.correct[:, 0].mean()


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "least", "step", "spread"), [("digits", 0.97, -1.0, 0.0), ("digit-pairs", 0.85, 0.015, 0.06)]
)
def test_a_recipe_reaches_its_mark(name: str, least: float, step: float, spread: float) -> None:
    """So much at full width; of pairs, each width knows more than the one below, and full width about the most."""
    found, data = Network(name), load_dataset(name)
    top1 = evaluate(train(found, data, recipe(name, name)), data).top1()
    uniform = [top1[(width,) * 4] for width in found.build().spec.widths]
    assert uniform[-1] > least
    assert min(np.diff(uniform)) > step
    assert uniform[-1] - uniform[0] >= spread
    assert max(top1.values()) - uniform[-1] < 0.02
