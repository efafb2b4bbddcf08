"""Records a cluster on one machine: its processes by pid and start time, and where clients find it; and ends all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

from rmgr.adapters.host.leftovers import born
from rmgr.config import dev_file
from rmgr.errors import UNREADABLE_TEXT

_STATE = "cluster.json"
#: Role of the process that restarts the others.
KEEPER = "keeper"
#: How long processes of a role may take to end although the time for all is over (s): who is killed leaves its session behind.
_AT_LEAST_S = 3.0
#: How often the ends of processes are looked for (s).
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class DevProcess:
    """A process of the cluster. started, born: when it began, which with the pid makes it unmistakable.

    started: seconds since 1970, and moves when the machine's clock is set. born: by the kernel (`leftovers.born`), "" = not known.
    """

    role: str
    id: str
    pid: int
    started: float
    born: str = ""

    @classmethod
    def of(cls, role: str, name: str, pid: int) -> Self:
        """A process that runs. Raises psutil.NoSuchProcess."""
        return cls(role=role, id=name, pid=pid, started=psutil.Process(pid).create_time(), born=born(pid) or "")

    def find(self) -> psutil.Process | None:
        """The process, None when it is gone (or its pid belongs to another one now)."""
        try:
            process = psutil.Process(self.pid)
            same = self.born == born(self.pid) if self.born else abs(process.create_time() - self.started) < 1.0
            same = same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if same else None

    @property
    def state(self) -> str:
        """`running`, `stopped` (SIGSTOP) or `dead`."""
        process = self.find()
        if process is None:
            return "dead"
        with contextlib.suppress(psutil.NoSuchProcess):
            return "stopped" if process.status() == psutil.STATUS_STOPPED else "running"
        return "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevState:
    """Content of `cluster.json`."""

    directory: str
    zookeeper: str
    store: str
    session_timeout_s: float
    security: str = ""  #: the bundle of who runs it; "" = an open cluster
    zookeeper_tls: bool = False
    gateway: str = ""  #: through which calls go to servers; "" = there is none
    processes: tuple[DevProcess, ...] = ()

    @property
    def is_running(self) -> bool:
        """Any of its processes lives."""
        return any(process.find() is not None for process in self.processes)


def default_directory() -> Path:
    """Where `rmgr dev` keeps its cluster unless told otherwise."""
    return dev_file({"HOME": os.environ.get("HOME") or str(Path.home())}).parent / "dev"


def read_state(directory: Path) -> DevState | None:
    """The recorded state of the cluster in `directory`, None when there is none."""
    try:
        document = json.loads((directory / _STATE).read_text())
        processes = tuple(DevProcess(**process) for process in document.pop("processes"))
        return DevState(**document, processes=processes)
    except (OSError, *UNREADABLE_TEXT, KeyError, TypeError, AttributeError):
        return None


def write_state(state: DevState) -> None:
    """Replaces `cluster.json` in one step."""
    path = Path(state.directory) / _STATE
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(state), indent=1))
    draft.replace(path)


def advertise(state: DevState) -> Path:
    """Makes this the cluster that clients find without any option; returns the file.

    The cluster counts as running while its keeper or any of its ZooKeeper servers does, whose pids are in it.
    """
    path = dev_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pids = [process.pid for process in state.processes if process.role in {"zookeeper", KEEPER}]
    text = (
        f"[dev]\npids = {json.dumps(pids)}\ndirectory = {json.dumps(state.directory)}\n\n[cluster]\nzk = {json.dumps(state.zookeeper)}\n"
        f"store = {json.dumps(state.store)}\nsession_timeout_s = {state.session_timeout_s}\n"
        f"{f'gateway = {json.dumps(state.gateway)}' if state.gateway else ''}\n"
        f"[security]\ndir = {json.dumps(state.security)}\nzookeeper_tls = {json.dumps(state.zookeeper_tls)}\n"
    )
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)
    return path


def is_advertised(state: DevState) -> bool:
    """Clients find this cluster without any option."""
    with contextlib.suppress(OSError):
        return f"directory = {json.dumps(state.directory)}\n" in dev_file().read_text()
    return False


def forget(state: DevState) -> None:
    """Takes back what `advertise` wrote, if it was for this cluster."""
    path = dev_file()
    if is_advertised(state):
        path.unlink(missing_ok=True)


def stop_processes(state: DevState, *, timeout_s: float = 20.0) -> list[DevProcess]:
    """SIGTERM by role (servers, Starters, WatchDogs, then ZooKeeper and Cassandra), SIGKILL after the deadline.

    The keeper goes first, and what it has started meanwhile ends with the rest. Returns what had to be killed.
    """
    end = time.monotonic() + timeout_s
    killed: list[DevProcess] = []
    for roles in ((KEEPER,), ("server",), ("starter", "submitter"), ("watchdog",), ("zookeeper", "cassandra")):
        group = [(process, found) for process in state.processes if process.role in roles and (found := process.find()) is not None]
        for _, found in group:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.send_signal(signal.SIGCONT)
                found.terminate()
        alive = _await_ends([found for _, found in group], timeout_s=max(_AT_LEAST_S, end - time.monotonic()))
        for found in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.kill()
        killed += [process for process, found in group if found in alive]
        _await_ends(alive, timeout_s=5.0)
        if group and roles == (KEEPER,):
            state = read_state(Path(state.directory)) or state
    return killed


def kill_processes(state: DevState, *, timeout_s: float = 20.0) -> None:
    """SIGKILL for all of them and their descendants; returns when they are gone, or after `timeout_s`."""
    found = [process for entry in state.processes if (process := entry.find()) is not None]
    for process in tuple(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _await_ends(found, timeout_s=timeout_s)


def _await_ends(processes: list[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Those that still run after `timeout_s`.

    A zombie has ended. Its parent may reap it late: the first process of some machines looks every few seconds, that of many
    containers never does.
    """
    end = time.monotonic() + timeout_s
    while processes := [process for process in processes if _runs(process)]:
        if time.monotonic() >= end:
            break
        time.sleep(_LOOK_S)
    return processes


def _runs(process: psutil.Process) -> bool:
    """It may still hold ports and files: those of a zombie are held as long as other threads of it end."""
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False
