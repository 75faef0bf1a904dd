"""The weights of a user's trained network, read without running them, and the members of a family of such networks.

Weights: files of `torch.save` are pickles, which can hold code. `read_weights` opens them with torch's own reader of
weights alone, in a separate process with a limit to its memory, and converts them to safetensors. A file that this
reader refuses stays refused.

Families: members are ordered by their time on this machine, not by multiply-accumulates: across architectures, sixty
times the multiply-accumulates may take five times as long. A member that another one matches in both accuracy and time
is of no use to any router (`dominated`). `timed` runs the members' passes in turns, so that other load slows all of
them equally.
"""

from __future__ import annotations

import re
import resource
import tempfile
import time  # noqa: TID251 - members are ordered by what a pass takes
import warnings
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hw.networks.accuracy_table import Evaluation, options_of
from hw.networks.datasets import Dataset, spread
from hw.networks.model_families import MAX_MEMBERS, Family, Form, Member, MemberNetwork, own_classes, ranked
from hw.networks.network_conversion import fitted
from hw.networks.network_files import MAX_BYTES, model_hash
from hw.networks.network_training import right
from hw.networks.third_party_networks import Int8Network, Named, Rescale, build_given, build_quantizable, library_maker
from hw.subprocesses import Tell, apart
from kit.errors import InputError, WorkError, in_a_line
from kit.files import require_file

SAFE_TORCH: Final = "2.6"  # CVE-2025-32434: before it a file could get round weights_only
_SPARE_BYTES: Final = 1 << 30
_LIKELY: Final = 0.9  # of the names and shapes of a network's weights
_COPIES: Final = 3  # of the weights in memory: as read, whole, and written
_NESTS: Final = ("state_dict", "model_state_dict", "model", "net", "network", "weights", "module")
_HOOKED: Final[Mapping[str, str]] = {  # in the names of weights that hooks make, and the function that removes those
    r"_orig$": "torch.nn.utils.prune.remove",
    r"weight_[guv]$": "torch.nn.utils.remove_weight_norm or remove_spectral_norm",
    r"\.parametrizations\.": "torch.nn.utils.parametrize.remove_parametrizations",
    r"_packed_params|\.zero_point$": "saving them before quantization",
}
_FOREIGN: Final[Mapping[bytes, str]] = {
    b"": "is empty",
    b"<": "is a web page: the download went wrong",
    b"version https://git-lfs": "is a pointer of git-lfs, not the file: `git lfs pull` fetches it",
}


def take_weights(module: nn.Module, state: dict[str, Tensor], path: Path, dataset: Dataset) -> str:
    """Fill a network with the weights that `read_weights` found in a file.

    Returns:
        The selection among them, in words; empty if they were taken unchanged.

    Raises:
        InputError: the weights are of another network, of other classes, or not finite.
    """
    needed = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("num_batches_tracked")}
    state, omitted = _without_prefix(state, needed, path)
    state, renamed = _out_of_a_sequence(state, needed)
    missing, extra = sorted(needed.keys() - state.keys()), sorted(state.keys() - module.state_dict().keys())
    remedies = (_HOOKED[each] for each in _HOOKED if any(re.search(each, name) for name in state))
    if missing and (remedy := next(remedies, "")):
        problem = f"holds weights that the network makes by hooks ({', '.join(extra[:3])}); {remedy} comes first"
        raise InputError(str(path), "", problem)
    if missing or extra:
        lists = [
            f"{title}: {', '.join(names[:3])}" for title, names in (("missing", missing), ("too many", extra)) if names
        ]
        problem = f"holds weights of another network ({len(missing)} {'; '.join(lists)})"
        raise InputError(str(path), "", f"{problem}; name the network that they are of{_likely(state)}")
    state, of_classes = _of_its_classes(state, needed, dataset)
    for name, tensor in needed.items():
        if state[name].shape != tensor.shape:
            problem = f"is {tuple(state[name].shape)}, the network has {tuple(tensor.shape)}"
            if name == [each for each in needed if needed[each].dim() > 1][-1] and len(state[name]) != dataset.classes:
                problem += f": the weights know {len(state[name])} classes, {dataset.name} has {dataset.classes}"
                if all(re.fullmatch(r"n\d{8}", name) for name in dataset.names):  # WordNet's numbers
                    raise InputError(str(path), name, f"{problem}; name the folders by their classes, such as tench")
            raise InputError(str(path), name, f"{problem}; name the network and the images that the weights are of")
        if state[name].is_floating_point() and state[name].itemsize == 1:
            raise InputError(str(path), name, f"is of {state[name].dtype}; save the weights as float16 or float32")
        if not state[name].isfinite().all():
            raise InputError(str(path), name, "holds numbers that are not finite")
    module.load_state_dict(state, strict=False)
    return "; ".join(filter(None, (omitted, renamed, of_classes)))


