"""What can a router be? A kind by name, a user's class, or a file: what endings mean, what files hold, what trains.

Names and kinds are those of `policies.router_kinds`; here are the files: rules as text, learned routers as numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt

from kit import strict
from kit.documents import read_text, write_text
from kit.errors import InputError, nearest
from kit.files import lies_there
from policies.interfaces import RouterConfig, RoutingPolicy
from policies.router_kinds import COMPASS, TUNED
from policies.router_names import OwnRouter, parse_router_name, rule_from_dict
from policies.rules.compass import CompassRule
from policies.rules.rule_context import RouterContext
from policies.rules.rule_params import RouterSpec, RuleSpec
from scenarios.files.bundled_files import MADE_KINDS, ROUTER_SUFFIX, RULE_SUFFIX, made_file, made_kind

if TYPE_CHECKING:
    from policies.ppo.ppo_router import PPORouter

_SUFFIXES: Final = (ROUTER_SUFFIX, RULE_SUFFIX)
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]*")


# ------------------------------------------------------------------------------------------------------------- names


def is_router_file(name: str) -> bool:
    """Return whether a router's name is that of a file: a learned one, or a rule."""
    return name.endswith(_SUFFIXES)


def labelled(name: str) -> tuple[str, str]:
    """Split `NAME=FILE`, a file's other name in tables: `NAME=`, and the file; otherwise nothing, and all."""
    label, equals, path = name.partition("=")
    return (label + equals, path) if is_router_file(name) and _LABEL.fullmatch(label) and equals else ("", name)


def router_file(name: str) -> Path | None:
    """Return the file that a router's name stands for; None for a rule by name, or a class."""
    return Path(labelled(name)[1]) if is_router_file(name) else None


def with_file(name: str, rename: Callable[[Path], str]) -> str:
    """Return a router's name with the path of its file renamed; another name as it is."""
    label, path = labelled(name)
    return f"{label}{rename(Path(path))}" if is_router_file(name) else name


def without_ending(name: str) -> str:
    """Return a router file's name without the ending that marks it as one; another text as it is."""
    return name.removesuffix(next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), ""))


def display_name(router: str) -> str:
    """Return a router's name in results.

    Of a file it is the given name, otherwise the file's without folder and ending, so that no path of a machine is in a
    result.
    """
    label, path = labelled(router)
    return label.removesuffix("=") or (without_ending(Path(path).name) if is_router_file(router) else router)


def code_of(name: str, source: str) -> str:
    """Return the code of a user's class, with what it imports; empty for other routers.

    Raises:
        InputError: it is not there, or own code is refused.
    """
    spec = None if made_kind(name) or is_router_file(name) else parse_router_name(name, source)
    return spec.code_hash(source, "routers") if isinstance(spec, OwnRouter) else ""


def decided_by(name: str, source: str) -> Path | str:
    """Return what a router decides by: its file, or the code of a user's class (`code_of`); empty for other routers."""
    return router_file(name) or code_of(name, source)


def is_compiled(name: str) -> bool:
    """Return whether compiled code finds it, or its start, or decides by its numbers: all but rules and classes."""
    return made_kind(name) is not None or name.endswith(ROUTER_SUFFIX) or name == COMPASS


def require_distinct_names(routers: Sequence[str]) -> None:
    """Raise `InputError` if two routers would be one row of a table."""
    names: dict[str, str] = {}
    for router in routers:
        other = names.setdefault(display_name(router), router)
        if other != router:
            problem = f"{other} and {router} have the same name {display_name(router)!r} in tables"
            raise InputError("routers", "", f"{problem}; name one otherwise: NAME={labelled(router)[1]}")


def check_router(name: str, source: str, key: str = "") -> None:
    """Check whether a name can be a router: raises `InputError` for an unknown one, or for a file that is not there."""
    if (kind := made_kind(name)) is not None:
        if kind not in MADE_KINDS:
            raise InputError(source, key, f"{name!r}: no such rule is tuned; {nearest(kind, TUNED)}")
        return
    if (path := router_file(name)) is not None:
        if name.endswith(RULE_SUFFIX):
            read_rule(path, source, key)
        elif not path.is_file():
            raise InputError(source, key, _no_file(path))
        return
    try:
        parse_router_name(name, source, key)
    except InputError as error:
        problem = f"{error.problem}, or one that the run makes: `ppo`, `tuned:KIND` for a rule"
        if name.endswith((".yaml", ".yml")):
            problem = (
                f"{name}: no router's file has this ending; a rule's, as `slimsched train` writes, has {RULE_SUFFIX}"
            )
        elif name.endswith(".py"):
            problem = f"{name}: a custom class is named by its module: {Path(name).stem}:CLASS"
        elif "," in name and ":" not in name:
            problem = f"{name!r} is not a router; name each apart, such as --router {name.replace(',', ' --router ')}"
        elif ":" not in name and ("." in name or "/" in name):
            problem = _no_file(Path(name))
        raise InputError(source, key, problem) from None


