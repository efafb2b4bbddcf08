"""`rmgr dev` and its subcommands: a whole cluster on this machine. Drawing only; the machinery is `dev/cluster.py`."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import Column, Layout, clock, emit, iso, paint, table
from rmgr.cli.session import Session, WorkEnded, command, command_group
from rmgr.cli.words.params import RESOURCE
from rmgr.config import dev_file
from rmgr.dev import keeper
from rmgr.errors import UNREADABLE_TEXT, NotFound, StateConflict, Unavailable
from rmgr.model.base import checked_resources
from rmgr.model.units import format_duration
from rmgr.runner.host import dispositions

if TYPE_CHECKING:
    from rmgr.dev.cluster import DevCluster

_DIR = click.option("--dir", "directory", metavar="DIR", type=click.Path(file_okay=False), help="directory of the cluster  [~/.rmgr/dev]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A process, and the notes of its keeper. kept_down: it was killed by `rmgr dev kill`."""

    process: keeper.DevProcess
    state: str
    fate: keeper.Fate
    kept_down: bool

    @property
    def next(self) -> str:
        """What happens next to a dead process."""
        if self.state != "dead":
            return ""
        if self.kept_down:
            return f"stays down: rmgr dev start {self.process.id}"
        if self.fate.next_at is None:
            return self.fate.problem
        message = f"started again in {format_duration(max(0.0, self.fate.next_at - time.time()))}"
        return f"{message} ({self.fate.problem})" if self.fate.problem else message

    @property
    def died(self) -> str:
        """When it last died, for people; "" if never."""
        return "" if self.fate.died_at is None else clock(int(self.fate.died_at * 1e6))


_ROLES = (
    ("zookeeper", "ZooKeeper"),
    ("cassandra", "Cassandra node"),
    ("watchdog", "WatchDog"),
    ("starter", "Starter"),
    ("submitter", "gateway"),
    ("server", "server"),
)
#: Roles that are not named when no process has them.
_RARE = frozenset({"cassandra", "submitter", "server"})

_COLUMNS = (
    Column(name="ROLE", text=lambda r: r.process.role),
    Column(name="ID", text=lambda r: r.process.id, is_id=True),
    Column(name="PID", text=lambda r: str(r.process.pid), order=lambda r: r.process.pid, right=True, is_id=True),
    Column(name="STATE", text=lambda r: r.state, state=True),
    Column(name="RESTARTS", text=lambda r: str(r.fate.restarts or ""), order=lambda r: r.fate.restarts, right=True),
    Column(name="DIED", text=lambda r: r.died),
    Column(name="NEXT", text=lambda r: r.next),
)


