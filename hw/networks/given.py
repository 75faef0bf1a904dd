"""The weights of a trained network of somebody else, read without running anything that is in them.

Weights of `torch.save` are pickles, which can hold code. They are opened by torch's own reader of weights alone, in a
process of its own with a limit to its memory, and go on as safetensors. What that reader refuses stays refused.
"""

from __future__ import annotations

import re
import resource
import tempfile
import warnings
import zipfile
from argparse import Namespace
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
_PREFIXES: Final = ("module.", "_orig_mod.", "model.", "backbone.", "net.", "network.")
_FOREIGN: Final[Mapping[bytes, str]] = {
    b"": "is empty",
    b"<": "is a web page: the download went wrong",
    b"version https://git-lfs": "is a pointer of git-lfs, not the file: `git lfs pull` fetches it",
}


def take_weights(module: nn.Module, found: dict[str, Tensor], path: Path, dataset: Dataset) -> str:
    """Fill a network with what `read_weights` found in a file.

    Returns:
        What was chosen of them, in words; nothing where they were taken as they are.

    Raises:
        InputError: the weights are of another network, of other classes, or not finite.
    """
    wanted = {name: tensor for name, tensor in module.state_dict().items() if not name.endswith("num_batches_tracked")}
    found = _without_prefix(found, wanted)
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - module.state_dict().keys())
    if missing or extra:
        lists = [
            f"{what}: {', '.join(names[:3])}" for what, names in (("missing", missing), ("too many", extra)) if names
        ]
        problem = f"holds weights of another network ({len(missing)} {'; '.join(lists)})"
        raise InputError(str(path), "", f"{problem}; name the network that they are of{_likely(found)}")
    found, chosen = _of_its_classes(found, wanted, dataset)
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            problem = f"is {tuple(found[name].shape)}, the network has {tuple(tensor.shape)}"
            if name == [each for each in wanted if wanted[each].dim() > 1][-1] and len(found[name]) != dataset.classes:
                problem += f": the weights know {len(found[name])} classes, {dataset.name} has {dataset.classes}"
            raise InputError(str(path), name, f"{problem}; name the network and the images that the weights are of")
        if not found[name].isfinite().all():
            raise InputError(str(path), name, "holds numbers that are not finite")
    module.load_state_dict(found, strict=False)
    return chosen


def _likely(found: Mapping[str, Tensor]) -> str:
    """Which of torchvision's networks has weights of these names and shapes, all but the head."""
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
    """Of weights that know ImageNet's classes those that a folder has, where all its names are of these."""
    from torchvision.models import ResNet18_Weights

    known = ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    places = {name.lower(): place for place, name in enumerate(known)}
    own = [places.get(name.lower().replace("_", " "), -1) for name in dataset.names]
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


def _without_prefix(found: dict[str, Tensor], wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """What wrappers put before every name goes, as long as the names are not the network's own."""
    while not wanted.keys() <= found.keys():
        prefix = next((each for each in _PREFIXES if found and all(name.startswith(each) for name in found)), None)
        if prefix is None:
            break
        found = {name[len(prefix) :]: tensor for name, tensor in found.items()}
    return found


# ------------------------------------------------------------------------------------------------------------- weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name: of safetensors, or of what `torch.save` wrote of a `state_dict`.

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
    """In a process of its own, whose memory has a limit from here on."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                raise InputError(str(path), "", "is TorchScript, which is code; save the network's state_dict()")
    limit = psutil.Process().memory_info().vms + _COPIES * path.stat().st_size + _SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        with torch.serialization.safe_globals([Namespace]):  # of older scripts: their arguments, beside the weights
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {name: tensor.detach().contiguous().clone() for name, tensor in _state_dict(loaded, path).items()}
        save_file(tensors, target)
    except InputError:
        raise
    except Exception as error:  # whatever is in the file
        raise InputError(str(path), "", _why(error)) from None


def _why(error: Exception) -> str:
    """In one line, of what the reader says in many."""
    text = str(error)
    if found := re.search(r"GLOBAL ([\w.]+)|Unsupported (?:class|operand) ([\w.]+)", text):
        what = found[1] or found[2]
        return f"holds code ({what}), not only weights, and nothing of it was run; save the network's state_dict()"
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "takes far more memory than its size tells; it is damaged, or made to do harm"
    return f"is damaged, cut short, or not of torch.save ({in_a_line(f'{type(error).__name__}: {text}', 120)})"


def _state_dict(found: Any, path: Path) -> dict[str, Tensor]:
    """The weights, however deep they lie in what was saved."""
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