def _no_file(path: Path) -> str:
    """Describe a missing router's file, with those in the same folder, the nearest first."""
    others = path.parent.glob("*") if lies_there(path.parent) else ()
    siblings = sorted(other.name for other in others if is_router_file(other.name))[:20]
    remedy = "`slimsched train` writes one, of a rule too (*.rule.yaml)"
    return f"{path}: no such router file; {nearest(path.name, siblings, 'beside it:') if siblings else remedy}"


def check_fits(name: str, segments: int, widths: tuple[float, ...], source: str, key: str = "") -> None:
    """Check that a rule that its name spells out (`fixed:0.5,1`) fits the network; raises `InputError` if not."""
    if made_kind(name) is not None or is_router_file(name):
        return
    try:
        parse_router_name(name, source, key).check(RouterConfig(segments, widths, ()), source, key)
    except InputError as error:
        raise InputError(source, key, f"{name!r}: {error.problem}") from None


# ------------------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True, slots=True)
class TrainedSpec:
    """What the paper's PPO has learned, as a file holds it; the file is read no more.

    Attributes:
        path: the file's, for messages.
        tensors, metadata: its content.
        deterministic: overrides the mode that is stored.
        devices: the names of the cluster's devices, if they are known, for messages.
    """

    path: Path
    tensors: Mapping[str, npt.NDArray[Any]]
    metadata: Mapping[str, str]
    deterministic: bool | None = None
    devices: Sequence[str] = ()

    def check(self, config: RouterConfig, source: str = "router", key: str = "") -> None:
        """Check that it was trained for such a cluster, and is whole; raises `InputError` if not."""
        self._load(config)

    def make(self, context: RouterContext, source: str = "router", key: str = "") -> RoutingPolicy:
        """Make the router; raises `InputError` as `check` does."""
        return self._load(context.config)

    def dialled(self, by: float, context: RouterContext) -> None:
        """Do nothing, for it has no dial: what it serves is what it learned."""

    def _load(self, config: RouterConfig) -> PPORouter:
        from policies.ppo.ppo_router import PPORouter  # rules must not wait for what reads files of weights

        router = PPORouter.of(self.tensors, self.metadata, str(self.path), deterministic=self.deterministic)
        router.spec.require(config, str(self.path), self.devices)
        return router


def read_router(path: Path, *, deterministic: bool | None = None, devices: Sequence[str] = ()) -> RouterSpec:
    """Read what a router's file holds: a rule, or `ppo` (see `TrainedSpec`).

    Raises:
        InputError: it is missing, damaged, or of another version.
    """
    if path.name.endswith(RULE_SUFFIX):
        return read_rule(path)
    from kit import checkpoint  # rules must not wait for what reads files of weights

    tensors, metadata = checkpoint.read(path)
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith(checkpoint.POLICY)}
    return TrainedSpec(path, weights, metadata, deterministic, devices)


def spec_of(name: str, made_in: Path) -> RouterSpec:
    """Return a router's spec, by its name or from its file; `made_in`: the folder of the run that makes it."""
    path = router_file(name) if (kind := made_kind(name)) is None else made_in / made_file(kind)
    return parse_router_name(name) if path is None else read_router(path)


def learned_among(routers: Sequence[str], made_in: Path) -> list[str]:
    """Return those, as tables name them, whose files hold what was learned: by gradients, or Compass's numbers.

    Args:
        made_in: the folder of the run that makes the scenario's own routers.

    Raises:
        InputError: a file can't be read.
    """
    names = []
    for name in routers:
        file = router_file(name) if (kind := made_kind(name)) is None else made_in / made_file(kind)
        is_numbers = file is not None and file.name.endswith(ROUTER_SUFFIX)
        if file is not None and (is_numbers or isinstance(read_router(file), CompassRule)):
            names.append(display_name(name))
    return names


def write_rule(path: Path, rule: RuleSpec) -> None:
    """Write a rule's file (`*.rule.yaml`), which `read_rule` reads."""
    write_text(path, strict.dump(rule.to_dict()))


def read_rule(path: Path, source: str | None = None, key: str = "") -> RuleSpec:
    """Read a rule from its file (`*.rule.yaml`).

    Raises:
        InputError: it is missing or broken, or a key or value in it is not one of a rule.
    """
    return rule_from_dict(strict.mapping(read_text(path, source, key), str(path)), str(path))


def made_by(path: Path) -> Mapping[str, Any]:
    """Return how a router's file was made, according to the file; empty if that is not recorded."""
    if path.name.endswith(RULE_SUFFIX):
        return read_rule(path).made_by
    from kit import checkpoint

    try:
        origin = json.loads(checkpoint.read(path)[1].get("made_by", "{}"))
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}