def _likely(state: Mapping[str, Tensor]) -> str:
    """Return which of torchvision's networks has weights of these names and shapes, all but the head."""
    from torchvision import models

    shapes, shares = {(name, tuple(tensor.shape)) for name, tensor in state.items()}, dict[str, float]()
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        for name in models.list_models(models):
            with suppress(NotImplementedError):  # RegNets compute their widths by tensors
                signature = {(key, tuple(tensor.shape)) for key, tensor in models.get_model(name).state_dict().items()}
                shares[name] = len(signature & shapes) / len(signature | shapes)
    best = max(shares, key=lambda name: shares[name])
    return f": torchvision:{best}, it seems" if shares[best] > _LIKELY else ""


def _of_its_classes(
    state: dict[str, Tensor], needed: Mapping[str, Tensor], dataset: Dataset
) -> tuple[dict[str, Tensor], str]:
    """Select from ImageNet's weights those of a folder's classes, if all its names are of these."""
    from torchvision.models import ResNet18_Weights

    labels = ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    exact, lowercase = ({of(name): index for index, name in enumerate(labels)} for of in (str, str.lower))
    class_names = [name.replace("_", " ") for name in dataset.names]  # two of ImageNet's differ by a capital letter
    rows = [exact.get(name, lowercase.get(name.lower(), -1)) for name in class_names]
    heads = [
        name
        for name, tensor in needed.items()
        if state[name].shape != tensor.shape == (len(rows), *state[name].shape[1:]) and len(state[name]) == len(labels)
    ]
    if not heads or min(rows) < 0:
        return state, ""
    return {
        **state,
        **{name: state[name][rows] for name in heads},
    }, f"of ImageNet's classes the {len(rows)} of the folder"


def _without_prefix(state: dict[str, Tensor], needed: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], str]:
    """Remove the prefix of wrappers before the network's names, and tensors without it; return a description, too.

    It is the prefix by which most of the wanted names exist.

    Raises:
        InputError: all exist by several prefixes.
    """
    if needed.keys() <= state.keys():
        return state, ""
    starts = {name: [0, *(dot.end() for dot in re.finditer(r"\.", name))] for name in state}
    by_prefix = Counter(name[:at] for name in state for at in starts[name] if name[at:] in needed)
    (prefix, count), *others = [*by_prefix.most_common(), ("", 0)]
    if count < len(needed) / 2:  # it is another network
        return state, ""
    if others and others[0][1] == count == len(needed):
        names = ", ".join(each for each, of in by_prefix.items() if of == count)
        raise InputError(str(path), "", f"holds several sets of weights ({names}); save the one that you mean")
    bare = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return bare, f"{len(state) - len(bare)} tensors without {prefix!r} are left out" if len(bare) < len(state) else ""


def _out_of_a_sequence(state: dict[str, Tensor], needed: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """Rename a layer that differs from a missing one only by a number in its name, next to parts without weights.

    This is the usual head of transfer learning, a dropout and a linear layer. Returns a description, too.
    """
    lacking = needed.keys() - state.keys()
    names: dict[str, list[str]] = {}
    for name in state.keys() - needed.keys():
        layer, _, parameter = name.rpartition(".")
        outer, _, number = layer.rpartition(".")
        if number.isdigit() and (inner := f"{outer}.{parameter}") in lacking:
            names.setdefault(inner, []).append(name)
    if not lacking or names.keys() != lacking or any(len(name) > 1 for name in names.values()):
        return state, ""
    new_names = {each[0]: name for name, each in names.items()}
    layers = ", ".join(sorted({name.rpartition(".")[0] for name in new_names}))
    return {new_names.get(name, name): tensor for name, tensor in state.items()}, f"{layers}, and nothing else"


# ------------------------------------------------------------------------------------------------------------- weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return tensors by name: of safetensors, or of a `state_dict` that `torch.save` wrote.

    Raises:
        InputError: the file is missing, damaged, of another kind, or holds more than weights.
    """
    require_file(path, MAX_BYTES)
    with path.open("rb") as file:
        head = file.read(64)
    for begin, problem in _FOREIGN.items():
        if head == b"" == begin or (begin and head.lstrip().startswith(begin)):
            raise InputError(str(path), "", problem)
    if head[8:9] == b"{":
        return _of_safetensors(path)
    if head[:2] != b"PK" and head[:1] != b"\x80":
        raise InputError(str(path), "", "is neither safetensors nor of torch.save; name the file of the weights")
    if torch.__version__ < SAFE_TORCH:
        problem = f"torch {torch.__version__} does not open files of torch.save safely"
        raise InputError(str(path), "", f"{problem}; take torch {SAFE_TORCH} or later, or safetensors")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "weights.safetensors"
        try:
            apart(partial(_convert, path, target), lambda *_: None)
        except WorkError as error:
            raise InputError(str(path), "", f"can't be read ({in_a_line(str(error))})") from None
        return _of_safetensors(target)


def _of_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(str(path), "", f"cannot be read as safetensors ({in_a_line(str(error))})") from None
    return tensors


def _convert(path: Path, target: Path, _: Tell) -> None:
    """Convert the file, in a separate process, whose memory has a limit from here on."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any("/code/" in name for name in names):
            raise InputError(str(path), "", "is TorchScript, which is code; save the network's state_dict()")
        if any(name.endswith(".npy") for name in names):
            raise InputError(str(path), "", "is NumPy's .npz; save the network's state_dict() by torch.save")
        if any("exported_program" in name or name.endswith("archive_format") for name in names):
            raise InputError(str(path), "", "is a program of torch.export; save the network's state_dict()")
    limit = psutil.Process().memory_info().vms + _COPIES * path.stat().st_size + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        with torch.serialization.safe_globals([Namespace]):  # of older scripts: their arguments, next to the weights
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in _state_dict(loaded, path).items()}
        save_file(tensors, target)
    except InputError:
        raise
    except Exception as error:  # whatever is in the file
        raise InputError(str(path), "", _why(error)) from None


