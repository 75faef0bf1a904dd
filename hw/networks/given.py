"""The weights of a third party's trained network, read without running anything that is in them.

Weights of `torch.save` are pickles, which can hold code. They are opened by torch's own reader of weights alone, in a
separate process with a limit to its memory, and converted to safetensors. What that reader refuses stays refused.
"""

from __future__ import annotations

import re
import resource
import tempfile
import warnings
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hw.host.apart import Tell, apart
from hw.networks.datasets import Dataset
from hw.networks.registry import MAX_BYTES
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


def take_weights(module: nn.Module, found: dict[str, Tensor], path: Path, dataset: Dataset) -> str:
    """Fill a network with the weights that `read_weights` found in a file.

    Returns:
        The selection among them, in words; empty if they were taken unchanged.

    Raises:
        InputError: the weights are of another network, of other classes, or not finite.
    """
    wanted = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("num_batches_tracked")}
    found, chosen = _without_prefix(found, wanted, path)
    found, renamed = _out_of_a_sequence(found, wanted)
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - module.state_dict().keys())
    remedies = (_HOOKED[each] for each in _HOOKED if any(re.search(each, name) for name in found))
    if missing and (remedy := next(remedies, "")):
        problem = f"holds weights that the network makes by hooks ({', '.join(extra[:3])}); {remedy} comes first"
        raise InputError(str(path), "", problem)
    if missing or extra:
        lists = [
            f"{what}: {', '.join(names[:3])}" for what, names in (("missing", missing), ("too many", extra)) if names
        ]
        problem = f"holds weights of another network ({len(missing)} {'; '.join(lists)})"
        raise InputError(str(path), "", f"{problem}; name the network that they are of{_likely(found)}")
    found, of_classes = _of_its_classes(found, wanted, dataset)
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            problem = f"is {tuple(found[name].shape)}, the network has {tuple(tensor.shape)}"
            if name == [each for each in wanted if wanted[each].dim() > 1][-1] and len(found[name]) != dataset.classes:
                problem += f": the weights know {len(found[name])} classes, {dataset.name} has {dataset.classes}"
                if all(re.fullmatch(r"n\d{8}", each) for each in dataset.names):  # WordNet's numbers
                    raise InputError(str(path), name, f"{problem}; name the folders by their classes, such as tench")
            raise InputError(str(path), name, f"{problem}; name the network and the images that the weights are of")
        if found[name].is_floating_point() and found[name].itemsize == 1:
            raise InputError(str(path), name, f"is of {found[name].dtype}; save the weights as float16 or float32")
        if not found[name].isfinite().all():
            raise InputError(str(path), name, "holds numbers that are not finite")
    module.load_state_dict(found, strict=False)
    return "; ".join(filter(None, (chosen, renamed, of_classes)))


def _likely(found: Mapping[str, Tensor]) -> str:
    """Return which of torchvision's networks has weights of these names and shapes, all but the head."""
    from torchvision import models

    shapes, shares = {(name, tuple(tensor.shape)) for name, tensor in found.items()}, dict[str, float]()
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        for name in models.list_models(models):
            with suppress(NotImplementedError):  # RegNets compute their widths by tensors
                own = {(key, tuple(tensor.shape)) for key, tensor in models.get_model(name).state_dict().items()}
                shares[name] = len(own & shapes) / len(own | shapes)
    best = max(shares, key=lambda name: shares[name])
    return f": torchvision:{best}, it seems" if shares[best] > _LIKELY else ""


def _of_its_classes(
    found: dict[str, Tensor], wanted: Mapping[str, Tensor], dataset: Dataset
) -> tuple[dict[str, Tensor], str]:
    """Select from ImageNet's weights those of a folder's classes, if all its names are of these."""
    from torchvision.models import ResNet18_Weights

    known = ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    exact, places = ({of(name): place for place, name in enumerate(known)} for of in (str, str.lower))
    named = [name.replace("_", " ") for name in dataset.names]  # two of ImageNet's differ by a capital letter
    own = [exact.get(name, places.get(name.lower(), -1)) for name in named]
    heads = [
        name
        for name, tensor in wanted.items()
        if found[name].shape != tensor.shape == (len(own), *found[name].shape[1:]) and len(found[name]) == len(known)
    ]
    if not heads or min(own) < 0:
        return found, ""
    return {
        **found,
        **{name: found[name][own] for name in heads},
    }, f"of ImageNet's classes the {len(own)} of the folder"


