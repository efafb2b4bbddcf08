"""Machines of a test: network namespaces on one bridge, each with its own address and nothing on its loopback.

Programs reach other machines only by address, as in a real network, but share the file system. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_PREFIX = 24


def missing() -> str:
    """Returns why network namespaces cannot be made here, or "" if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        _ip("netns", "add", f"rmgrtry{os.getpid()}")
        _ip("netns", "del", f"rmgrtry{os.getpid()}")
    except FileNotFoundError:
        return "network namespaces need ip (Debian: iproute2)"
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.strip()}"
    return ""


class Machines:
    """A bridge with an address in this namespace, and the machines on it. Removes all of them at its end.

    Args:
        number: makes the network 10.81.<number>.0/24, different from those of other test processes.
    """

    def __init__(self, number: int | None = None) -> None:
        number = os.getpid() % 250 + 1 if number is None else number
        self.address = f"10.81.{number}.1"  #: address of this namespace on the bridge
        self._network = f"10.81.{number}"
        self._bridge = f"rmgrb{os.getpid() % 100000}"
        self.addresses: dict[str, str] = {}  #: machine -> address
        self._names: dict[str, str] = {}  # machine -> namespace
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/{_PREFIX}", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        return self

    def add(self, name: str) -> str:
        """Adds a machine; returns its address."""
        index = len(self._names) + 2
        space, outside = f"rmgr{os.getpid()}{name}", f"rv{os.getpid() % 100000}x{index}"
        address = self.addresses[name] = f"{self._network}.{index}"
        _ip("netns", "add", space)
        self._names[name] = space
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outside, "master", self._bridge)
        _ip("link", "set", outside, "up")
        for words in (("addr", "add", f"{address}/{_PREFIX}", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
            _ip("-n", space, *words)
        return address

    def run(
        self, name: str, argv: Sequence[str], *, text: str = "", environment: Mapping[str, str], timeout_s: float = 60.0
    ) -> tuple[int, str, str]:
        """Runs a program on a machine to its end; returns (exit code, stdout, stderr)."""
        done = subprocess.run(
            ["ip", "netns", "exec", self._names[name], *argv], input=text, capture_output=True, text=True, env=dict(environment),
            timeout=timeout_s, check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def start(self, name: str, argv: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a daemon on a machine."""
        with log.open("ab") as sink:
            child = subprocess.Popen(
                ["ip", "netns", "exec", self._names[name], *argv], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                env=dict(environment), start_new_session=True,
            )
        self._children.append(child)
        return child

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        for child in self._children:
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(60)
        for space in self._names.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", space)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60.0)
