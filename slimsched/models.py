"""Slimmable networks: trained, checked, joined, or made of ordinary trained ones; and families of those."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from kit.errors import InputError
from slimsched.arguments import (
    Changes,
    Duration,
    File,
    NewFile,
    NewFolder,
    Out,
    ScenarioLike,
    network_of,
    read_by,
    require_within,
)
from slimsched.results import CommandResult
from slimsched.working import begin, observer, verb

if TYPE_CHECKING:
    from hw.device_settings import DeviceSpec
    from hw.networks.datasets import Dataset
    from hw.networks.model_families import Member
    from hw.networks.servable import ModelSpec
    from hw.networks.user_networks import Judged
    from sim.device_profile import LatencyCurve, Profile


MODEL = "family.safetensors"
SCENARIO = "family.yaml"
ACCURACY = "accuracy.json"
IMAGES = "images"
MOST_PICTURES: Final = 100_000
_SHARE_OF_CAPACITY: Final = 0.7
_LEAST_BUDGET_S: Final = 20.0
_BUDGET_PASSES: Final = (
    60  # of each member: what a CPU without oneDNN, which takes several times as long, needs at least
)
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
router: {{micro_batch_sizes: [1, 2, 4, 8]}}
workload: {{kind: mmpp, rate_img_s: {rate:g}, burst_factor: 3, burst_share: 0.15, dwell_s: 0.5}}
calibration: {{budget: {calibration}}}
compare: {{routers: [random, sticky, ladder, compass], seeds: [0, 1, 2, 3, 4]}}
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
    pictures: int | None = None,
    budget_s: Duration | None = None,
    keep_all: bool = False,
    allow_busy: bool = False,
    out: NewFolder = "family",
) -> CommandResult:
    """Make a family of trained networks, and show which to run where.

    A router then chooses one of them for each request. They are evaluated and timed on this machine; a network that is
    neither more accurate nor faster than another one is left out.

    Args:
        networks: the networks: torchvision:resnet18,resnet34, or a custom `module:Class`, followed by its arguments as
            JSON; int8 or bfloat16 after it for that form.
        weights: a folder with a file for each, such as resnet18.pt (safetensors, or a `state_dict` by torch.save); or a
            single network's file.
        images: a folder with test/CLASS/*.jpg, or with the classes alone; or another data set's name.
        size: the side of the images, in pixels; by default their own if all are squares of one size, otherwise 224.
        pictures: the number of images, balanced over classes; by default 240 of 224 pixels, and up to 2,000 smaller
            ones.
        budget_s: the time of calibration for each device (20s, more for long passes).
        keep_all: keep networks that others beat.
        allow_busy: measure even if other programs use a device; its profile records that.
        out: the folder for the family and its first scenario.

    Raises:
        InputError: one of these is wrong, or they do not belong together.
    """
    from hw.device_settings import local_devices
    from hw.networks.user_networks import dominated, family_of, members_of, timed, weights_of
    from scenarios.runs.folder import RunFolder

    require_within("--pictures", pictures, 100, MOST_PICTURES)
    require_within("--size", size, 4, 4096)
    members = members_of(networks, "NETWORKS")
    files = {member.label: weights_of(member, Path(weights), "--weights") for member in members}
    kind = "cuda" if any(device.kind == "cuda" for device in local_devices()) else "cpu"
    if kind == "cuda" and (int8 := [member.label for member in members if member.form == "int8"]):
        raise InputError("NETWORKS", "", f"{int8[0]!r} runs on CPUs alone, and a GPU serves here; leave it out")
    folder = Path(out)
    with RunFolder(folder).opened():
        data, dataset = _images(members[0], images, size, pictures, folder)
        judged = [_judged(member, files[member.label], data) for member in members]
        _require_room(judged, local_devices())
        candidates = timed(judged, data, kind)
        beaten = {} if keep_all else dominated(candidates)
        useful = [each for each in candidates if each.member.label not in beaten]
        family, evaluation = family_of(useful, data)
        calibration_s = budget_s or max(_LEAST_BUDGET_S, round(_BUDGET_PASSES * sum(each.pass_s for each in useful)))
        target = _FamilyFolder(folder, dataset, useful, f"{calibration_s:g}s, allow_busy: {str(allow_busy).lower()}")
        target.write(family, evaluation)
    profiles = target.calibrated(family.spec.widths)
    return _answer(target, family.spec, candidates, beaten, profiles)


def _images(member: Member, images: str, size: int | None, pictures: int | None, folder: Path) -> tuple[Dataset, str]:
    """Return the data set, and its name in the scenario; some images of a folder are written into the family's."""
    from torch import nn

    from hw.networks.accuracy_table import MIN_IMAGES
    from hw.networks.datasets import is_image_folder, load_dataset, test_sample
    from hw.networks.third_party_networks import Named, build_given
    from scenarios.terminal.progress import Progress

    if not is_image_folder(images):
        if size is not None:
            raise InputError("--size", "", f"is for a folder of images; {images!r} has its own size")
        data, name = load_dataset(images), images
    else:
        parts = build_given(Named(member.network, member.options, "NETWORKS", ""), 2).modules()
        channels = next((part.in_channels for part in parts if isinstance(part, nn.Conv2d)), 3)
        target, name = folder / IMAGES, IMAGES
        if Path(images).resolve().is_relative_to(target.resolve()):
            raise InputError("--images", "", f"{images} is written again; name the folder that it was made from")
        shutil.rmtree(target, ignore_errors=True)  # of an earlier call: the folder is ours
        with Progress("resize pictures", None, unit="picture", quiet=observer().quiet) as progress:
            unreadable = test_sample(Path(images), target, size, channels, pictures, progress.set)
        if unreadable:
            observer().remark(f"warning: {unreadable} images can't be read; they are left out")
        data = load_dataset(str(target))
    if len(data.test_labels) < MIN_IMAGES:
        problem = f"{images} has {len(data.test_labels)} test images; an accuracy needs {MIN_IMAGES}"
        raise InputError("--images", "", problem)
    return data, name


def _judged(member: Member, file: Path, data: Dataset) -> Judged:
    from hw.networks.user_networks import judged
    from scenarios.terminal.progress import Progress

    with Progress(f"evaluate {member.label}", None, unit="image", quiet=observer().quiet) as progress:
        result = judged(member, file, data, "NETWORKS", progress.set)
    observer().remark(f"{member.label} takes {result.normalisation}")
    return result


def _require_room(members: Sequence[Judged], devices: Sequence[DeviceSpec]) -> None:
    least = min(device.vram_bytes for device in devices)
    for member in members:
        if (size_bytes := member.network.held_bytes()) > least:
            problem = f"{member.member.label!r} takes {size_bytes / 1e6:,.0f} MB"
            remedy = f"and a device here has {least / 1e6:,.0f} MB for networks; leave it out"
            raise InputError("NETWORKS", "", f"{problem}, {remedy}")


@dataclass(frozen=True)
class _FamilyFolder:
    """The family's folder, and what is written into it."""

    folder: Path
    dataset: str
    members: Sequence[Judged]
    calibration: str

    @property
    def scenario(self) -> Path:
        return self.folder / SCENARIO

    def write(self, family: Any, evaluation: Any) -> None:
        """Write network, table and scenario; the rules are checked if a class is the user's own."""
        from hw.networks.accuracy_table import save_accuracy
        from hw.networks.network_checks import require_conformance
        from hw.networks.network_files import ModelFile, Network, save_model

        model = self.folder / MODEL
        save_model(model, family, family.structure.label, {"dataset": evaluation.dataset})
        save_accuracy(self.folder / ACCURACY, evaluation)
        for own in self._own_classes:
            network = Network(own, {}, "NETWORKS", "")
            require_conformance(network, ModelFile(model, network))
        self._write_scenario(1.0)

    def calibrated(self, widths: Sequence[float]) -> dict[str, Profile]:
        """Return each server's profile, by its name; the scenario then has a load at which its routers differ."""
        from scenarios.experiment.scenario_building import read_profiles
        from scenarios.job.profile_stages import make_profiles

        run = begin(self.scenario)
        with run.opened():
            make_profiles(run)
        profiles = read_profiles(run.scenario, run.folder.path)
        most = [
            sum(_img_s(_curve(profile, width)) for profile in profiles.values()) for width in (widths[0], widths[-1])
        ]
        self._write_scenario(_SHARE_OF_CAPACITY * sqrt(most[0] * most[1]))
        return profiles

    @property
    def _own_classes(self) -> set[str]:
        from hw.networks.model_families import own_classes

        return own_classes(member.member for member in self.members)

    def _write_scenario(self, rate_img_s: float) -> None:
        from hw.device_settings import local_devices
        from kit.documents import write_text
        from kit.strict import as_name

        devices = local_devices()
        held_bytes = sum(member.network.held_bytes() for member in self.members)
        network = "".join(f"  network: '{own}'\n" for own in self._own_classes)
        text = _TEXT.format(
            file=self.scenario,
            name=as_name(self.folder.resolve().name, "family"),
            network=network,
            dataset=self.dataset,
            batch_limit=32 if any(device.kind == "cuda" for device in devices) else 8,
            preload="all" if all(held_bytes < device.vram_bytes for device in devices) else "none",
            rate=float(f"{rate_img_s:.2g}"),
            calibration=self.calibration,
        )
        write_text(self.scenario, text)


def _curve(profile: Profile, width: float) -> LatencyCurve:
    return next(curve for curve in profile.latency if curve.width == width)


def _img_s(curve: LatencyCurve) -> float:
    """Return images a second of an otherwise idle device, at its best batch size."""
    return max(batch / mean_s for batch, mean_s in zip(curve.batches, curve.mean_s, strict=True))


def _within_chance(candidates: Sequence[Judged], beaten: Mapping[str, Judged]) -> list[tuple[Judged, Judged]]:
    """Return, of those that are kept, each that is better than the next, but not significantly.

    Of images that only one of both gets right, nearly half are the other's (McNemar's test, at 5 %).
    """
    from scipy.stats import binomtest

    useful = sorted((each for each in candidates if each.member.label not in beaten), key=lambda each: -each.top1)
    close = []
    for best, following in pairwise(useful):
        alone = [int((best.correct & ~following.correct).sum()), int((following.correct & ~best.correct).sum())]
        if not sum(alone) or binomtest(alone[0], sum(alone)).pvalue > 0.05:
            close.append((best, following))
    return close


def _answer(
    target: _FamilyFolder,
    spec: ModelSpec,
    candidates: Sequence[Judged],
    beaten: Mapping[str, Judged],
    profiles: Mapping[str, Profile],
) -> CommandResult:
    from scipy.stats import binomtest

    from scenarios.show.tables import UNBROKEN, Table, columns, to_text

    rows, documents = [], []
    sustained, images = 0.0, len(candidates[0].correct)
    for candidate in sorted(candidates, key=lambda each: -each.top1):
        label, size_mb = candidate.member.label, candidate.network.held_bytes() / 1e6
        interval = binomtest(int(candidate.correct.sum()), images).proportion_ci(method="wilson")
        top1 = candidate.top1
        document: dict[str, Any] = {"label": label, "top1": top1, "top1_ci95": list(interval), "size_mb": size_mb}
        cells = [label, *(f"{100 * share:.1f}" for share in (top1, *interval)), f"{size_mb:.1f}"]
        if label in beaten:
            better = beaten[label]
            cells += [""] * (2 * len(profiles))
            use = f"left out: {better.member.label} is as good in {better.pass_s / candidate.pass_s:.2f} of its time"
            document["dominated_by"] = better.member.label
        else:
            curves = {name: _curve(profile, spec.width_of(label)) for name, profile in profiles.items()}
            img_s = {name: _img_s(curve) for name, curve in curves.items()}
            for name, curve in curves.items():
                cells += [f"{1e3 * curve.mean_s[0]:.3g} / {1e3 * curve.mean_s[-1]:.3g}", f"{img_s[name]:.0f}"]
            most = sum(img_s.values())
            use = (
                f"{sustained:.0f} to {most:.0f} images/s"
                if most > sustained
                else "none here: a better one sustains more"
            )
            sustained = max(sustained, most)
            document["images_s"] = img_s
        rows.append([*cells, use])
        documents.append(document)
    heads = [head for name in profiles for head in (f"{name} ms at 1 / most", f"{name} images/s")]
    close = _within_chance(candidates, beaten)
    holds = _held_together(target.scenario, spec)
    notes = [
        *(
            f"{server} holds {', '.join(labels)}: all together take more than its memory"
            for server, labels in holds.items()
        ),
        *(
            f"the lead of {a.member.label} over {b.member.label} is not statistically significant: give more images"
            for a, b in close
        ),
        f"top-1 of {images} test images, and where its 95 % interval begins and ends",
        "ms of a batch of one image, and of the largest; images/s at the best batch, with nothing else to do",
        f"network: {target.folder / MODEL}",
        f"next: slimsched run {target.scenario}",
    ]
    document = {"schema": "slimsched.family/1", "scenario": str(target.scenario), "members": documents, "holds": holds}
    names = ["network", "top-1 %", "from", "to", "MB", *heads, "use"]
    return CommandResult(document, to_text([Table(columns(*names), rows, notes=notes)], UNBROKEN))


def _held_together(scenario: Path, spec: ModelSpec) -> dict[str, list[str]]:
    """Return, by server, the members that routers have it hold, if its memory does not hold all."""
    experiment = begin(scenario).experiment()
    sets = {server.name: experiment.working_set(number) for number, server in enumerate(experiment.cluster.servers)}
    names = dict(zip(spec.widths, spec.labels, strict=True))
    return {server: [names[width] for width in held[0]] for server, held in sets.items() if held}


if TYPE_CHECKING:
    from hw.networks.datasets import Dataset
    from hw.networks.network_conversion import Conversion
    from hw.networks.network_files import Network
    from hw.networks.third_party_networks import GivenNetwork

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

    It sorts the channels, cuts the network into segments between its stages, and trains every width by distillation
    from the network. It refuses if more than 3 points are lost at full width. An interrupted call resumes.

    Args:
        network: the network: torchvision:resnet18 and the like, or a custom `module:Class`, followed by its arguments
            as JSON.
        weights: its file: safetensors, or a `state_dict` by torch.save; code in it is not run.
        images: a folder with train/CLASS/*.png and test/CLASS/*.png; or another data set's name (docs/models.md).
        size: resize the folder's images to this side in pixels, into a folder next to the result.
        widths: shares of the channels, ascending (0.25,0.5,0.75,1).
        minutes: the time of training, in minutes.
        device: the device for training, as torch names it.
        out: the file to write.

    Raises:
        InputError: one of these is wrong, they do not belong together, or the network can't be made slimmable.
        WorkError: it is not worth it.
    """
    from hw.networks.network_conversion import converted
    from hw.networks.network_files import save_model
    from scenarios.terminal.progress import Progress

    path, shares = Path(out), tuple(float(width) for width in widths)
    _require_arguments(network, shares, minutes, device)
    original = network_of(network, "NETWORK")
    assert original is not None, "it is given"
    trained, data, source, normalisation = _trained_network(original, Path(weights), images, size, path)
    observer().remark(f"{original.name} takes {normalisation}")
    with Progress("tune all widths", None, unit="step", quiet=observer().quiet) as progress:
        conversion = converted(
            trained, data, shares, original.label, seconds=60 * minutes, device=device,
            checkpoint=path.with_name(f"{path.stem}-tuning.safetensors"), on_step=progress.set,
        )  # fmt: skip
    label = f"slimmed {original.label}"
    save_model(path, conversion.model, label, {"dataset": data.name, "normalisation": normalisation})
    document = {
        "schema": "slimsched.slimmed/1",
        "network": label,
        "model": str(path),
        "dataset": data.name,
        "normalisation": normalisation,
        "epochs": conversion.epochs,
        "given_top1": conversion.given,
        "widths": _rows(conversion),
    }
    return CommandResult(document, _text(document, len(data.test_labels), path, source))


def _require_arguments(network: str, widths: Sequence[float], minutes: float, device: str) -> None:
    from hw.device_settings import require_torch_device

    require_within("--minutes", minutes, 0.01, 100_000)
    require_torch_device(device)
    if list(widths) != sorted(set(widths)) or len(widths) < 2 or widths[0] <= 0 or widths[-1] != 1:
        raise InputError("--widths", "", f"{list(widths)}: must ascend from above 0 to 1, such as 0.25,0.5,0.75,1")
    if ":" not in network:
        problem = f"{network!r}: name torchvision:NAME, such as torchvision:resnet18, or module:Class"
        raise InputError("NETWORK", "", problem)


def _trained_network(
    network: Network, weights: Path, images: str, size: int | None, out: Path
) -> tuple[GivenNetwork, Dataset, str, str]:
    """Return the trained network in its images' form, the data set's name in a scenario, the normalisation's name."""
    from hw.networks.network_conversion import fitted
    from hw.networks.third_party_networks import build_given
    from hw.networks.user_networks import read_weights, take_weights

    trained = read_weights(weights)
    data, source = _sample_images(network, images, size, out)
    module = build_given(network, data.classes)
    note = take_weights(module, trained, weights, data)
    fitted_network, normalisation = fitted(module, data, network.name)
    return fitted_network, data, source, ", and ".join(filter(None, (normalisation, note)))


def _sample_images(network: Network, images: str, size: int | None, out: Path) -> tuple[Dataset, str]:
    """Return the data set, and its name in a scenario; with `size` a folder's images are made equally large first."""
    import torch

    from hw.networks.accuracy_table import MIN_IMAGES
    from hw.networks.datasets import equally_large, is_image_folder, load_dataset, require_training_images
    from hw.networks.third_party_networks import build_given
    from scenarios.terminal.progress import Progress

    if size is not None:
        require_within("--size", size, 4, 4096)
        if not is_image_folder(images):
            raise InputError("--size", "", f"is for a folder of images; {images!r} has its own size")
        parts = build_given(network, 2).modules()
        channels = next((part.in_channels for part in parts if isinstance(part, torch.nn.Conv2d)), 3)
        target = out.with_name(f"{out.stem}-images")
        with Progress("resize pictures", None, unit="picture", quiet=observer().quiet) as progress:
            _, unreadable = equally_large(Path(images), target, size, channels, progress.set)
        if unreadable:
            observer().remark(f"warning: {unreadable} images can't be read; they are left out")
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


def _rows(conversion: Conversion) -> list[dict[str, Any]]:
    spec, rows = conversion.model.spec, []
    for width, share in conversion.top1.items():
        costs = [
            conversion.model.cost(segment, width, spec.previous_widths(segment, width)[0] if segment == 1 else width)
            for segment in range(1, spec.segments + 1)
        ]
        rows.append({"width": width, "top1": share, "macs": sum(cost.macs for cost in costs)})
    return rows


def _text(document: dict[str, Any], images: int, path: Path, dataset: str) -> str:
    from scenarios.show.tables import UNBROKEN, Table, columns, to_text

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


@verb
def train_model(scenario: ScenarioLike, /, *, out: Out = None, changes: Changes | None = None) -> CommandResult:
    """Train the scenario's network, and fill its accuracy table.

    A trained network (`model.checkpoint`) is only evaluated, on every test image at every width tuple.

    Args:
        scenario: a scenario's file (YAML), or a bundled scenario's name.
        out: the run folder for network and table; `runs/NAME` by default.
        changes: values that replace the scenario's, by dotted keys.

    Raises:
        InputError: the scenario names no network.
    """
    from scenarios.experiment.scenario_building import ACCURACY_FILE, read_accuracy
    from scenarios.job.network_stages import make_accuracy, make_model
    from scenarios.show.tables import UNBROKEN, Table, columns, to_text

    run = begin(scenario, changes, out).with_section("model", accuracy=None)  # the network itself is checked
    section = run.scenario.model
    if section.network is None and section.checkpoint is None:
        problem = "missing; it names the network to train (or model.checkpoint one that is trained)"
        raise InputError(str(run.source), "model.network", problem)
    with run.opened():
        if section.checkpoint is None:
            make_model(run)
        make_accuracy(run)
    top1 = read_accuracy(run.scenario, run.folder.path).prior.accuracies
    spec = run.model.build().spec
    rows = [[", ".join(map(spec.name_of, widths)), f"{100 * value:.2f}"] for widths, value in top1.items()]
    notes = [f"model: {run.model.path}", f"accuracy: {run.folder / ACCURACY_FILE}"]
    document = {
        "schema": "slimsched.top1/1",
        "model": str(run.model.path),
        "accuracy": str(run.folder / ACCURACY_FILE),
        "tuples": [{"widths": list(widths), "top1": value} for widths, value in top1.items()],
    }
    return CommandResult(document, to_text([Table(columns("widths", "top-1 %"), rows, notes=notes)], UNBROKEN))


@verb
def check_model(network: str, /) -> CommandResult:
    """Check that a network keeps the rules of slimmable networks.

    The exit code is 1 if one is broken. Segments that CUDA graphs can't capture are a warning: a GPU runs them
    uncaptured.

    Args:
        network: the network's name, or a custom `module:Class`, followed by its arguments as JSON: 'my_net:MyNet
            {"classes": 10}'; or the file (.safetensors) of a slimmed network.

    Raises:
        InputError: the network is unknown.
    """
    from hw.networks import network_checks
    from hw.networks.network_checks import RULES, broken_rules, rules_of, unchecked_rules
    from hw.networks.network_files import ModelFile

    subject = ModelFile(Path(network)) if network.endswith(".safetensors") else network_of(network, "NETWORK")
    assert subject is not None, "it is given"
    broken = broken_rules(subject)
    unchecked = unchecked_rules(broken)
    model = subject.build().eval()
    rules, uncapturable = rules_of(model), [] if unchecked else network_checks.uncapturable(model)
    verdicts = dict.fromkeys(rules, "kept") | dict.fromkeys(unchecked, "unchecked") | dict.fromkeys(broken, "broken")
    lines = [f"{verdicts[name]:<9}  {RULES[name][0]}" for name in rules]
    lines += [f"{RULES[name][0]}: {each.problem}\n  remedy: {each.remedy}" for name, each in broken.items()]
    lines += [f"warning: CUDA graphs can't capture segment {each.segment}: {each.problem}" for each in uncapturable]
    lines += [f"  remedy: {network_checks.REMEDY}"] if uncapturable else []
    document = {
        "schema": "slimsched.conformance/1",
        "network": subject.label,
        "rules": verdicts,
        "broken": {name: each.problem for name, each in broken.items()},
        "uncapturable": {str(each.segment): each.problem for each in uncapturable},
    }
    return CommandResult(document, "\n".join(lines), code=1 if broken else 0)


@verb
def join_models(models: str, /, *, out: NewFile = "models.safetensors") -> CommandResult:
    """Put several trained networks into one file, to serve them on one cluster.

    Each class of requests of a scenario names its model (docs/models.md#several-models).

    Args:
        models: names and files, or bundled networks, such as cnn=slimresnet-pairs,vit=slimvit-pairs.
        out: the file to write.

    Raises:
        InputError: they do not belong together, or a file is none of a network.
    """
    from hw.networks.network_files import ModelFile, joined, save_model
    from kit.strict import plain_name
    from scenarios.files.bundled_files import weights_file

    files = dict[str, ModelFile]()
    for text in models.split(","):
        name, _, file = text.strip().partition("=")
        if not file or name in files:
            problem = f"{text!r:.80}; name each once, as NAME=FILE, such as cnn=slimresnet-pairs,vit=slimvit-pairs"
            raise InputError("MODELS", "", problem)
        try:
            plain_name(name)
        except ValueError as error:
            raise InputError("MODELS", "", str(error)) from None
        files[name] = ModelFile(Path(weights_file(file, source="MODELS")))
    network, label = joined(files, "MODELS")
    save_model(Path(out), network, label, {})
    spec = network.spec
    document = {"schema": "slimsched.joined/1", "network": label, "model": str(out), "widths": list(spec.labels)}
    lines = [f"model: {out}", f"{spec.segments} segments at each of {', '.join(spec.labels)}"]
    return CommandResult(document, "\n".join(lines))