def _without_prefix(found: dict[str, Tensor], wanted: Mapping[str, Any], path: Path) -> tuple[dict[str, Tensor], str]:
    """Remove the prefix of wrappers before the network's names, and tensors without it; return a description, too.

    It is the prefix by which most of the wanted names are there.

    Raises:
        InputError: all are there by several prefixes.
    """
    if wanted.keys() <= found.keys():
        return found, ""
    starts = {name: [0, *(dot.end() for dot in re.finditer(r"\.", name))] for name in found}
    by_prefix = Counter(name[:at] for name in found for at in starts[name] if name[at:] in wanted)
    (prefix, count), *others = [*by_prefix.most_common(), ("", 0)]
    if count < len(wanted) / 2:  # it is another network
        return found, ""
    if others and others[0][1] == count == len(wanted):
        names = ", ".join(each for each, of in by_prefix.items() if of == count)
        raise InputError(str(path), "", f"holds several sets of weights ({names}); save the one that you mean")
    kept = {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
    return kept, f"{len(found) - len(kept)} tensors without {prefix!r} are left out" if len(kept) < len(found) else ""


def _out_of_a_sequence(found: dict[str, Tensor], wanted: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """Rename a layer that differs from a missing one only by a number in its name, next to parts without weights.

    This is the usual head of transfer learning, a dropout and a linear layer. Returns a description, too.
    """
    lacking = wanted.keys() - found.keys()
    names: dict[str, list[str]] = {}
    for name in found.keys() - wanted.keys():
        layer, _, last = name.rpartition(".")
        outer, _, number = layer.rpartition(".")
        if number.isdigit() and (inner := f"{outer}.{last}") in lacking:
            names.setdefault(inner, []).append(name)
    if not lacking or names.keys() != lacking or any(len(each) > 1 for each in names.values()):
        return found, ""
    of = {each[0]: name for name, each in names.items()}
    layers = ", ".join(sorted({name.rpartition(".")[0] for name in of}))
    return {of.get(name, name): tensor for name, tensor in found.items()}, f"{layers}, and nothing beside it"


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
        found: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(str(path), "", f"cannot be read as safetensors ({in_a_line(str(error))})") from None
    return found


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
    if found := re.search(r"GLOBAL ([\w.]+)|Unsupported (?:class|operand) ([\w.]+)", text):
        what = found[1] or found[2]
        if what.isdigit():
            return "holds objects that are no tensors, such as NumPy's arrays; save the network's state_dict()"
        return f"holds code ({what}), not only weights, and nothing of it was run; save the network's state_dict()"
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "takes far more memory than its size tells; it is damaged, or made to do harm"
    return f"is damaged, cut short, or not of torch.save ({in_a_line(f'{type(error).__name__}: {text}', 120)})"


def _state_dict(found: Any, path: Path) -> dict[str, Tensor]:
    """Return the weights, at any depth in the saved object."""
    while isinstance(found, Mapping):
        nested = [name for name, value in found.items() if isinstance(value, Mapping)]
        averaged = [name for name in nested if "ema" in str(name).lower()]
        chosen = [name for name in nested if name in _NESTS]
        if len(chosen) + len(averaged) > 1:
            names = ", ".join(map(str, (*chosen, *averaged)))
            raise InputError(str(path), "", f"holds several sets of weights ({names}); save the one that you mean")
        if not chosen and not averaged:
            break
        found = found[(chosen or averaged)[0]]
    tensors = (
        {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
        if isinstance(found, Mapping)
        else {}
    )
    if not tensors:
        raise InputError(str(path), "", "holds no weights by name; save the network's state_dict()")
    return tensors