def _why(error: Exception) -> str:
    """Return the reader's long error in one line."""
    text = str(error)
    if match := re.search(r"GLOBAL ([\w.]+)|Unsupported (?:class|operand) ([\w.]+)", text):
        name = match[1] or match[2]
        if name.isdigit():
            return "holds objects that are not tensors, such as NumPy's arrays; save the network's state_dict()"
        return f"holds code ({name}), not only weights, and nothing of it was run; save the network's state_dict()"
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "takes far more memory than its size suggests; it is damaged, or malicious"
    return f"is damaged, cut short, or not of torch.save ({in_a_line(f'{type(error).__name__}: {text}', 120)})"


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Return the weights, at any depth in the saved object."""
    while isinstance(content, Mapping):
        nested = [name for name, value in content.items() if isinstance(value, Mapping)]
        averaged = [name for name in nested if "ema" in str(name).lower()]
        nests = [name for name in nested if name in _NESTS]
        if len(nests) + len(averaged) > 1:
            names = ", ".join(map(str, (*nests, *averaged)))
            raise InputError(str(path), "", f"holds several sets of weights ({names}); save the one that you mean")
        if not nests and not averaged:
            break
        content = content[(nests or averaged)[0]]
    tensors = (
        {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        if isinstance(content, Mapping)
        else {}
    )
    if not tensors:
        raise InputError(str(path), "", "holds no weights by name; save the network's state_dict()")
    return tensors


# -------------------------------------------------------------------------------------------------- members of a family


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
    members: list[Member] = []
    kind, forms = "", get_args(Form)
    for entry in _between_commas(text):
        name, _, options_text = entry.partition(" ")
        options_text, form = options_text.strip(), _FLOAT
        if options_text.rpartition(" ")[2] in forms:
            options_text, _, form = options_text.rpartition(" ")
        if ":" in name:
            kind = name.partition(":")[0]
        elif not kind:
            raise InputError(
                source, "", f"{name!r}: name torchvision:NAME, such as torchvision:resnet18, or module:Class"
            )
        short = name.rpartition(":")[2]
        label = " ".join(filter(None, (short, options_text.strip(), form if form != _FLOAT else "")))
        if label in [member.label for member in members]:
            raise InputError(source, "", f"{label!r} is named twice")
        try:
            members.append(Member(label=label, network=f"{kind}:{short}", options=options_of(options_text), form=form))  # type: ignore[arg-type]
        except ValidationError as error:
            raise InputError(source, "", f"{label!r:.80}: {error.errors()[0]['msg']}") from None
        except ValueError as error:
            remedy = f"behind a name stand options as JSON, then one of {', '.join(forms)}"
            raise InputError(source, "", f"{error}; {remedy}") from None
    if not 1 <= len(members) <= MAX_MEMBERS:
        raise InputError(source, "", f"name 1 to {MAX_MEMBERS} networks, such as torchvision:resnet18")
    if len(classes := own_classes(members)) > 1:
        problem = f"{', '.join(sorted(classes))}: a family has at most one custom class"
        raise InputError(source, "", f"{problem}; vary its options instead")
    return members


def _between_commas(text: str) -> Iterator[str]:
    """Split at commas; those within braces do not count."""
    depth, begin = 0, 0
    for index, letter in enumerate(f"{text},"):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth <= 0:
            if entry := text[begin:index].strip():
                yield entry
            begin = index + 1


def weights_of(member: Member, location: Path, source: str) -> Path:
    """Return the file of a member's weights: `location` itself, or in that folder the one of its name.

    `resnet18.pt` is, and so is `resnet18-f37072fd.pth`; of a class with options `Net-3.pt`, with their values.

    Raises:
        InputError: there is none, or there are several.
    """
    if not location.is_dir():
        return location
    values = "".join(f"-{value}" for value in member.options.values())
    name = member.network.rpartition(":")[2] + values
    files = sorted(path for path in location.iterdir() if path.suffix in ENDINGS)
    hashed = [path for path in files if path.stem.startswith(f"{name}-")]
    matches = [path for path in files if path.stem == name] or hashed
    if len(matches) == 1:
        return matches[0]
    library_maker(Named(member.network, member.options, source, ""))  # raises if the network does not exist
    ambiguous = f"several files may be {name}'s: {', '.join(path.name for path in matches)}; keep one"
    missing = f"no weights of {member.label}: {name}.pt, .pth, .bin or .safetensors"
    raise InputError(source, "", f"{location}: {ambiguous if matches else missing}")


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
    spec = Named(member.network, member.options, source, "")
    module = (build_quantizable if member.form == "int8" else build_given)(spec, data.classes)
    selection = take_weights(module, read_weights(file), file, data)
    wrapped, normalisation = fitted(module, data, member.label, max(_TRIED, len(data.test_labels) // 4))
    rescale = wrapped.rescale if isinstance(wrapped.rescale, Rescale) else Rescale.nothing(data.test_images.shape[1])
    if member.form == "int8":
        images = data.train_images if len(data.train_labels) else data.test_images
        with torch.inference_mode():
            sample = spread(range(len(images)), _SHOWN)
            module = Int8Network(module, rescale(torch.from_numpy(np.asarray(images[sample]))))
    network = MemberNetwork(rescale, module, member.form).requires_grad_(requires_grad=False)
    try:
        correct = right(network, data, batch=4 * BATCH, on_progress=on_progress)
    except Exception as error:  # in float32 it could: something in it has another form
        problem = in_a_line(f"{type(error).__name__}: {error}")
        raise InputError(source, "", f"{member.label!r} can't run so ({problem}); leave out {member.form}") from None
    return Judged(member, network, ", and ".join(filter(None, (normalisation, selection))), correct)


def timed(members: Sequence[Judged], data: Dataset, device: str) -> list[Judged]:
    """Return members with the fastest pass on `device`; they are run in turns."""
    images = torch.from_numpy(np.asarray(data.test_images[:BATCH])).to(device, memory_format=torch.channels_last)
    for member in members:
        member.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.inference_mode():
        took_s = [[_pass_s(member.network, images) for member in members] for _ in range(1 + _PASSES)]
    for member in members:
        member.network.to("cpu")
    fastest_s = map(min, zip(*took_s[1:], strict=True))
    return [replace(member, pass_s=pass_s) for member, pass_s in zip(members, fastest_s, strict=True)]


def _pass_s(network: MemberNetwork, images: Tensor) -> float:
    begin_ns = time.perf_counter_ns()
    network(images).cpu()  # waits for a GPU
    return (time.perf_counter_ns() - begin_ns) / 1e9


def dominated(members: Sequence[Judged]) -> dict[str, Judged]:
    """Return, by label, each member that another one dominates (as accurate, and as fast but for noise), and that one.

    Of two equal ones the first named stays.
    """
    frontier, dominators = list[Judged](), dict[str, Judged]()
    for member in sorted(members, key=lambda each: (-each.top1, each.pass_s)):
        as_fast = [other for other in frontier if other.pass_s <= (1 + NOISE) * member.pass_s]
        if as_fast:
            dominators[member.member.label] = min(as_fast, key=lambda other: other.pass_s)
        else:
            frontier.append(member)
    return dominators


def family_of(members: Sequence[Judged], data: Dataset) -> tuple[Family, Evaluation]:
    """Return the family, from the fastest to the slowest, and its table."""
    ordered = sorted(members, key=lambda each: each.pass_s)
    family = Family(ranked([each.member for each in ordered], data.test_images.shape[1:], data.classes))
    for width, each in zip(family.spec.widths, ordered, strict=True):
        family.member(width).load_state_dict(each.network.state_dict())
    correct = np.stack([each.correct for each in ordered], axis=1)
    return family, Evaluation(tuple(family.spec.tuples()), correct, model_hash(family.state_dict()), data.name)
