"""Control groups of a node's slots: where they can be made, one directory per slot, killed as a whole, removed.

Version 2 is used at the Starter's own place in the tree (a delegated unit, a container, or root); its `cgroup.kill` and
`cgroup.freeze` need no controller, memory and pids limits do. Version 1 hierarchies (freezer, pids, memory) are used
only where the Starter's own group is the root of the hierarchy: groups below the root belong to others, v1 knows no delegation.

    <base>/rmgr-<node>-<guid>/<slot>/main          the spawner and its commands
                                          work     all that follow: w<n> of a Python worker, c<seq> of an isolated command

`work/cgroup.freeze` stays the Starter's, and no process can leave `work`: a user cannot move processes into `main`.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rmgr.runner.host.contain import WORK

_TIDY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupConfig:
    """Where control groups are made. root: a delegated cgroup v2 directory; "" = detected."""

    root: str = ""


class SlotCgroup:
    """Control groups of one slot."""

    def __init__(self, name: str, unified: Path | None, v1: dict[str, Path], *, has_memory: bool, pids_limit: int) -> None:
        self._unified = unified / name if unified is not None else None
        self._v1 = {controller: base / name for controller, base in v1.items()}
        self._has_memory = has_memory
        for path in self._all():
            path.mkdir(exist_ok=True)
        if self._unified is not None:
            for below in ("main", WORK):
                (self._unified / below).mkdir(exist_ok=True)
            for above in (self._unified, self._unified / WORK) if has_memory else ():
                _write(above / "cgroup.subtree_control", "+memory")
        self.limits_pids = False  #: whether the kernel counts the processes of the slot
        for limited in (self._unified, self._v1.get("pids")):
            if limited is not None and pids_limit and (limited / "pids.max").exists():
                self.limits_pids |= _write(limited / "pids.max", str(pids_limit))

    def _all(self) -> list[Path]:
        return ([self._unified] if self._unified is not None else []) + list(self._v1.values())

    def add(self, pid: int) -> None:
        """Moves a spawner into the groups, before it has started anything. Raises: OSError."""
        for door in self.doors:
            _write(Path(door), str(pid))

    @property
    def doors(self) -> tuple[str, ...]:
        """Files to which a spawner's pid is written, to move it into the groups."""
        return tuple(str((path / "main" if path is self._unified else path) / "cgroup.procs") for path in self._all())

    def give(self, uid: int, gid: int) -> None:
        """Lets a user make groups below these and move processes among them; the limits here stay root's."""
        for path in self._all():
            own = path if path is not self._unified else path / WORK
            for entry in (path / "cgroup.procs", path / "cgroup.kill", own, own / "cgroup.procs", own / "cgroup.subtree_control"):
                if entry.exists():
                    os.chown(entry, uid, gid)

    @property
    def unified(self) -> str:
        """The slot's version 2 directory, or "" if none."""
        return str(self._unified or "")

    @property
    def freeze_file(self) -> str:
        """File that stops all workers and isolated commands of the slot, but not its spawner; "" if none."""
        found = self._unified / WORK / "cgroup.freeze" if self._unified is not None else None
        return str(found) if found is not None and found.exists() else ""

    @property
    def has_memory(self) -> bool:
        """Whether the slot's version 2 children can limit memory."""
        return self._has_memory

    def processor_s(self, group: str) -> float:
        """Returns the processor time (s) of all processes ever in one of its groups (`w<n>`); 0 where the kernel does not count."""
        found = _read(self._unified / WORK / group / "cpu.stat") if self._unified is not None else ""
        return int(found.split()[1]) / 1e6 if found.startswith("usage_usec ") else 0.0

    def members(self, group: str) -> list[int]:
        """Returns the processes in one of its groups, including groups that a user has made below it."""
        found = os.walk(self._unified / WORK / group) if self._unified is not None else ()
        return [int(pid) for directory, _, _ in found for pid in _read(Path(directory) / "cgroup.procs").split()]

    def v1(self, controller: str) -> str:
        """Returns the slot's directory in a version 1 hierarchy, or "" if none."""
        return str(self._v1.get(controller, ""))

    def kill(self) -> None:
        """Kills every process in the groups and waits until they are empty, at most a second each."""
        for path in self._all():
            kill_group(path)

    def close(self) -> None:
        """Removes the directories; busy ones are left for `Cgroups.close`."""
        for path in self._all():
            remove_group(path, wait_s=0.0)


