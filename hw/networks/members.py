"""The members of a family, from a user's names: networks, their weights, and the accuracy and time of each.

The order of a family is that of time on this machine, not of multiply-accumulates: across architectures sixty times as
many may take five times as long. A member that another one matches in both is of no use to any router. Passes are timed
in turns, so that other load slows all of them equally.
"""

from __future__ import annotations

import time  # noqa: TID251 - members are ordered by what a pass takes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from hw.networks.accuracy import Evaluation
from hw.networks.conversion import fitted
from hw.networks.datasets import Dataset
from hw.networks.evaluation import right
from hw.networks.family import MAX_MEMBERS, Family, Form, Member, MemberNetwork, own_classes, ranked
from hw.networks.given import read_weights, take_weights
from hw.networks.ordinary import Named, Rescale, build_given, library_maker
from hw.networks.pictures import spread
from hw.networks.quantized import Int8Network, build_quantizable
from hw.networks.registry import model_hash
from hw.networks.settings import options_of
from kit.errors import InputError, in_a_line

ENDINGS: Final = (".safetensors", ".pt", ".pth", ".bin")
BATCH: Final = 8  # images of a pass that a member is ordered by
_PASSES: Final = 7
NOISE: Final = 0.05  # of the fastest of this number of passes
_SHOWN: Final = 200  # images by which the scales of int8 are found
_TRIED: Final = 48  # images at least to determine a normalisation, or a quarter: its effect is the largest of all
_FLOAT: Final = "float32"


def members_of(text: str, source: str) -> list[Member]:
    """Parse networks between commas: `torchvision:resnet18,resnet34`, `my_nets:Net {"depth": 3} bfloat16`.

    A prefix before a colon also applies to later names without one.

    Raises:
        InputError: the text is not valid, a network is named twice, or two user's classes are.
    """
    found: list[Member] = []
    kind, forms = "", get_args(Form)
    for words in _between_commas(text):
        name, _, rest = words.partition(" ")
        rest, form = rest.strip(), _FLOAT
        if rest.rpartition(" ")[2] in forms:
            rest, _, form = rest.rpartition(" ")
        if ":" in name:
            kind = name.partition(":")[0]
        elif not kind:
            raise InputError(
                source, "", f"{name!r}: name torchvision:NAME, such as torchvision:resnet18, or module:Class"
            )
        short = name.rpartition(":")[2]
        label = " ".join(filter(None, (short, rest.strip(), form if form != _FLOAT else "")))
        if label in [each.label for each in found]:
            raise InputError(source, "", f"{label!r} is named twice")
        try:
            found.append(Member(label=label, network=f"{kind}:{short}", options=options_of(rest), form=form))  # type: ignore[arg-type]
        except ValidationError as error:
            raise InputError(source, "", f"{label!r:.80}: {error.errors()[0]['msg']}") from None
        except ValueError as error:
            remedy = f"behind a name stand options as JSON, then one of {', '.join(forms)}"
            raise InputError(source, "", f"{error}; {remedy}") from None
    if not 1 <= len(found) <= MAX_MEMBERS:
        raise InputError(source, "", f"name 1 to {MAX_MEMBERS} networks, such as torchvision:resnet18")
    if len(own := own_classes(found)) > 1:
        problem = f"{', '.join(sorted(own))}: a family has one class of your own at most"
        raise InputError(source, "", f"{problem}; let its options tell which")
    return found


def _between_commas(text: str) -> Iterator[str]:
    """Split at commas; those within braces do not count."""
    depth, begin = 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth <= 0:
            if words := text[begin:place].strip():
                yield words
            begin = place + 1


