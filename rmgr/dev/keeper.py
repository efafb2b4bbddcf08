"""The record of a cluster on one machine, how all of it ends, and its keeper, which restarts its dead processes.

`cluster.json` names each process by pid and start time, `dev.toml` tells clients where the cluster is. The keeper of a detached cluster
(`rmgr dev --detach`) is a small process: `python -m rmgr.dev.keeper DIR`. It restarts dead processes after a pause that
doubles each time, and is short again once the process has lived for a minute. A process killed by `rmgr dev kill` stays dead until
`rmgr dev start`. Only the keeper writes `cluster.json` while it lives; its own notes are in `keeper.json`, for `rmgr dev status`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from rmgr.adapters.host.leftovers import born, end_cgroups
from rmgr.config import dev_file, toml_value
from rmgr.errors import UNREADABLE_TEXT
from rmgr.model.units import format_duration

T = TypeVar("T")

#: Role of the process that restarts the others.
KEEPER = "keeper"
_STATE, _NOTES, _RECIPES, _DOWN = "cluster.json", "keeper.json", "recipes.json", "down"
#: Time that each role gets to end even if the time for all is over (s): a killed process leaves its session behind.
_AT_LEAST_S = 3.0
#: Interval of looks for ended processes (s), and of the keeper's looks at all processes.
_END_S, _LOOK_S = 0.01, 0.5
#: First and longest pause before a restart, and the life after which the pause is short again (s).
FIRST_S, LONGEST_S, SOUND_S = 1.0, 60.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DevProcess:
    """A process of the cluster. started, born: its start, which with the pid identifies it.

    started: seconds since 1970; changes when the machine's clock is set. born: from the kernel (`leftovers.born`), "" if unknown.
    """

    role: str
    id: str
    pid: int
    started: float
    born: str = ""

    @classmethod
    def of(cls, role: str, name: str, pid: int) -> Self:
        """Describes a running process. Raises psutil.NoSuchProcess."""
        return cls(role=role, id=name, pid=pid, started=psutil.Process(pid).create_time(), born=born(pid) or "")

    def find(self) -> psutil.Process | None:
        """Returns the process, None if it is gone (or its pid belongs to another one now)."""
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
    security: str = ""  #: the bundle of the cluster's user; "" in an open cluster
    zookeeper_tls: bool = False
    gateway: str = ""  #: endpoints of gateways for calls; "" if there are none
    processes: tuple[DevProcess, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether any of its processes lives."""
        return any(process.find() is not None for process in self.processes)


def default_directory() -> Path:
    """Returns the default directory of `rmgr dev`'s cluster."""
    return dev_file({"HOME": os.environ.get("HOME") or str(Path.home())}).parent / "dev"


def read_state(directory: Path) -> DevState | None:
    """Reads the state of the cluster in `directory`, None if there is none."""
    try:
        document = json.loads((directory / _STATE).read_text())
        processes = tuple(DevProcess(**process) for process in document.pop("processes"))
        return DevState(**document, processes=processes)
    except (OSError, *UNREADABLE_TEXT, KeyError, TypeError, AttributeError):
        return None


def write_state(state: DevState) -> None:
    """Replaces `cluster.json` in one step."""
    _replace(Path(state.directory) / _STATE, asdict(state))


def advertise(state: DevState) -> Path:
    """Makes this the cluster that clients find without any option; returns the file.

    The file contains the pids of the keeper and of ZooKeeper's servers: the cluster counts as running while any of them does.
    """
    path = dev_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pids = [process.pid for process in state.processes if process.role in {"zookeeper", KEEPER}]
    text = (
        f"[dev]\npids = {toml_value(pids)}\ndirectory = {toml_value(state.directory)}\n\n[cluster]\nzk = {toml_value(state.zookeeper)}\n"
        f"store = {toml_value(state.store)}\nsession_timeout_s = {state.session_timeout_s}\n"
        f"{f'gateway = {toml_value(state.gateway)}' if state.gateway else ''}\n"
        f"[security]\ndir = {toml_value(state.security)}\nzookeeper_tls = {toml_value(state.zookeeper_tls)}\n"
    )
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)
    return path


def is_advertised(state: DevState) -> bool:
    """Whether clients find this cluster without any option."""
    with contextlib.suppress(OSError):
        return f"directory = {toml_value(state.directory)}\n" in dev_file().read_text()
    return False


def forget(state: DevState) -> None:
    """Removes what `advertise` wrote, if it was for this cluster."""
    path = dev_file()
    if is_advertised(state):
        path.unlink(missing_ok=True)