class Cgroups:
    """Control groups of one NodeRunner; `Cgroups.open` returns None where none can be made."""

    def __init__(self, unified: Path | None, v1: dict[str, Path], *, has_memory: bool) -> None:
        self._unified = unified
        self._v1 = v1
        self._has_memory = has_memory

    @classmethod
    def open(cls, config: CgroupConfig, name: str) -> Cgroups | None:
        """Makes `rmgr-<name>` in every usable hierarchy. Cost: about a millisecond."""
        name = "rmgr-" + "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        unified: Path | None = None
        has_memory = False
        mount, own = _unified_place()
        base = Path(config.root) if config.root else (mount / own.lstrip("/") if mount is not None else None)
        if base is not None and (made := _make(base / name)):
            if (made / "cgroup.kill").exists():
                unified = made
                wanted: list[str] = [c for c in ("memory", "pids") if c in _read(base / "cgroup.controllers").split()]
                has_memory = bool(wanted) and _enable(base, made, wanted) and "memory" in wanted
            else:
                made.rmdir()
        v1 = {}
        for controller in ("freezer", "memory", "pids"):
            place = _v1_place(controller)
            if place is None or (controller == "freezer" and unified is not None):
                continue
            made_v1 = _make(place / name)
            if made_v1 is not None:
                v1[controller] = made_v1
        return cls(unified, v1, has_memory=has_memory) if unified is not None or v1 else None

    @property
    def directories(self) -> list[str]:
        """Directories that were made; they are recorded for the next incarnation."""
        return [str(path) for path in ([self._unified] if self._unified is not None else []) + list(self._v1.values())]

    @property
    def can_freeze(self) -> bool:
        """Whether slots have a `freeze_file`."""
        return self._unified is not None and (self._unified / "cgroup.freeze").exists()

    def slot(self, name: str, *, pids_limit: int) -> SlotCgroup:
        """Makes the groups of one slot."""
        return SlotCgroup(name, self._unified, self._v1, has_memory=self._has_memory, pids_limit=pids_limit)

    def close(self) -> None:
        """Removes everything made, waiting for dying processes."""
        for path in self.directories:
            remove_group(Path(path), wait_s=_TIDY_S)


def kill_group(path: Path, *, wait_s: float = _TIDY_S) -> int:
    """Kills every process below `path`, all at once where the system can; returns how many it saw, 0 if `path` is absent."""
    seen = len(members(path))
    if not seen:
        return 0
    if (path / "cgroup.kill").exists() and _write(path / "cgroup.kill", "1"):
        pass
    elif (path / "freezer.state").exists():
        for group in _below(path):
            _write(group / "freezer.state", "FROZEN")
        _signal(members(path))
        for group in reversed(_below(path)):
            _write(group / "freezer.state", "THAWED")
    deadline = time.monotonic() + wait_s
    while pids := members(path):
        if not (path / "cgroup.kill").exists():
            _signal(pids)
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    return seen


def remove_group(path: Path, *, wait_s: float) -> bool:
    """Removes `path` and the groups below it; returns False if a process is still in them after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        for group in reversed(_below(path)):
            try:
                group.rmdir()
            except OSError:
                break
        if not path.exists():
            return True
        if time.monotonic() >= deadline:
            return False
        kill_group(path, wait_s=0.1)
        time.sleep(0.01)


def members(path: Path) -> list[int]:
    """Returns the pids below `path`."""
    return [int(pid) for group in _below(path) for pid in _read(group / "cgroup.procs").split()]


def _below(path: Path) -> list[Path]:
    """Returns `path` and all groups below it, parents first."""
    return [Path(root) for root, _, _ in os.walk(path)]


def _signal(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _enable(base: Path, made: Path, controllers: list[str]) -> bool:
    """Enables `controllers` below `made`. A group with processes cannot do that, so this process moves into a leaf."""
    wanted = " ".join(f"+{controller}" for controller in controllers)
    if not _write(base / "cgroup.subtree_control", wanted):
        if _read(base / "cgroup.procs").split() != [str(os.getpid())]:
            return False  # other processes live here: the group is not ours alone
        leaf = _make(base / "rmgr-daemon")
        if leaf is None or not _write(leaf / "cgroup.procs", str(os.getpid())) or not _write(base / "cgroup.subtree_control", wanted):
            return False
    return _write(made / "cgroup.subtree_control", wanted)


def _make(path: Path) -> Path | None:
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return None
    return path


def _mounts() -> list[tuple[str, str, str]]:
    """Returns (mount point, type, super options) of each cgroup hierarchy."""
    found = []
    for line in _read(Path("/proc/self/mountinfo")).split("\n"):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if kind and kind[0].startswith("cgroup"):
            found.append((fields[4].replace("\\040", " "), kind[0], kind[2] if len(kind) > 2 else ""))
    return found


def _own_places() -> dict[str, str]:
    """Returns this process's group by controller; "" stands for version 2."""
    places = {}
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            places[controller] = path
    return places


def _unified_place() -> tuple[Path | None, str]:
    mount = next((Path(point) for point, kind, _ in _mounts() if kind == "cgroup2"), None)
    return mount, _own_places().get("", "/")


def _v1_place(controller: str) -> Path | None:
    if _own_places().get(controller) != "/":
        return None
    return next((Path(point) for point, kind, options in _mounts() if kind == "cgroup" and controller in options.split(",")), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write(path: Path, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
