"""Ordinary trained networks, made a family: which of them to run where."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kit.errors import InputError
from slimsched.arguments import Duration, File, NewFolder, require_within
from slimsched.results import CommandResult
from slimsched.working import begin, observer, verb

if TYPE_CHECKING:
    from hw.networks.datasets import Dataset
    from hw.networks.family import Member
    from hw.networks.members import Judged
    from sim.profile import Profile

MODEL, SCENARIO, ACCURACY, IMAGES = "family.safetensors", "family.yaml", "accuracy.json", "images"
MOST_PICTURES: Final = 100_000
_SHARE_OF_CAPACITY: Final = 0.7
_TEXT: Final = """\
# A family of networks, made by `slimsched model add`. All keys: docs/scenario-keys.md.
#   slimsched run {file}
schema: slimsched.scenario/1
name: {name}
model:
  checkpoint: family.safetensors
{network}  dataset: {dataset}
  accuracy: accuracy.json
cluster:
  servers: auto  # the devices of this machine
  greedy: {{batch_limit: {batch_limit}, preload: {preload}}}
router: {{groups: [1, 2, 4, 8]}}
workload: {{kind: mmpp, rate_img_s: {rate:g}, burst_factor: 3, burst_share: 0.15, dwell_s: 0.5}}
calibration: {{budget: {calibration}}}
compare: {{routers: [random, sticky, ladder, compass], seeds: [0, 1, 2]}}
validate: {{routers: [ladder, compass], duration_s: 5s, warmup_s: 1s, go_on: true}}
duration_s: 20
warmup_s: 2
"""


@verb
def add_models(
    networks: str,
    /,
    *,
    weights: File,
    images: str,
    size: int | None = None,
    pictures: int = 240,
    budget_s: Duration = 20.0,
    keep_all: bool = False,
    allow_busy: bool = False,
    out: NewFolder = "family",
) -> CommandResult:
    """Make a family of trained networks, and tell which of them to run where.

    Each request is then served by one of them, whichever a router chooses. They are evaluated and timed on the devices
    of this machine. One that knows no more than another one, which is as quick, is left out.

    Args:
        networks: torchvision:resnet18,resnet34 and the like, or `module:Class` of your own with what it is called with
            as JSON behind it; then int8 or bfloat16 for that form of it.
        weights: a folder with a file for each, such as resnet18.pt (safetensors, or what torch.save wrote of a
            `state_dict`); or the file of a single one.
        images: a folder with test/CLASS/*.jpg, or with the classes alone; or another data set by name.
        size: pixels along each side that pictures are resized to; by default their own where all are alike, else 224.
        pictures: so many of the folder's, as many of each class as can be.
        budget_s: for calibration, of each device.
        keep_all: also what another network beats.
        allow_busy: measure even if other programs use a device; its profile says so.
        out: the folder for the family and its first scenario.

    Raises:
        InputError: one of these is wrong, or they do not belong together.
    """
    from hw.networks.members import dominated, family_of, members_of, weights_of

    require_within("--pictures", pictures, 100, MOST_PICTURES)
    require_within("--size", size, 4, 4096)
    members = members_of(networks, "NETWORKS")
    files = {member.label: weights_of(member, Path(weights), "--weights") for member in members}
    folder = Path(out)
    data, dataset = _images(members[0], images, size, pictures, folder)
    found = [_judged(member, files[member.label], data) for member in members]
    beaten = {} if keep_all else dominated(found)
    kept = [each for each in found if each.member.label not in beaten]
    family, evaluation = family_of(kept, data)
    written = _Written(folder, dataset, kept, f"{budget_s:g}s, allow_busy: {str(allow_busy).lower()}")
    written.write(family, evaluation)
    profiles = written.calibrated(family.spec.widths)
    return _answer(written, found, beaten, profiles, len(data.test_labels))


def _images(member: Member, images: str, size: int | None, pictures: int, folder: Path) -> tuple[Dataset, str]:
    """The data set, and its name in the scenario; of a folder's pictures some are written into the family's."""
    from torch import nn

    from hw.networks.accuracy import MIN_IMAGES
    from hw.networks.datasets import is_image_folder, load_dataset
    from hw.networks.ordinary import build_given
    from hw.networks.pictures import test_sample
    from hw.networks.registry import Network
    from scenarios.terminal.progress import Progress

    if not is_image_folder(images):
        if size is not None:
            raise InputError("--size", "", f"is for a folder of pictures; {images!r} has its own size")
        data, name = load_dataset(images), images
    else:
        parts = build_given(Network(member.network, member.options, "NETWORKS", ""), 2).modules()
        channels = next((part.in_channels for part in parts if isinstance(part, nn.Conv2d)), 3)
        target, name = folder / IMAGES, IMAGES
        if (target / "test").is_dir():
            shutil.rmtree(target / "test")  # of a former call: the folder is ours
        with Progress("resize pictures", None, unit="picture", quiet=observer().quiet) as progress:
            unreadable = test_sample(Path(images), target, size, channels, pictures, progress.set)
        if unreadable:
            observer().remark(f"warning: {unreadable} pictures can't be read; they are left out")
        data = load_dataset(str(target))
    if len(data.test_labels) < MIN_IMAGES:
        problem = f"{images} has {len(data.test_labels)} test images; an accuracy needs {MIN_IMAGES}"
        raise InputError("--images", "", problem)
    return data, name


def _judged(member: Member, file: Path, data: Dataset) -> Judged:
    from hw.networks.members import judged
    from scenarios.terminal.progress import Progress

    with Progress(f"evaluate {member.label}", None, unit="image", quiet=observer().quiet) as progress:
        found = judged(member, file, data, "NETWORKS", progress.set)
    observer().remark(f"{member.label} takes {found.normalisation}")
    return found


@dataclass(frozen=True)
class _Written:
    """The family's folder, and what is written into it."""

    folder: Path
    dataset: str
    members: Sequence[Judged]
    calibration: str

    @property
    def scenario(self) -> Path:
        return self.folder / SCENARIO

    def write(self, family: Any, evaluation: Any) -> None:
        """Network, table and scenario; the rules are checked where a class is the user's own."""
        from hw.networks.accuracy import save_accuracy
        from hw.networks.conformance import require_conformance
        from hw.networks.registry import ModelFile, Network, save_model

        own = self._own_class
        model = self.folder / MODEL
        save_model(model, family, family.structure.label, {"dataset": evaluation.dataset})
        save_accuracy(self.folder / ACCURACY, evaluation)
        if own:
            named = Network(own, {}, "NETWORKS", "")
            require_conformance(named, ModelFile(model, named))
        self._write_scenario(1.0)

    def calibrated(self, widths: Sequence[float]) -> dict[str, Profile]:
        """Each server's profile, by its name; the scenario then has a load at which its routers differ."""
        from scenarios.job.profiles import make_profiles
        from scenarios.world.materials import read_profiles, with_named_servers

        session = begin(self.scenario, None, None)
        job = session.job()
        with job.folder.opened(session.path):
            make_profiles(job)
        profiles = read_profiles(with_named_servers(session.scenario), session.folder)
        most = [sum(_img_s(profile, width) for profile in profiles.values()) for width in (widths[0], widths[-1])]
        self._write_scenario(_SHARE_OF_CAPACITY * sqrt(most[0] * most[1]))
        return profiles

    @property
    def _own_class(self) -> str:
        own = {each.member.network for each in self.members if not each.member.network.startswith("torchvision:")}
        if len(own) > 1:
            problem = (
                f"{', '.join(sorted(own))}: a family has one class of your own at most; let its options tell which"
            )
            raise InputError("NETWORKS", "", problem)
        return next(iter(own), "")

    def _write_scenario(self, rate_img_s: float) -> None:
        from hw.device import local_devices
        from kit.documents import write_text

        devices = local_devices()
        held = sum(each.network.held_bytes() for each in self.members)
        network = f"  network: '{self._own_class}'\n" if self._own_class else ""
        text = _TEXT.format(
            file=self.scenario,
            name=self.folder.absolute().name,
            network=network,
            dataset=self.dataset,
            batch_limit=32 if any(device.kind == "cuda" for device in devices) else 8,
            preload="all" if all(held < device.vram_bytes for device in devices) else "none",
            rate=float(f"{rate_img_s:.2g}"),
            calibration=self.calibration,
        )
        write_text(self.scenario, text)


def _img_s(profile: Profile, width: float) -> float:
    """Images a second of a device that does nothing else, at its best batch size."""
    curve = next(curve for curve in profile.latency if curve.width == width)
    return max(batch / mean_s for batch, mean_s in zip(curve.batches, curve.mean_s, strict=True))


def _answer(
    written: _Written,
    found: Sequence[Judged],
    beaten: Mapping[str, Judged],
    profiles: Mapping[str, Profile],
    images: int,
) -> CommandResult:
    from scenarios.show.table import Table, columns, to_text

    ranks = {label: width for profile in profiles.values() for label, width in _named_widths(profile)}
    rows, documents, carried = [], [], 0.0
    for each in sorted(found, key=lambda one: -one.top1):
        label, size_mb = each.member.label, each.network.held_bytes() / 1e6
        interval = 1.96 * sqrt(each.top1 * (1 - each.top1) / images)
        document: dict[str, Any] = {"label": label, "top1": each.top1, "top1_ci95": interval, "size_mb": size_mb}
        cells = [label, f"{100 * each.top1:.1f}", f"+-{100 * interval:.1f}", f"{size_mb:.1f}"]
        if label in beaten:
            use = f"left out: {beaten[label].member.label} is as good, and as quick"
            cells += [f"{1e3 * each.pass_s:.3g}", *[""] * (2 * len(profiles) - 1)]
            document["dominated_by"] = beaten[label].member.label
        else:
            here = {name: _times(profile, ranks[label]) for name, profile in profiles.items()}
            cells += [cell for times in here.values() for cell in times.cells]
            most = sum(times.img_s for times in here.values())
            use = f"up to {most:.0f} images/s" if not carried else f"{carried:.0f} to {most:.0f} images/s"
            carried = max(carried, most)
            document |= {"images_s": {name: times.img_s for name, times in here.items()}}
        rows.append([*cells, use])
        documents.append(document)
    heads = [head for name in profiles for head in (f"{name} ms at 1 / most", f"{name} images/s")]
    notes = [
        f"top-1 of {images} test images, with its 95 % interval",
        f"network: {written.folder / MODEL}",
        f"next: slimsched run {written.scenario}",
    ]
    document = {"schema": "slimsched.family/1", "scenario": str(written.scenario), "members": documents}
    names = ["network", "top-1 %", "95 %", "MB", *heads, "use"]
    return CommandResult(document, to_text([Table(columns(*names), rows, notes=notes)]))


def _named_widths(profile: Profile) -> list[tuple[str, float]]:
    return list(zip(profile.model.labels, profile.model.widths, strict=True))


@dataclass(frozen=True)
class _Times:
    """Of one member on one device."""

    single_ms: float
    batch_ms: float
    img_s: float

    @property
    def cells(self) -> tuple[str, str]:
        return f"{self.single_ms:.3g} / {self.batch_ms:.3g}", f"{self.img_s:.0f}"


def _times(profile: Profile, width: float) -> _Times:
    curve = next(curve for curve in profile.latency if curve.width == width)
    return _Times(1e3 * curve.mean_s[0], 1e3 * curve.mean_s[-1], _img_s(profile, width))
