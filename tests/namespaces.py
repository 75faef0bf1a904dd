"""Hosts of a network that is none: network namespaces of this machine, joined by a switch, with links of chosen rates.

Nothing of it touches the machine's own network: the switch stands in a namespace of its own, and has no way out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

NET: Final = "198.18.77"  # for measuring between devices that are apart from all networks: RFC 2544
_BURST_BYTES: Final = 6000  # a few packets: what is sent at once beyond the rate must not count
_QUEUE_BYTES: Final = 4 << 20


def why_not() -> str:
    """Why this machine has no namespaces for us; empty where it has."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not found (iproute2)"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_namespace("slim-try"))
            _ip("-n", _name("slim-try"), "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
            _ip("-n", _name("slim-try"), "link", "add", "switch", "type", "bridge")
            _shape(_name("slim-try"), "veth0", 100.0)
        except subprocess.CalledProcessError as error:
            return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return ""


class Hosts:
    """Some namespaces, each with one address, and a link to all others.

    Attributes:
        address: by host.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.address = {name: f"{NET}.{number}" for number, name in enumerate(names, start=1)}

    def inside(self, host: str) -> list[str]:
        """What goes before a command that is to run there."""
        return ["ip", "netns", "exec", _name(host)]

    def cut(self, host: str) -> None:
        """Nothing passes to or from it; no connection is closed."""
        _ip("-n", _name(_SWITCH), "link", "set", "dev", host, "down")

    def mend(self, host: str) -> None:
        """All passes again."""
        _ip("-n", _name(_SWITCH), "link", "set", "dev", host, "up")

    def unsent_bytes(self, source: str, destination: str) -> int:
        """What programs of one host have handed to connections to another that it does not have yet."""
        command = [*self.inside(source), "ss", "-tnH", "state", "established", "dst", self.address[destination]]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        return sum(int(line.split()[1]) for line in lines)


_SWITCH, _BRIDGE = "switch", "bridge0"


@contextlib.contextmanager
def linked_hosts(rates_mbit_s: Mapping[str, float]) -> Iterator[Hosts]:
    """Hosts whose link has this rate, each way; nothing is left of them.

    Raises:
        subprocess.CalledProcessError: this machine has none; see `why_not`.
    """
    hosts = Hosts(list(rates_mbit_s))
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(_namespace(_SWITCH))
        _ip("-n", switch, "link", "add", "name", _BRIDGE, "type", "bridge")
        _ip("-n", switch, "link", "set", "dev", _BRIDGE, "up")
        for host, rate_mbit_s in rates_mbit_s.items():
            inside = stack.enter_context(_namespace(host))
            _ip("-n", switch, "link", "add", "name", host, "type", "veth", "peer", "name", "eth", "netns", inside)
            _ip("-n", switch, "link", "set", "dev", host, "master", _BRIDGE, "up")
            _ip("-n", inside, "addr", "add", f"{hosts.address[host]}/24", "dev", "eth")
            _ip("-n", inside, "link", "set", "dev", "eth", "up")
            _shape(switch, host, rate_mbit_s)
            _shape(inside, "eth", rate_mbit_s)
        yield hosts


@contextlib.contextmanager
def _namespace(host: str) -> Iterator[str]:
    name = _name(host)
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "dev", "lo", "up")
        yield name
    finally:
        _ip("netns", "del", name)


def _name(host: str) -> str:
    """Of this process's namespace: others may have hosts of this name, too."""
    return f"slimsched-{os.getpid()}-{host}"


def _shape(namespace: str, interface: str, rate_mbit_s: float) -> None:
    shape = ["rate", f"{rate_mbit_s}mbit", "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES)]
    _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *shape)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
