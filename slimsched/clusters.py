"""Hosts of a cluster: checked before a run, and steered during one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import InputError
from slimsched.arguments import Changes, Duration, File, Names, NewFolder, Router, ScenarioLike, require_within
from slimsched.results import CommandResult
from slimsched.working import load, observer, verb

if TYPE_CHECKING:
    from scenarios.executors.hosts import Hosts

DOES_NOT_FIT = 2


@verb
def check_cluster(
    scenario: ScenarioLike, /, *, logs: NewFolder | None = None, changes: Changes | None = None
) -> CommandResult:
    """Look at every host of a scenario before a run.

    Told is what each has, and what does not fit.

    Args:
        scenario: a scenario's file (YAML), or a shipped one by name; or what `load` returned.
        logs: instead gather there what agents have printed on every host.
        changes: other values than the scenario's, by dotted keys.

    Raises:
        InputError: the scenario names no hosts, or their cluster is not there.
    """
    from hw.networks.registry import ModelFile
    from scenarios.executors import cluster_check
    from scenarios.executors.hosts import joined_hosts
    from scenarios.show.cluster import format_cluster

    keys = load(scenario, changes).keys
    if keys.cluster.backend == "local":
        raise cluster_check.none_here(keys.cluster, keys.name)
    with joined_hosts(keys.cluster, keys.name) as hosts:
        if logs is not None:
            paths = [path for host in hosts.names() for path in _gathered(hosts, host, Path(logs) / host)]
            lines = "\n".join(f"log: {path}" for path in paths) or "no agent has printed anything"
            return CommandResult({"logs": [str(path) for path in paths]}, lines)
        given = keys.model.checkpoint
        model = None if given is None else ModelFile(Path(given))
        check = cluster_check.check_cluster(keys, model, hosts, observer().remark)
    return CommandResult(check.document(), format_cluster(check), code=0 if check.fits else DOES_NOT_FIT)


def _gathered(hosts: Hosts, host: str, folder: Path) -> list[Path]:
    """Return files here with what agents have printed on a host."""
    from hw.ray.host import kept_logs
    from kit.files import atomic_path

    paths = []
    for name, content in hosts.ask(host, "", kept_logs).items():
        paths.append(folder / name)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(paths[-1]) as temporary:
            temporary.write_bytes(content)
    return paths


@verb
def steer(
    run: File,
    /,
    *,
    drain: Names = (),
    floor: float | None = None,
    p99_s: Duration | None = None,
    energy_weight: float | None = None,
    router: Router | None = None,
    model: File | None = None,
) -> CommandResult:
    """Drain servers, or change goals, router or model, while a run goes on.

    The run says when it follows, and when a server that is drained is empty. Goals, router and model are those of a
    `serve`. Goals are followed by routers that control (docs/routers.md, keeping goals).

    Args:
        run: the folder of the `run`, `validate` or `serve` that serves now.
        drain: servers, or hosts with all theirs, that get no new block from now on; the others do, and all where it is
            `none`. May be given several times.
        floor: the mean accuracy to keep from now on; 0 for none.
        p99_s: the most that the p99 latency may be from now on, such as 30ms; 0 for no limit.
        energy_weight: points of accuracy that a joule an image is worth from now on.
        router: who decides from now on: by name, a rule file, or a trained router's file.
        model: other weights of the network that serves; their accuracy table (accuracy.json) lies beside.

    Raises:
        InputError: nothing is asked for, nothing of that kind serves in that folder, it has no such server or host, or
            a value is not allowed.
    """
    from policies.goal_control import MAX_WEIGHT
    from scenarios.files.router_names import check_router, with_file
    from scenarios.runs import control

    require_within("--floor", floor, 0, 1)
    require_within("--energy-weight", energy_weight, 0, MAX_WEIGHT)
    named = None if router is None else str(router)
    if named is not None:
        check_router(named, "--router")
        named = with_file(named, lambda path: str(path.resolve()))
    weights = None if model is None else str(Path(model).resolve())
    wish = control.Steering(floor=floor, p99_limit_s=p99_s, energy_weight=energy_weight, router=named, model=weights)
    given = wish.model_dump(exclude_none=True)
    if not (drain or given):
        flags = "--drain, --floor, --p99, --energy-weight, --router or --model"
        raise InputError(str(run), "", f"nothing is asked for: give {flags}")
    if given:
        control.steer(Path(run), wish)
    if drain:
        given["drain"] = control.drain(Path(run), drain)
    words = {**given, "drain": ", ".join(given["drain"]) or control.NOBODY} if drain else given
    text = ", ".join(f"{name} {value}" for name, value in words.items())
    return CommandResult(given, f"asked for {text}; the command that serves says when it follows")