@command_group(
    "dev",
    invoke_without_command=True,
    subcommand_metavar="[status|stop|kill|start]",
    examples="""\
    rmgr dev                          3 Starters of 2 cores, 2 WatchDogs, 1 ZooKeeper, SQLite; Ctrl-C stops it
    rmgr dev --nodes 8 --cores 1
    rmgr dev --resource gpu=2         each Starter with two GPUs, which need not exist
    rmgr dev --servers 2              with a gateway and two servers of calls: rmgr functions; rmgr call echo hello
    rmgr dev --zookeepers 3           an ensemble, which survives the loss of one server
    rmgr dev --store cassandra        with a Cassandra node of its own instead of SQLite
    rmgr dev --detach                 goes on in the background, and restarts what dies; rmgr dev stop ends it
    rmgr dev kill n2                  SIGKILL; it stays dead until rmgr dev start n2
    rmgr dev --dir /tmp/second        a second cluster beside the first
    rmgr dev status
    RMGR_DEV_OPEN=1 rmgr dev          without credentials: an open cluster, on loopback""",
    exits="0 stopped, or healthy with --detach; 1 one runs already; 2 the cluster in DIR is of another kind; 5 a part is missing or failed",
)
@click.option("--nodes", type=click.IntRange(0, 200), default=3, show_default=True, help="Starters")
@click.option("--cores", type=click.IntRange(1, 1000), default=2, show_default=True, help="cores of each Starter")
@click.option("--resource", "resources", metavar="NAME=N", multiple=True, type=RESOURCE, help="countable resources of each Starter: gpu=2")
@click.option("--watchdogs", type=click.IntRange(0, 20), default=2, show_default=True, help="WatchDogs")
@click.option("--zookeepers", type=click.IntRange(1, 7), default=1, show_default=True, help="ZooKeeper servers")
@click.option("--servers", type=click.IntRange(0, 50), default=0, show_default=True, help="servers of calls, and a gateway for them")
@_DIR
@click.option("--detach", is_flag=True, help="return when the cluster is healthy and leave it running; what dies of it is restarted")
@click.option("--no-restart", is_flag=True, help="with --detach: do not restart processes that die")
def dev(
    session: Session, resources: tuple[tuple[str, int], ...], directory: str | None, detach: bool, no_restart: bool, **counts: Any
) -> None:
    """Runs a whole cluster on this machine: real ZooKeeper, WatchDogs and Starters, each a process of its own.

    Without a subcommand it starts one, waits until it is healthy, says what to type next and runs until Ctrl-C.
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        if directory is not None:
            ctx.meta["rmgr dev: directory"] = directory
        return
    from rmgr.dev.cluster import DevCluster
    where = Path(directory) if directory else keeper.default_directory()
    other = _find_advertised()
    if other is not None and directory is None:
        raise StateConflict(
            f"a cluster of yours runs in {other.directory} already",
            hint="stop it: rmgr dev stop   or start a second one: rmgr dev --dir DIR",
        )
    has = {"gpu": 0} | checked_resources(resources)  # no two Starters may offer the same real one
    options = [word for name, count in has.items() for word in ("--resource", f"{name}={count}")]
    made = DevCluster(where, store=session.store or "", starter_options=options, **counts)
    began, state, is_left = time.monotonic(), None, False
    with _signals_as_interrupt():
        try:
            state = made.start(deadline_s=session.timeout_s or 60.0, report=session.note)
            if detach and not no_restart:
                made.keep()
                state = made.state
            is_found = other is None
            if is_found:
                keeper.advertise(state)
            is_left = detach  # from here on commands find the cluster, and the process that started it may go
            _say_what_runs(session, state, is_found=is_found, detached=detach, seconds=time.monotonic() - began)
            if detach:
                return
            _watch(session, made)
        except KeyboardInterrupt:
            if is_left or state is None:
                raise
        except BaseException:  # e.g. the reader of the output has gone
            if state is not None and not is_left:
                with _ignoring_interrupts():
                    made.stop()
            raise
        session.note("stopping the cluster")
        with _ignoring_interrupts():
            made.stop()
    session.note(f"stopped; its data stay in {made.state.directory}")


@command(
    "status",
    group=dev,
    short_help="Show which of its processes run",
    examples="rmgr dev status\nrmgr dev status --dir /tmp/second --json",
    exits="0 all its processes run, 1 some do not or none runs",
)
@_DIR
def status(session: Session, directory: str | None) -> None:
    """Shows which processes a cluster on this machine has, and whether they run."""
    state = _find(directory)
    running = state is not None and state.is_running
    rows = _rows(state) if state else []
    if session.json:
        processes = [_shape(row) for row in rows]
        emit(
            {
                "running": running,
                "dir": state.directory if state else str(directory or ""),
                "zookeeper": state.zookeeper if state else None,
                "store": state.store if state else None,
                "security": state.security if state else None,
                "processes": processes,
            }
        )
    elif state is None or not running:
        sys.stdout.write("no cluster runs here\n")
        session.note("start one: rmgr dev --detach")
    else:
        sys.stdout.write(f"dir        {state.directory}\nzookeeper  {state.zookeeper}\nstore      {state.store}\n\n")
        table(rows, _COLUMNS, Layout())
    if not running or any(row.state == "dead" for row in rows):
        raise WorkEnded(1)


@command(
    "stop",
    group=dev,
    short_help="End all of its processes; its data stay",
    examples="rmgr dev stop\nrmgr dev stop --dir /tmp/second",
    exits="0 nothing of it runs any more, 3 there is no cluster in DIR",
)
@_DIR
def stop(session: Session, directory: str | None) -> None:
    """Stops the cluster started by `rmgr dev`: Starters first, ZooKeeper and Cassandra last. It keeps its data."""
    state = _find(directory)
    if state is None:
        if directory:
            raise NotFound(f"there is no cluster in {directory}", hint="rmgr dev status shows where one runs")
        session.answer({"dir": "", "stopped": False, "killed": []}, "no cluster of yours runs on this machine\n")
        return
    was_running = state.is_running
    killed = keeper.stop_processes(state, timeout_s=session.timeout_s or 20.0)
    keeper.forget(state)
    session.answer(
        {"dir": state.directory, "stopped": was_running, "killed": [process.id for process in killed]},
        f"stopped the cluster in {state.directory}\n" if was_running else f"the cluster in {state.directory} was not running\n",
        *(f"{process.role} {process.id} did not stop in time and was killed" for process in killed),
    )


@command(
    "kill",
    group=dev,
    short_help="send SIGKILL to one of its processes, which then stays dead",
    examples="rmgr dev kill n2\nrmgr dev kill w1 --dir /tmp/second",
    exits="0 it is dead, 3 there is no such process",
)
@click.argument("name", metavar="ID")
@_DIR
def kill(session: Session, name: str, directory: str | None) -> None:
    """Kills a process of the cluster (an ID of `rmgr dev status`), as a crash would, and keeps it from being restarted."""
    state, process = _process(name, directory)
    keeper.keep_down(Path(state.directory), name, is_down=True)  # before the kill: the keeper looks twice a second
    found = process.find()
    if found is not None:
        found.kill()
        found.wait(10.0)
    told = f"{process.role} {name} is dead and stays so: rmgr dev start {name}\n"
    session.answer({"id": name, "state": "dead", "pid": process.pid}, told)


@command(
    "start",
    group=dev,
    short_help="Start one of its processes that is dead",
    examples="rmgr dev start n2",
    exits="0 it runs, 3 there is no such process, 5 no cluster runs there, or it cannot be started",
)
@click.argument("name", metavar="ID")
@_DIR
def start(session: Session, name: str, directory: str | None) -> None:
    """Restarts a process of a running cluster that `rmgr dev kill` has killed, or that died."""
    state, process = _process(name, directory)
    where = Path(state.directory)
    if not state.is_running:
        raise Unavailable(f"the cluster in {where} does not run", hint=f"rmgr dev --detach --dir {where}")
    recipe = keeper.read_recipes(where).get(name)
    if recipe is None:
        raise NotFound(f"nobody has kept how {name} is started", hint=f"rmgr dev stop --dir {where}; rmgr dev --detach --dir {where}")
    keeper.keep_down(where, name, is_down=False)
    if process.find() is None and not any(each.role == keeper.KEEPER and each.find() for each in state.processes):
        keeper.started(where, name, recipe, role=process.role)
    end_s = time.monotonic() + (session.timeout_s or 90.0)
    while True:  # the keeper may be in a long pause
        now = next((each for each in (keeper.read_state(where) or state).processes if each.id == name), process)
        if now.find() is not None:
            session.answer({"id": name, "state": "running", "pid": now.pid}, f"{process.role} {name} runs (pid {now.pid})\n")
            return
        if time.monotonic() > end_s:
            raise Unavailable(f"{process.role} {name} has not been started", hint=f"its log: {recipe.log}; rmgr dev status")
        time.sleep(0.1)


def _process(name: str, directory: str | None) -> tuple[keeper.DevState, keeper.DevProcess]:
    """Returns a cluster and its process with this id. Raises NotFound."""
    state = _find(directory)
    if state is None:
        where = f"there is no cluster in {directory}" if directory else "no cluster of yours runs on this machine"
        raise NotFound(where, hint="start one: rmgr dev --detach" + (f" --dir {directory}" if directory else ""))
    for process in state.processes:
        if process.id == name:
            return state, process
    raise NotFound(f"the cluster has no process {name!r}", hint=f"it has {', '.join(process.id for process in state.processes)}")


def _rows(state: keeper.DevState) -> list[_Row]:
    where = Path(state.directory)
    fates, kept = keeper.read_fates(where), keeper.down(where)
    return [_Row(process=p, state=p.state, fate=fates.get(p.id, keeper.Fate()), kept_down=p.id in kept) for p in state.processes]


def _shape(row: _Row) -> dict[str, Any]:
    process, fate = row.process, row.fate
    died, due = (None if at is None else iso(int(at * 1e6)) for at in (fate.died_at, fate.next_at if row.state == "dead" else None))
    known = {"role": process.role, "id": process.id, "pid": process.pid, "state": row.state}
    return {**known, "restarts": fate.restarts, "died": died, "next_try": due, "kept_down": row.kept_down, "problem": fate.problem}


# -- drawing ------------------------------------------------------------------------------------------------------------------


def _say_what_runs(session: Session, state: keeper.DevState, *, is_found: bool, detached: bool, seconds: float) -> None:
    """Says what runs and what to type next."""
    if session.json:
        emit({"running": True, "dir": state.directory, "zookeeper": state.zookeeper, "store": state.store, "seconds": round(seconds, 3)})
        return
    roles = [process.role for process in state.processes]
    counts = ", ".join(
        f"{roles.count(role)} {name}{'s' if roles.count(role) != 1 else ''}"
        for role, name in _ROLES
        if role in roles or role not in _RARE
    )
    out = sys.stdout
    out.write(f"{paint('cluster is up', 'green', out)} after {format_duration(seconds)}: {counts}\n")
    out.write(f"  zookeeper  {state.zookeeper}\n  store      {state.store}\n")
    if state.gateway:
        out.write(f"  gateway    {state.gateway}\n")
    out.write(f"  directory  {state.directory}\n\n")
    if not is_found:
        out.write("another cluster of yours is the one that commands find by themselves; for this one, type\n")
        gateway = f" RMGR_GATEWAY='{state.gateway}'" if state.gateway else ""
        out.write(f"  export RMGR_ZK='{state.zookeeper}' RMGR_STORE='{state.store}' RMGR_SECURITY_DIR='{state.security}'{gateway}\n\n")
    out.write("now try, in another shell:\n" if not detached else "now try:\n")
    for line in (
        "rmgr status",
        "rmgr submit --wait -- echo hello",
        "rmgr submit --array 1-100 --progress -- sh -c 'sleep 0.2; echo $RMGR_ARRAY_INDEX'",
        "rmgr run -- sh -c 'for i in 1 2 3; do echo $i; sleep 1; done'",
        "rmgr jobs -a; rmgr tasks last; rmgr nodes",
        *(["rmgr servers; rmgr functions", "rmgr call echo hello --trace"] if state.gateway else []),
    ):
        out.write(f"  {paint(line, 'cyan', out)}\n")
    stop_it = f"rmgr dev stop --dir {state.directory}" if not is_found else "rmgr dev stop"
    kept = "; what dies of it is started again (rmgr dev status)" if "keeper" in roles else ""
    out.write(f"\n{stop_it} ends it{kept}\n" if detached else "\nCtrl-C stops it and leaves no process\n")
    out.flush()


def _watch(session: Session, cluster: DevCluster) -> None:
    """Says when a process dies, until Ctrl-C or until no process is left."""
    told: set[tuple[str, int]] = set()
    while True:
        for process in cluster.state.processes:
            state = process.state
            if state == "dead" and (process.id, process.pid) not in told:
                told.add((process.id, process.pid))
                session.note(f"{process.role} {process.id} (pid {process.pid}) has died; its log: {cluster.log_file(process.id)}")
        living = [process for process in cluster.state.processes if (process.id, process.pid) not in told]
        if not living:
            session.note("no process of the cluster is left")
            return
        time.sleep(0.5)


# -- finding ------------------------------------------------------------------------------------------------------------------


def _find_advertised() -> keeper.DevState | None:
    """Returns the running cluster that commands find by themselves."""
    with contextlib.suppress(OSError, KeyError, TypeError, *UNREADABLE_TEXT):
        directory = tomllib.loads(dev_file().read_text())["dev"]["directory"]
        state = keeper.read_state(Path(directory))
        return state if state is not None and state.is_running else None
    return None


def _find(directory: str | None) -> keeper.DevState | None:
    """Returns the cluster in `--dir`, else the advertised one, else the one in the default directory."""
    directory = directory or click.get_current_context().meta.get("rmgr dev: directory")
    if directory:
        return keeper.read_state(Path(directory).resolve())
    return _find_advertised() or keeper.read_state(keeper.default_directory())


@contextlib.contextmanager
def _handling(numbers: Sequence[int], handler: Any) -> Iterator[None]:
    """Handles these signals so meanwhile; does nothing outside of the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


def _signals_as_interrupt() -> contextlib.AbstractContextManager[None]:
    """Lets SIGTERM and SIGHUP (a closed terminal) stop the cluster as Ctrl-C does; under nohup it outlives the terminal."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        dispositions.begin(deaf_to=signal.valid_signals())  # Java of ZooKeeper and Cassandra inherits what is set here
    return _handling([signal.SIGTERM] if dispositions.is_deaf_to(signal.SIGHUP) else [signal.SIGTERM, signal.SIGHUP], interrupt)


def _ignoring_interrupts() -> contextlib.AbstractContextManager[None]:
    """Ignores an impatient Ctrl-C while stopping, which would leave processes behind."""
    return _handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)
