"""Networks by name, and their files: how a name is resolved, how a network is built, and its form on disk.

A network is one of `PRESETS`, or a user's own class, named `module:Class`. A file holds weights and the name, never
code: the caller that names the network chooses the code, and a file of a user's class is opened only under that name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hw.networks.accuracy_table import label_of, network_settings
from hw.networks.architectures import SLIMRESNETS as RESNETS
from hw.networks.architectures import SLIMVITS as VITS
from hw.networks.architectures import SlimResNet, SlimResNetConfig, SlimVit
from hw.networks.model_families import Family, FamilyStructure, JoinedModels, Part, own_classes
from hw.networks.servable import Servable
from hw.networks.slimmable import SlimmableModel, SlimmedNetwork, Structure
from hw.networks.third_party_networks import LIBRARIES, Named
from kit.errors import InputError, WorkError, in_a_line, nearest
from kit.files import atomic_path, require_file, same_header
from kit.plugins import OWN_CLASS, blaming, is_own, own_class

SCHEMA = "slimsched.model/1"
PRESETS: Final = RESNETS | VITS
MAX_BYTES: Final = 100_000_000_000
_NAME_IT: Final = "name it as well (model.network in a scenario, --network): a file never chooses what code runs"


class Buildable(Protocol):
    """A network that can be built, with some weights."""

    @property
    def label(self) -> str:
        """The network's name in one line."""
        ...

    def build(self) -> Servable:
        """Build it; random numbers come from torch's generator."""
        ...


class Trainable(Buildable, Protocol):
    """A network whose widths can be trained."""

    def build(self) -> SlimmableModel:
        """See `Buildable`."""
        ...


