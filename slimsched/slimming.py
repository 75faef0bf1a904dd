"""An ordinary trained network, made slimmable."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kit.errors import InputError
from slimsched.arguments import File, NewFile, network_of, read_by, require_within
from slimsched.results import CommandResult
from slimsched.working import observer, verb

if TYPE_CHECKING:
    from hw.networks.conversion import Conversion
    from hw.networks.datasets import Dataset
    from hw.networks.ordinary import GivenNetwork
    from hw.networks.registry import Network

    Widths = Sequence[float]
else:

    def _widths(text: str) -> tuple[float, ...]:
        return tuple(float(each) for each in text.split(","))

    Widths = Annotated[tuple[float, ...], read_by(_widths)]


@verb
def slim_model(
    network: str,
    /,
    *,
    weights: File,
    images: str,
    size: int | None = None,
    widths: Widths = (0.25, 0.5, 0.75, 1.0),
    minutes: float = 10.0,
    device: str = "cpu",
    out: NewFile = "slim.safetensors",
) -> CommandResult:
    """Make an ordinary trained network slimmable.

    Its channels are sorted, it is cut into segments between its own stages, and every width is taught by the network
    itself. It is refused where it loses more than 3 points at full width. Interrupted, the same command goes on.

    Args:
        network: torchvision:resnet18 and the like, or `module:Class` of your own, with what it is called with as JSON
            behind it.
        weights: its file: safetensors, or what torch.save wrote of a `state_dict`; no code in it is run.
        images: a folder with train/CLASS/*.png and test/CLASS/*.png; or another data set by name (docs/models.md).
        size: resize the folder's pictures to so many pixels along each side, into a folder beside the result.
        widths: shares of the channels, ascending; 0.25,0.5,0.75,1 by default.
        minutes: for tuning.
        device: where to tune it, as torch names it.
        out: the file to write.

    Raises:
        InputError: one of these is wrong, they do not belong together, or the network can't be made slimmable.
        WorkError: it is not worth it.
    """
    from hw.networks.conversion import converted
    from hw.networks.registry import save_model
    from scenarios.terminal.progress import Progress

    path, shares = Path(out), tuple(float(width) for width in widths)
    _require_arguments(network, shares, minutes, device)
    named = network_of(network, "NETWORK")
    assert named is not None, "it is given"
    given, data, source, normalisation = _opened(named, Path(weights), images, size, path)
    observer().remark(f"{named.name} takes {normalisation}")
    with Progress("tune all widths", None, unit="step", quiet=observer().quiet) as progress:
        found = converted(
            given, data, shares, named.label, seconds=60 * minutes, device=device,
            checkpoint=path.with_name(f"{path.stem}-tuning.safetensors"), on_step=progress.set,
        )  # fmt: skip
    label = f"slimmed {named.label}"
    save_model(path, found.model, label, {"dataset": data.name, "normalisation": normalisation})
    document = {
        "schema": "slimsched.slimmed/1",
        "network": label,
        "model": str(path),
        "dataset": data.name,
        "normalisation": normalisation,
        "epochs": found.epochs,
        "given_top1": found.given,
        "widths": _rows(found),
    }
    return CommandResult(document, _text(document, len(data.test_labels), path, source))


def _require_arguments(network: str, widths: Sequence[float], minutes: float, device: str) -> None:
    from hw.device import require_torch_device

    require_within("--minutes", minutes, 0.01, 100_000)
    require_torch_device(device)
    if list(widths) != sorted(set(widths)) or len(widths) < 2 or widths[0] <= 0 or widths[-1] != 1:
        raise InputError("--widths", "", f"{list(widths)}: must ascend from above 0 to 1, such as 0.25,0.5,0.75,1")
    if ":" not in network:
        problem = f"{network!r}: name torchvision:NAME, such as torchvision:resnet18, or module:Class"
        raise InputError("NETWORK", "", problem)


def _opened(
    network: Network, weights: Path, images: str, size: int | None, out: Path
) -> tuple[GivenNetwork, Dataset, str, str]:
    """Return the trained network in its images' form, the data set's name in a scenario, the normalisation's name."""
    from hw.networks.conversion import fitted
    from hw.networks.given import read_weights, take_weights
    from hw.networks.ordinary import build_given

    trained = read_weights(weights)
    data, source = _images(network, images, size, out)
    module = build_given(network, data.classes)
    chosen = take_weights(module, trained, weights, data)
    given, normalisation = fitted(module, data, network.name)
    return given, data, source, ", and ".join(filter(None, (normalisation, chosen)))


def _images(network: Network, images: str, size: int | None, out: Path) -> tuple[Dataset, str]:
    """Return the data set, and its name in a scenario; with `size` a folder's images are made equally large first."""
    import torch

    from hw.networks.accuracy import MIN_IMAGES
    from hw.networks.datasets import is_image_folder, load_dataset, require_training_images
    from hw.networks.ordinary import build_given
    from hw.networks.pictures import equally_large
    from scenarios.terminal.progress import Progress

    if size is not None:
        require_within("--size", size, 4, 4096)
        if not is_image_folder(images):
            raise InputError("--size", "", f"is for a folder of pictures; {images!r} has its own size")
        parts = build_given(network, 2).modules()
        channels = next((part.in_channels for part in parts if isinstance(part, torch.nn.Conv2d)), 3)
        target = out.with_name(f"{out.stem}-images")
        with Progress("resize pictures", None, unit="picture", quiet=observer().quiet) as progress:
            _, unreadable = equally_large(Path(images), target, size, channels, progress.set)
        if unreadable:
            observer().remark(f"warning: {unreadable} pictures can't be read; they are left out")
        images = str(target)
    try:
        data = load_dataset(images)
        require_training_images(data)
    except InputError as error:
        raise InputError("--images", "", error.problem) from None
    if len(data.test_labels) < MIN_IMAGES:
        problem = f"{images} has {len(data.test_labels)} test images; an accuracy needs {MIN_IMAGES}"
        raise InputError("--images", "", problem)
    return data, images


def _rows(found: Conversion) -> list[dict[str, Any]]:
    spec, rows = found.model.spec, []
    for width, share in found.top1.items():
        costs = [
            found.model.cost(s, width, spec.previous_widths(s, width)[0] if s == 1 else width)
            for s in range(1, spec.segments + 1)
        ]
        rows.append({"width": width, "top1": share, "macs": sum(cost.macs for cost in costs)})
    return rows


def _text(document: dict[str, Any], images: int, path: Path, dataset: str) -> str:
    from scenarios.show.table import UNBROKEN, Table, columns, to_text

    def cells(share: float) -> list[str]:
        return [f"{100 * share:.1f}", f"+-{196 * sqrt(share * (1 - share) / images):.1f}"]

    rows = [["as given", *cells(document["given_top1"]), ""]]
    rows += [[f"{each['width']:g}", *cells(each["top1"]), f"{each['macs'] / 1e6:.1f}"] for each in document["widths"]]
    notes = [
        f"top-1 of {images} test images, tuned for {document['epochs']} epochs",
        f"network: {path}",
        f"in a scenario: model: {{checkpoint: {path}, dataset: {dataset}}}",
        f"next: slimsched calibrate --model {path}",
    ]
    return to_text([Table(columns("width", "top-1 %", "95 %", "MACs M"), rows, notes=notes)], UNBROKEN)
