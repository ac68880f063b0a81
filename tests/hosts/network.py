"""Hosts that are network namespaces of this machine, on a switch of their own. Root alone may make them.

::

    redis 10.77.0.1 ┐
    database .2     ┴ hub ── switch ── h1 .11, h2 .12 ...

Nothing of it touches the machine's own network, and it is gone with `Network.close`.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_count = itertools.count(1)

REDIS, DATABASE, FIRST_HOST = "10.77.0.1", "10.77.0.2", 11
SUBNET = "10.77.0.0/24"
HUB = "hub"


def why_not() -> str | None:
    """Return why no namespaces can be made here, or None when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the program ip (iproute2)"
    name = f"vp{os.getpid():x}-try"
    found = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return f"the kernel makes no network namespaces here: {found.stderr.strip()}"
    try:
        link = ["ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
        found = subprocess.run(link, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return None if found.returncode == 0 else f"the kernel makes no virtual cables here: {found.stderr.strip()}"


class Network:
    """A switch, a hub with two addresses, and hosts.

    Args:
        hosts: Their names; each gets an address and a host name.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._tag = f"vp{os.getpid():x}x{next(_count)}"
        self.addresses = {name: f"10.77.0.{FIRST_HOST + index}" for index, name in enumerate(hosts)}
        self._made: list[str] = []
        _clear_dead()
        try:
            self._make_switch()
            self._plug_in(HUB, [REDIS, DATABASE])
            for name, address in self.addresses.items():
                self._plug_in(name, [address])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False)

    # ---- making --------------------------------------------------------------------------------------

    def _make_switch(self) -> None:
        self._add("sw")
        self._in("sw", "link", "add", "br0", "type", "bridge")
        self._in("sw", "link", "set", "br0", "up")

    def _plug_in(self, name: str, addresses: Sequence[str]) -> None:
        self._add(name)
        _ip(
            "link",
            "add",
            "eth0",
            "netns",
            self._name(name),
            "type",
            "veth",
            "peer",
            f"p-{name}",
            "netns",
            self._name("sw"),
        )
        self._in("sw", "link", "set", f"p-{name}", "master", "br0", "up")
        for address in addresses:
            self._in(name, "addr", "add", f"{address}/24", "dev", "eth0")
        self._in(name, "link", "set", "eth0", "up")
        self._in(name, "link", "set", "lo", "up")

    def _add(self, name: str) -> None:
        _ip("netns", "add", self._name(name))
        self._made.append(self._name(name))

    def _name(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _in(self, name: str, *words: str) -> None:
        _ip("-n", self._name(name), *words)

    # ---- faults --------------------------------------------------------------------------------------

    def cut(self, name: str) -> None:
        """Pull a host's cable out of the switch: packets vanish, nobody is told."""
        self._in("sw", "link", "set", f"p-{name}", "nomaster")

    def heal(self, name: str) -> None:
        """Plug it in again."""
        self._in("sw", "link", "set", f"p-{name}", "master", "br0")

    def block(self, service: str, name: str) -> None:
        """Let nothing of one of the hub's addresses reach a host: as a broken firewall, or one wrong route."""
        self._in(HUB, "rule", "add", "from", service, "to", self.addresses[name], "blackhole")

    def unblock(self, service: str, name: str) -> None:
        self._in(HUB, "rule", "del", "from", service, "to", self.addresses[name], "blackhole")

    def refuse(self, service: str, name: str) -> None:
        """Let a host hear at once that it does not get to one of the hub's addresses."""
        self._in(name, "route", "add", "unreachable", f"{service}/32")

    def allow(self, service: str, name: str) -> None:
        self._in(name, "route", "del", "unreachable", f"{service}/32")

    # ---- processes -----------------------------------------------------------------------------------

    def enter(
        self,
        name: str,
        *,
        user: str | None = None,
        dies_with_us: bool = True,
        files: Mapping[Path, Path] | None = None,
    ) -> Callable[[], None]:
        """Return what `subprocess.Popen` takes as `preexec_fn` to start a program on a host, under its host name.

        Args:
            name: The host.
            user: Gives up root's rights for this one's.
            dies_with_us: The program ends with this process.
            files: What lies under a path on this host, where it is something else than here.
        """
        path = Path("/run/netns") / self._name(name)
        entry = pwd.getpwnam(user) if user is not None else None

        def go() -> None:
            handle = os.open(path, os.O_RDONLY)
            _check(_LIBC.setns(handle, _CLONE_NEWNET))
            os.close(handle)
            _check(_LIBC.unshare(_CLONE_NEWUTS))
            _check(_LIBC.sethostname(name.encode(), len(name)))
            if files:
                _check(_LIBC.unshare(_CLONE_NEWNS))
                _check(_LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
                for path_here, other in files.items():
                    _check(_LIBC.mount(bytes(other), bytes(path_here), None, _MS_BIND, None))
            if entry is not None:
                os.setgroups([])
                os.setgid(entry.pw_gid)
                os.setuid(entry.pw_uid)
            if dies_with_us:
                _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT if user else signal.SIGTERM, 0, 0, 0)

        return go


def _clear_dead() -> None:
    """Remove what processes left that were killed: their pid is in the names."""
    folder = Path("/run/netns")
    for path in folder.iterdir() if folder.is_dir() else ():
        found = re.fullmatch(r"vp([0-9a-f]+)x\d+-\w+", path.name)
        if found and not Path("/proc", str(int(found[1], 16))).exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    found = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {found.stderr.strip()}")


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "a namespace was not entered")