@dataclass(frozen=True, slots=True)
class Network(Named):
    """A slimmable network by name: one of `PRESETS`, or `module:Class`, a subclass of `SlimmableModel`."""

    def __post_init__(self) -> None:
        library, _, name = self.name.partition(":")
        if library in LIBRARIES and "." in name:
            plain = f"{library}:{name.rpartition('/')[2].partition('.')[0]}"
            raise InputError(self.source, self.key, f"{self.name!r} has a tag of weights; leave it away: {plain}")
        if self.name not in PRESETS and not self.is_own:
            allowed = f"{nearest(self.name, PRESETS)}, or `{OWN_CLASS}` for a custom one"
            raise InputError(self.source, self.key, f"unknown network {self.name!r}; {allowed}")
        if self.options and not self.is_own:
            problem = f"only a custom network takes options; {self.name!r} has none"
            raise InputError(self.source, "options", problem)

    @property
    def is_own(self) -> bool:
        """Whether a user's class is named."""
        return is_own(self.name)

    @property
    def label(self) -> str:
        """The network's name and options in one line: two networks are the same if these are."""
        return label_of(self.name, self.options)

    def build(self) -> SlimmableModel:
        """Build a fresh one, its weights drawn from torch's generator; raises `InputError` if it can't be made."""
        if not self.is_own:
            return SlimVit(VITS[self.name]) if self.name in VITS else SlimResNet(RESNETS[self.name])
        own_model = self._own_class()
        with blaming(self.name, self.source, self.key):
            return own_model(**self.options)

    @property
    def settings(self) -> dict[str, str]:
        """See `network_settings`."""
        return network_settings(self.name, self.options, self.source, self.key)

    def _own_class(self) -> type[SlimmableModel]:
        """Return the class of a name; nothing but a network's class is ever called."""
        is_ordinary = self.name.partition(":")[0] in LIBRARIES
        model_class = None if is_ordinary else own_class(self.name, self.source, self.key)
        if not (isinstance(model_class, type) and issubclass(model_class, SlimmableModel)):
            problem = f"{self.name!r} is not a hw.networks.slimmable.SlimmableModel"
            remedy = (
                "`slimsched model slim` makes one of an ordinary trained network, or subclass it: segments of several"
            )
            raise InputError(
                self.source, self.key, f"{problem}; {remedy} widths (docs/models.md, examples/own-network)"
            )
        return model_class


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A network's weights on disk; `network` must be named if it is a user's own class, and is checked if given."""

    path: Path
    network: Network | None = None

    @property
    def label(self) -> str:
        """The network's name from the header."""
        return load_tensors(self.path, SCHEMA)[1].get("network", "")

    def build(self) -> Servable:
        """Build the network without the file's weights; raises `InputError` as `load` does."""
        return self._structure(load_tensors(self.path, SCHEMA)[1])

    def load(self) -> tuple[Servable, dict[str, str]]:
        """Load the model, on the CPU, and the file's metadata (`hash` among it).

        Raises:
            InputError: the file is foreign or corrupt, of another network, or does not fit its configuration or hash.
        """
        tensors, metadata = load_tensors(self.path, SCHEMA)
        model = self._structure(metadata)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            problem = f"the weights do not fit the network ({in_a_line(str(error))})"
            raise InputError(str(self.path), "", problem) from None
        digest = model_hash(model.state_dict())
        if digest != metadata.get("hash"):
            problem = f"the weights hash to {digest}, the header has {metadata.get('hash')!r}: the file was damaged"
            raise InputError(str(self.path), "hash", problem)
        return model.eval(), metadata

    def _structure(self, metadata: Mapping[str, str]) -> Servable:
        """Build the network without its weights."""
        label = metadata.get("network", "")
        key = next((each for each in ("config", "structure", "family", "joined") if each in metadata), None)
        if key is None:
            if label not in VITS:
                return self._own(label)
            if self.network is not None and self.network.name != label:
                raise self._other(label)
            return Network(label).build()
        try:
            if key == "structure":
                structure = Structure.from_json(metadata[key])
                if self.network is not None:  # it has no name to be built by
                    raise self._other(label)
                return SlimmedNetwork(structure)
            if key == "family":
                return self._family(FamilyStructure.from_json(metadata[key]), label)
            if key == "joined":
                return self._joined(json.loads(metadata[key]), label)
            own_config = SlimResNetConfig.from_json(metadata[key])
        except (ValueError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(str(self.path), key, f"not a model configuration ({in_a_line(str(error))})") from None
        if self.network is not None and (PRESETS.get(self.network.name) != own_config):
            raise self._other(label or "another slimmable ResNet")
        return SlimResNet(own_config)

    def _family(self, structure: FamilyStructure, label: str) -> Family:
        """Build a family of libraries' networks, and of the one class that the caller names."""
        classes = own_classes(structure.members)
        name = None if self.network is None else self.network.name
        if name is not None and classes != {name}:
            raise self._other(label)
        if classes and name is None:
            problem = f"holds weights of {', '.join(sorted(classes))}"
            raise InputError(str(self.path), "family", f"{problem}; {_NAME_IT}")
        return Family(structure, str(self.path))

    def _joined(self, parts: Mapping[str, Mapping[str, str]], label: str) -> JoinedModels:
        """Build several models, none of which is a user's class."""
        if self.network is not None:
            raise self._other(label)
        models = tuple(Part(name, part["network"], self._structure(part)) for name, part in parts.items())
        return JoinedModels(models, str(self.path))

    def _own(self, label: str) -> SlimmableModel:
        """Build a user's class: under the name that the caller gives, never the file's alone."""
        if not label:
            raise InputError(str(self.path), "network", "the header does not name its network; train it again")
        if self.network is None:
            raise InputError(str(self.path), "network", f"holds weights of {label!r}; {_NAME_IT}")
        if self.network.label != label:
            raise self._other(label)
        return self.network.build()

    def _other(self, label: str) -> InputError:
        assert self.network is not None
        remedy = "name the file or the network that you mean"
        problem = f"holds weights of {label!r}, not of {self.network.label!r}; {remedy}"
        return InputError(str(self.path), "network", problem)


def save_model(path: Path, model: Servable, network: str, metadata: Mapping[str, str]) -> None:
    """Write weights and their description: a network's `label`, or the name of a ResNet that is not a preset.

    `metadata` is stored with them as text.
    """
    state = model.state_dict()
    save_tensors(path, state, {**metadata, "schema": SCHEMA, "hash": model_hash(state), **_header(model, network)})


def _header(model: Servable, network: str) -> dict[str, str]:
    """Return a network's building instructions."""
    header = {"network": network}
    if type(model) is SlimResNet:  # a subclass is a user's own, and may compute something different
        header["config"] = model.config.to_json()
    if type(model) is SlimmedNetwork:
        header["structure"] = model.structure.model_dump_json(exclude_defaults=True)
    if type(model) is Family:
        header["family"] = model.structure.model_dump_json(exclude_defaults=True)
    if type(model) is JoinedModels:
        parts = zip(model.networks.items(), model.parts, strict=True)
        header["joined"] = json.dumps({name: _header(part, label) for (name, label), part in parts})  # type: ignore[arg-type]
    return header


def joined(files: Mapping[str, ModelFile], source: str) -> tuple[JoinedModels, str]:
    """Join several models with their weights, by their names in classes; return them and the label of all.

    Raises:
        InputError: they do not belong together, or a file can't be read.
    """
    parts = tuple(Part(name, file.label, file.load()[0]) for name, file in files.items())
    return JoinedModels(parts, source), ", ".join(f"{part.name}: {part.network}" for part in parts)


def model_hash(state: Mapping[str, Tensor]) -> str:
    """Return 16 hex digits that identify these weights: names, shapes, types and values; floats count as float32."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}  # none share memory
    with atomic_path(path) as temporary:
        temporary.write_bytes(same_header(save(plain, dict(metadata))))


def load_tensors(path: Path, schema: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a safetensors file.

    Raises:
        InputError: the file does not exist, is not a safetensors file, or not of this schema.
        WorkError: the system does not let it be read now.
    """
    require_file(path, MAX_BYTES, hint="; `slimsched model train SCENARIO` makes one")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except RuntimeError as error:  # torch maps the file: too many are open, or memory is short
        raise WorkError(f"{path}: can't be read now ({str(error).splitlines()[0]})") from error
    except OSError as error:
        raise InputError(str(path), "", f"cannot be read ({error})") from None
    except SafetensorError as error:
        problem = f"cannot be read as safetensors ({error}); {_remedy(path)}"
        raise InputError(str(path), "", problem) from None
    if metadata.get("schema") != schema:
        problem = f"found {metadata.get('schema')!r}, needs {schema!r}; hw.networks.network_files.save_model writes it"
        raise InputError(str(path), "schema", problem)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(str(path), name, "holds numbers that are not finite; train the model again")
    return tensors, metadata


def _remedy(path: Path) -> str:
    """Return the remedy for a file that is not a safetensors file."""
    with path.open("rb") as file:
        is_of_torch = file.read(1) in (b"P", b"\x80")  # of a zip, of a pickle
    if not is_of_torch:
        return "is it the file that you mean? `slimsched model train` writes a network's"
    steps = "load it in Python, then model.load_state_dict and hw.networks.network_files.save_model"
    return f"torch.save wrote it: {steps} (docs/models.md#weights-from-elsewhere)"
