"""The members of a family, from what a user names: networks, their weights, and what each knows and takes.

The order of a family is that of time on this machine, not of multiply-accumulates: across architectures sixty times as
many may take five times as long. A member that another one beats in both is of no use to any router.
"""

from __future__ import annotations

import json
import time  # noqa: TID251 - members are ordered by what a pass takes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from hw.networks.accuracy import Evaluation
from hw.networks.conversion import fitted
from hw.networks.datasets import Dataset
from hw.networks.evaluation import right
from hw.networks.family import Family, Form, Member, MemberNetwork, ranked
from hw.networks.given import read_weights, take_weights
from hw.networks.ordinary import Rescale, build_given
from hw.networks.quantized import Int8Network, build_quantizable
from hw.networks.registry import Network, model_hash
from kit.errors import InputError

ENDINGS: Final = (".safetensors", ".pt", ".pth", ".bin")
BATCH: Final = 8  # images of a pass that a member is ordered by
_PASSES: Final = 5
_SHOWN: Final = 200  # images by which the scales of int8 are found
_TRIED: Final = 48  # images that a normalisation is told by: it is the loudest of differences
_FLOAT: Final = "float32"


def members_of(text: str, source: str) -> list[Member]:
    """Networks between commas: `torchvision:resnet18,resnet34`, `my_nets:Net {"depth": 3} bfloat16`.

    What stands before a colon holds for those after it that have none.

    Raises:
        InputError: that is none, or a network is named twice.
    """
    found, kind = list[Member](), ""
    for words in _between_commas(text):
        name, _, rest = words.partition(" ")
        rest, form = rest.strip(), _FLOAT
        if rest.rpartition(" ")[2] in get_args(Form):
            rest, _, form = rest.rpartition(" ")
        if ":" in name:
            kind = name.partition(":")[0]
        elif not kind:
            raise InputError(
                source, "", f"{name!r}: name torchvision:NAME, such as torchvision:resnet18, or module:Class"
            )
        try:
            options = json.loads(rest or "{}")
        except ValueError:
            options = None
        if not isinstance(options, dict):
            forms = ", ".join(get_args(Form))
            raise InputError(source, "", f"{words!r:.80}: behind a name stand options as JSON, then one of {forms}")
        short = name.rpartition(":")[2]
        label = " ".join(filter(None, (short, rest.strip(), form if form != _FLOAT else "")))
        if label in [each.label for each in found]:
            raise InputError(source, "", f"{label!r} is named twice")
        found.append(Member(label=label, network=f"{kind}:{short}", options=options, form=form))  # type: ignore[arg-type]
    if not found:
        raise InputError(source, "", "name at least one network, such as torchvision:resnet18")
    return found


def _between_commas(text: str) -> Iterator[str]:
    """Commas within braces do not count."""
    depth, begin = 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth <= 0:
            if words := text[begin:place].strip():
                yield words
            begin = place + 1


def weights_of(member: Member, place: Path, source: str) -> Path:
    """The file of a member's weights: `place` itself, or in that folder the one of its name.

    `resnet18.pt` is, and so is `resnet18-f37072fd.pth`; of a class with options `Net-3.pt`, with their values.

    Raises:
        InputError: there is none, or there are several.
    """
    if not place.is_dir():
        return place
    values = "".join(f"-{value}" for value in member.options.values())
    name = member.network.rpartition(":")[2] + values
    files = sorted(path for path in place.iterdir() if path.suffix in ENDINGS)
    hashed = [path for path in files if path.stem.startswith(f"{name}-")]
    found = [path for path in files if path.stem == name] or hashed
    if len(found) == 1:
        return found[0]
    named = f"several files may be {name}'s: {', '.join(path.name for path in found)}; keep one"
    missing = f"no weights of {member.label}: {name}.pt, .pth, .bin or .safetensors"
    raise InputError(source, "", f"{place}: {named if found else missing}")


@dataclass(frozen=True)
class Judged:
    """A member with its weights, what it knows, and what it takes.

    Attributes:
        normalisation: how it wants its images, in words.
        correct: (images,) which of the test images it gets right.
        pass_s: seconds of a pass of `BATCH` images on this machine.
    """

    member: Member
    network: MemberNetwork
    normalisation: str
    correct: NDArray[np.bool_]
    pass_s: float

    @property
    def top1(self) -> float:
        """Share of the test images."""
        return float(self.correct.mean())


def judged(member: Member, file: Path, data: Dataset, source: str, on_progress: Callable[[int, int], None]) -> Judged:
    """A member filled with its weights; raises `InputError` where it does not fit them, or the images."""
    named = Network(member.network, member.options, source, "")
    module = (build_quantizable if member.form == "int8" else build_given)(named, data.classes)
    take_weights(module, read_weights(file), file, data)
    given, normalisation = fitted(module, data, member.label, _TRIED)
    rescale = given.rescale if isinstance(given.rescale, Rescale) else Rescale.nothing(data.test_images.shape[1])
    if member.form == "int8":
        known = data.train_images if len(data.train_labels) else data.test_images
        with torch.inference_mode():
            module = Int8Network(module, rescale(torch.from_numpy(known[:_SHOWN])))
    network = MemberNetwork(rescale, module, member.form).requires_grad_(requires_grad=False)
    correct = right(network, data, batch=4 * BATCH, on_progress=on_progress)
    return Judged(member, network, normalisation, correct, _pass_s(network, data))


def _pass_s(network: MemberNetwork, data: Dataset) -> float:
    images = torch.from_numpy(data.test_images[:BATCH]).contiguous(memory_format=torch.channels_last)
    served = network.to(memory_format=torch.channels_last)
    took_s = []
    with torch.inference_mode():
        for _ in range(1 + _PASSES):
            begin_ns = time.perf_counter_ns()
            served(images)
            took_s.append((time.perf_counter_ns() - begin_ns) / 1e9)
    return median(took_s[1:])


def dominated(members: Sequence[Judged]) -> dict[str, Judged]:
    """By label: of each member that knows no more than another one, which takes no longer, that other one."""
    found: dict[str, Judged] = {}
    for each in sorted(members, key=lambda one: (-one.top1, one.pass_s)):
        better = [other for other in members if other is not each and other.member.label not in found]
        worse = [o for o in better if o.top1 >= each.top1 and o.pass_s <= each.pass_s and _differs(o, each)]
        if worse:
            found[each.member.label] = min(worse, key=lambda other: other.pass_s)
    return found


def _differs(one: Judged, other: Judged) -> bool:
    """Of two alike the first named stays."""
    return (one.top1, one.pass_s) != (other.top1, other.pass_s) or one.member.label < other.member.label


def family_of(members: Sequence[Judged], data: Dataset) -> tuple[Family, Evaluation]:
    """The family, from the quickest to the slowest, and its table."""
    ordered = sorted(members, key=lambda each: each.pass_s)
    family = Family(ranked([each.member for each in ordered], data.test_images.shape[1:], data.classes))
    for width, each in zip(family.spec.widths, ordered, strict=True):
        family.member(width).load_state_dict(each.network.state_dict())
    correct = np.stack([each.correct for each in ordered], axis=1)
    return family, Evaluation(tuple(family.spec.tuples()), correct, model_hash(family.state_dict()), data.name)