def weights_of(member: Member, place: Path, source: str) -> Path:
    """Return the file of a member's weights: `place` itself, or in that folder the one of its name.

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
    library_maker(Named(member.network, member.options, source, ""))  # raises if the network does not exist
    named = f"several files may be {name}'s: {', '.join(path.name for path in found)}; keep one"
    missing = f"no weights of {member.label}: {name}.pt, .pth, .bin or .safetensors"
    raise InputError(source, "", f"{place}: {named if found else missing}")


@dataclass(frozen=True)
class Judged:
    """A member with its weights, its accuracy, and its time.

    Attributes:
        normalisation: of its images, in words.
        correct: (images,) the test images that it classifies correctly.
        pass_s: seconds of a pass of `BATCH` images on this machine; 0 if that was not timed yet.
    """

    member: Member
    network: MemberNetwork
    normalisation: str
    correct: NDArray[np.bool_]
    pass_s: float = 0.0

    @property
    def top1(self) -> float:
        """The correct share of the test images."""
        return float(self.correct.mean())


def judged(member: Member, file: Path, data: Dataset, source: str, on_progress: Callable[[int, int], None]) -> Judged:
    """Return a member filled with its weights; raises `InputError` if it does not fit them, or the images."""
    named = Named(member.network, member.options, source, "")
    module = (build_quantizable if member.form == "int8" else build_given)(named, data.classes)
    chosen = take_weights(module, read_weights(file), file, data)
    given, normalisation = fitted(module, data, member.label, max(_TRIED, len(data.test_labels) // 4))
    rescale = given.rescale if isinstance(given.rescale, Rescale) else Rescale.nothing(data.test_images.shape[1])
    if member.form == "int8":
        known = data.train_images if len(data.train_labels) else data.test_images
        with torch.inference_mode():
            shown = spread(range(len(known)), _SHOWN)
            module = Int8Network(module, rescale(torch.from_numpy(np.asarray(known[shown]))))
    network = MemberNetwork(rescale, module, member.form).requires_grad_(requires_grad=False)
    try:
        correct = right(network, data, batch=4 * BATCH, on_progress=on_progress)
    except Exception as error:  # in float32 it could: something in it has another form
        problem = in_a_line(f"{type(error).__name__}: {error}")
        raise InputError(source, "", f"{member.label!r} can't run so ({problem}); leave out {member.form}") from None
    return Judged(member, network, ", and ".join(filter(None, (normalisation, chosen))), correct)


def timed(members: Sequence[Judged], data: Dataset, place: str) -> list[Judged]:
    """Return members with the fastest pass at `place`; they are run in turns."""
    images = torch.from_numpy(np.asarray(data.test_images[:BATCH])).to(place, memory_format=torch.channels_last)
    for each in members:
        each.network.to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.inference_mode():
        took_s = [[_pass_s(each.network, images) for each in members] for _ in range(1 + _PASSES)]
    for each in members:
        each.network.to("cpu")
    return [replace(each, pass_s=min(its)) for each, its in zip(members, zip(*took_s[1:], strict=True), strict=True)]


def _pass_s(network: MemberNetwork, images: Tensor) -> float:
    begin_ns = time.perf_counter_ns()
    network(images).cpu()  # waits for a GPU
    return (time.perf_counter_ns() - begin_ns) / 1e9


def dominated(members: Sequence[Judged]) -> dict[str, Judged]:
    """Return, by label, each member that another one dominates (as accurate, and as fast but for noise), and that one.

    Of two equal ones the first named stays.
    """
    kept, found = list[Judged](), dict[str, Judged]()
    for each in sorted(members, key=lambda one: (-one.top1, one.pass_s)):
        as_quick = [other for other in kept if other.pass_s <= (1 + NOISE) * each.pass_s]
        if as_quick:
            found[each.member.label] = min(as_quick, key=lambda other: other.pass_s)
        else:
            kept.append(each)
    return found


def family_of(members: Sequence[Judged], data: Dataset) -> tuple[Family, Evaluation]:
    """Return the family, from the fastest to the slowest, and its table."""
    ordered = sorted(members, key=lambda each: each.pass_s)
    family = Family(ranked([each.member for each in ordered], data.test_images.shape[1:], data.classes))
    for width, each in zip(family.spec.widths, ordered, strict=True):
        family.member(width).load_state_dict(each.network.state_dict())
    correct = np.stack([each.correct for each in ordered], axis=1)
    return family, Evaluation(tuple(family.spec.tuples()), correct, model_hash(family.state_dict()), data.name)