def stop_processes(state: DevState, *, timeout_s: float = 20.0) -> list[DevProcess]:
    """Sends SIGTERM by role (servers, Starters, WatchDogs, then ZooKeeper and Cassandra), SIGKILL after the deadline.

    The keeper goes first; processes that it started meanwhile end with the rest. Returns what had to be killed.
    """
    end = time.monotonic() + timeout_s
    killed: list[DevProcess] = []
    for roles in ((KEEPER,), ("server",), ("starter", "submitter"), ("watchdog",), ("zookeeper", "cassandra")):
        group = [(process, found) for process in state.processes if process.role in roles and (found := process.find()) is not None]
        for _, found in group:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.send_signal(signal.SIGCONT)
                found.terminate()
        alive = await_ends([found for _, found in group], timeout_s=max(_AT_LEAST_S, end - time.monotonic()))
        for found in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.kill()
        now_killed = [process for process, found in group if found in alive]
        await_ends(alive, timeout_s=5.0)
        _end_cgroups(state, now_killed)
        killed += now_killed
        if group and roles == (KEEPER,):
            state = read_state(Path(state.directory)) or state
    return killed


def kill_processes(state: DevState, *, timeout_s: float = 20.0) -> None:
    """Sends SIGKILL to all processes and their descendants, and removes their control groups; returns then, or after `timeout_s`."""
    found = [process for entry in state.processes if (process := entry.find()) is not None]
    for process in tuple(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    await_ends(found, timeout_s=timeout_s)
    _end_cgroups(state, state.processes)


def _end_cgroups(state: DevState, killed: Sequence[DevProcess]) -> None:
    """Removes the control groups of killed Starters and servers, which nobody else removes unless they start again."""
    for process in killed:
        place = Path(state.directory) / "work" / process.id
        for run in (*place.glob("run"), *place.glob("*/run")):
            end_cgroups(run)


def await_ends(processes: list[psutil.Process], *, timeout_s: float) -> list[psutil.Process]:
    """Returns the processes that still run after `timeout_s`.

    A zombie counts as ended. Its parent may reap it late: the first process of some machines looks every few seconds, that of many
    containers never does.
    """
    end = time.monotonic() + timeout_s
    while processes := [process for process in processes if _runs(process)]:
        if time.monotonic() >= end:
            break
        time.sleep(_END_S)
    return processes


def _runs(process: psutil.Process) -> bool:
    """Whether it may still hold ports and files: a zombie does as long as other threads of it are ending."""
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


# -- how each process is started, and its fate ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Command that starts a process of the cluster. variables: added to the keeper's environment, without its RMGR_ variables."""

    argv: tuple[str, ...]
    cwd: str
    log: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the process. Raises OSError."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        Path(self.log).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Path(self.log).open("ab") as sink:
            return subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=inherited | dict(self.variables),
                cwd=self.cwd,
                start_new_session=True,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """Fate of one process. Times: seconds since 1970; died_at None: it never died; next_at None: no try is due."""

    restarts: int = 0
    died_at: float | None = None
    next_at: float | None = None
    problem: str = ""  #: why the last try failed


def write_recipes(directory: Path, recipes: Mapping[str, Recipe]) -> None:
    """Stores how each process of a new cluster is started; forgets the fates of the previous cluster's processes."""
    _replace(directory / _RECIPES, {name: asdict(recipe) for name, recipe in recipes.items()})
    (directory / _NOTES).unlink(missing_ok=True)
    for name in down(directory):
        (directory / _DOWN / name).unlink(missing_ok=True)


def read_recipes(directory: Path) -> dict[str, Recipe]:
    """Reads recipes by name of the process; {} if absent or unreadable."""
    return _read(directory / _RECIPES, lambda recipe: Recipe(**recipe | {"argv": tuple(recipe["argv"])}))


def read_fates(directory: Path) -> dict[str, Fate]:
    """Reads the keeper's notes by name of the process; {} if absent or unreadable."""
    return _read(directory / _NOTES, lambda fate: Fate(**fate))


def down(directory: Path) -> frozenset[str]:
    """Returns the processes that must stay dead."""
    try:
        return frozenset(os.listdir(directory / _DOWN))
    except OSError:
        return frozenset()


def keep_down(directory: Path, name: str, *, is_down: bool) -> None:
    """Sets whether a process must stay dead. Raises OSError."""
    mark = directory / _DOWN / name
    if is_down:
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    else:
        mark.unlink(missing_ok=True)


def started(directory: Path, name: str, recipe: Recipe, *, role: str) -> subprocess.Popen[bytes]:
    """Restarts a process and records it; a ZooKeeper is advertised anew. Raises OSError: then it does not run."""
    child = recipe.start()
    try:
        state = read_state(directory)
        if state is not None:
            entry = DevProcess.of(role, name, child.pid)
            state = replace(state, processes=tuple(entry if process.id == name else process for process in state.processes))
            write_state(state)
            if role == "zookeeper" and is_advertised(state):
                advertise(state)
    except BaseException:  # a full disk: the process would be unknown, and the next look would start a second one
        child.kill()
        child.wait()
        raise
    return child


class Keeper:
    """Looks after one cluster. clock: monotonic seconds."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._children: list[subprocess.Popen[bytes]] = []
        self._fates = read_fates(directory)
        self._pauses: dict[str, float] = {}
        self._due_s: dict[str, float] = {}  # when the next try of a dead process is due
        self._began_s: dict[str, float] = {}

    def look(self) -> bool:
        """Looks at all processes once, and starts what is due. Returns whether there is still a cluster."""
        state = read_state(self._directory)
        if state is None:
            return False
        self._children = [child for child in self._children if child.poll() is None]  # reaps children
        kept, recipes = down(self._directory), read_recipes(self._directory)
        before = dict(self._fates)
        for process in state.processes:
            if process.role == KEEPER or process.id not in recipes:
                continue
            if process.find() is not None:
                self._is_alive(process.id)
            elif process.id in kept:
                self._due_s.pop(process.id, None)
                died_at = self._fate(process.id).died_at
                self._note(process.id, died_at=time.time() if died_at is None else died_at, next_at=None)
            else:
                self._is_dead(process, recipes[process.id])
        if self._fates != before:
            _replace(self._directory / _NOTES, {name: asdict(fate) for name, fate in self._fates.items()})
        return True

    def _fate(self, name: str) -> Fate:
        return self._fates.get(name, Fate())

    def _note(self, name: str, **changes: object) -> None:
        self._fates[name] = replace(self._fate(name), **changes)  # type: ignore[arg-type]

    def _is_alive(self, name: str) -> None:
        now_s = self._clock()
        if now_s - self._began_s.setdefault(name, now_s) > SOUND_S:
            self._pauses.pop(name, None)

    def _is_dead(self, process: DevProcess, recipe: Recipe) -> None:
        now_s, name = self._clock(), process.id
        if name not in self._due_s:
            self._began_s.pop(name, None)
            pause_s = self._pauses.get(name, FIRST_S)
            self._pauses[name] = min(LONGEST_S, pause_s * 2)
            self._due_s[name] = now_s + pause_s
            self._note(name, died_at=time.time(), next_at=time.time() + pause_s)
            again = f"it is started again in {format_duration(pause_s)}"
            _say(f"{process.role} {name} (pid {process.pid}) has died; {again}; its log: {recipe.log}")
        if now_s < self._due_s[name]:
            return
        del self._due_s[name]
        try:
            child = started(self._directory, name, recipe, role=process.role)
        except OSError as error:
            self._note(name, problem=str(error), next_at=None)
            _say(f"{process.role} {name} cannot be started: {error}")
            return
        self._children.append(child)
        self._began_s[name] = now_s
        self._note(name, restarts=self._fate(name).restarts + 1, next_at=None, problem="")
        _say(f"{process.role} {name} was started again (pid {child.pid})")


def main(directory: Path) -> int:
    """Runs until SIGTERM, or until the cluster's directory is gone; the cluster's processes go on."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    keeper = Keeper(directory)
    while not ended.wait(_LOOK_S):
        try:
            if not keeper.look():
                return 0
        except (OSError, psutil.Error) as error:  # loop boundary: a full disk must not end the keeper
            _say(f"cannot look after the cluster now: {error}")
    return 0


def _say(text: str) -> None:
    """Writes one line to its log; skipped if the disk is full."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
        sys.stderr.flush()


def _read(path: Path, make: Callable[[dict[str, Any]], T]) -> dict[str, T]:
    with contextlib.suppress(OSError, *UNREADABLE_TEXT, KeyError, TypeError, AttributeError):
        return {name: make(told) for name, told in json.loads(path.read_text()).items()}
    return {}


def _replace(path: Path, document: object) -> None:
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(document, indent=1))
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
