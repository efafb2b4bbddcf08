"""A job's directories for its checkpoints: made, lent again and removed here, reached on its other nodes through their Starters.

They also hold the messages to and from the program. A helper stores the files of its directory itself and answers with the key of their
list; the head makes one checkpoint from all lists.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from rmgr.adapters.host.accounts import Account, acting, open_regular, uid_of
from rmgr.adapters.rpc.ranks import Peers, Step
from rmgr.checkpoint import CONTROL, NUMBER, REQUEST, SAVED, STOP
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.checkpoint import files
from rmgr.daemons.starter.checkpoint.files import unpack
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.io import on_thread
from rmgr.daemons.starter.execution.holds import CHECKPOINTS, HeldParts
from rmgr.daemons.starter.staging.outputs import charged
from rmgr.errors import DataLost, NotFound, PermissionDenied, RmgrError, StateConflict, StoreUnavailable, Unavailable
from rmgr.model.block import run_label
from rmgr.model.node import NodeRecord
from rmgr.procedures.bootstrap import store_problem
from rmgr.procedures.bounded import row_of
from rmgr.runner.host.files import blind_ns, marks_of, remove_tree
from rmgr.runner.ranks import ranks
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

T = TypeVar("T")
#: Most checkpoints copied at once by one process.
_COPIES_AT_ONCE = threading.BoundedSemaphore(3)
#: A directory that was not needed for this long is removed; at most so many of a kind are kept.
IDLE_S, MOST = 1.0, 64
#: How long another Starter may take for quick steps, and for files.
_QUICK_S, _LONG_S = 20.0, 1800.0
#: How long a silent node is asked again, and the pause.
_PATIENCE_S, _PAUSE_S = 20.0, 0.5
#: Most directories of one job used at once.
_NODES_AT_ONCE = 8
#: Programs that forward SIGUSR1 to their children, by the names that the kernel shows.
_LAUNCHERS = frozenset(
    {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted", "hydra_pmi_proxy", "hydra_bstrap_pr", "mpiexec.hydra", "srun"}
)
#: The same for rmgr: `rmgr run` and `rmgr agent` of jobs.
_RANK_CLIENT = b"rmgr.runner.ranks.client"
#: Signals that few programs catch, and that bash catches with all others that would end it; most bytes of a script that are looked at.
_BASH_CATCHES, _SCRIPT_BYTES = (signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ, signal.SIGUSR2), 1 << 20
#: How a script names SIGUSR1: bash takes it in small letters, and as a number behind what the trap does, too. A word `trap` begins another
#: trap, else a line of nothing but this word would take its length squared: for a script of a megabyte an hour, in which no thread runs.
_NAMES_USR1 = re.compile(
    rb"""usr1|\b(?-i:trap)\s+(?:--\s+)?(?:'[^']*'|"(?:[^"\\]|\\.)*"|[^\s'"]+)(?:[ \t]+(?!(?-i:trap)\b)\w+)*?[ \t]+%d\b""" % signal.SIGUSR1,
    re.IGNORECASE,
)
#: How long a process must have had a handler for SIGUSR1.
_SETTLED_S = 0.1
_KILL_ROUNDS, _KILL_PAUSE_S = 200, 0.01
#: Result of `take` for directories without files.
NOTHING = "nothing was saved: its checkpoint directory has no files"


class JobDirectories:
    """The directories of jobs whose script one node runs.

    Args: directory: contains a directory for each job.
    """

    def __init__(self, node: NodeAgent, directory: Path) -> None:
        self._node = node
        self._shared = node.shared
        self._directory = directory
        self._own: dict[ClaimedBlock, LocalPart] = {}
        self._places: dict[ClaimedBlock, Path] = {}
        self._pool = DirectoryPool(node.shared.after, self._remove)
        self._untouched = Untouched()

    def own_part(self, block: ClaimedBlock) -> LocalPart:
        """Returns its directory on this node."""
        part = self._own.get(block)
        if part is None:
            key = block.key
            part = self._own[block] = LocalPart(
                node=self._node.name,
                directory=self.make(block),
                account=block.info.account,
                store=charged(self._shared.io.store, self._shared.charge_of(block.info.record.user)),
                sub=key.submission,
                index=key.first,
                attempt=key.attempt,
                seals=self._shared.seals,
            )
        return part

    def parts(self, block: ClaimedBlock, is_over: Callable[[], bool]) -> list[JobDirectory]:
        """Returns all its directories, this node's first."""
        found: list[JobDirectory] = [self.own_part(block)]
        allocation, peers, key = block.data.allocation, self._shared.peers, block.key
        for helper, _ in allocation.helpers if allocation is not None else ():
            found.append(
                RemotePart(
                    node=helper,
                    hold=run_label(key.submission, key.first, key.attempt),
                    peers=peers,
                    coordinator=self._shared.coordinator,
                    store=charged(self._shared.io.store, self._shared.charge_of(block.info.record.user)),
                    is_over=is_over,
                )
            )
        return found

    def background(self, job: Callable[[], T], *, copies: bool = False) -> Future[T]:
        """Runs `job` on a thread of its own. copies: it moves files, so only a few run at once."""

        def run() -> T:
            with _COPIES_AT_ONCE if copies else nullcontext():
                return job()

        return on_thread(run, "checkpoint")

    def place_of(self, block: ClaimedBlock) -> Path | None:
        """Returns its directory here, None if absent."""
        return self._places.get(block)

    def make(self, block: ClaimedBlock) -> Path:
        """Returns its directory here, made the first time. Raises: OSError. Cost: a directory."""
        place = self._places.get(block)
        if place is None:
            place = self._places[block] = self._pool.take(_uid(block)) or self._make_place(block)
            self._untouched.lent(place)
        return place

    def forget_lost(self) -> None:
        """Has lost directories made again for jobs that have not started."""
        self._pool.forget_lost()
        for block in [block for block, place in self._places.items() if block.ready and not place.is_dir()]:
            self._untouched.forget(self._places.pop(block))

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is over or no longer the node's own; its directory is lent again if unused, else removed."""
        was_asked = self._own.pop(block, None) is not None
        place = self._places.pop(block, None)
        if place is not None and not was_asked and self._untouched.is_as_made(place):
            self._pool.give(_uid(block), place)
        elif place is not None:
            try:
                self._remove(place)
            except OSError:
                self._shared.io.run(lambda _store: remove_tree(place), lambda _result: None)

    def _remove(self, place: Path) -> None:
        self._untouched.forget(place)
        place.rmdir()

    def _make_place(self, block: ClaimedBlock) -> Path:
        key = block.key
        place = self._directory / f"saved-{key.submission}_{key.first}.{key.attempt}"
        if os.path.lexists(place):
            remove_tree(place)
        self._shared.home.check()
        place.mkdir(mode=0o700)
        if block.info.account is not None:
            os.lchown(place, block.info.account.uid, block.info.account.gid)
        self._untouched.made(place)
        return place


def _uid(block: ClaimedBlock) -> int:
    """Returns the owner of its directory."""
    return block.info.account.uid if block.info.account is not None else os.getuid()


# -- on one node -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """A request to save. number: as the program sees it. end_s: until when it may answer (monotonic)."""

    number: int
    stop: bool
    end_s: float

    def left_us(self) -> int:
        """Returns how long it may still take to answer: nodes have different clocks."""
        return max(0, round((self.end_s - machine.monotonic()) * 1e6))


@dataclass(slots=True, kw_only=True, eq=False)
class LocalPart:
    """The directory of a job on a node of this Starter. All methods may raise OSError and errors of `rmgr.errors`.

    marker: of the slot that runs the job here ("" = none yet). spare: processes with the marker that are not the job's. ends: `collect`
    kills the job's remaining processes (on the head its spawner has done so). written: pieces of this attempt in the store. number: of
    the last request. told: processes that got its signal. lacks: what the last `collect` left out, for people.
    """

    node: str
    directory: Path
    account: Account | None
    store: Store
    sub: int
    index: int
    attempt: int
    marker: str = ""
    spare: Sequence[int] = ()
    ends: bool = False
    written: set[str] = field(default_factory=set)
    number: int = 0
    told: set[int] = field(default_factory=set)
    lacks: str = ""
    copying: threading.Lock = field(default_factory=threading.Lock)
    seals: files.Seals = files.OPEN

    def measure(self) -> int:
        """Returns the bytes of its files. Raises: PermissionError for an unreadable one."""
        listing = files.scan(self.directory, self.account)
        if listing.closed:  # better known now than after the job has ended
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), listing.closed[0])
        return listing.size_bytes

    def ask(self, asked: SaveRequest) -> None:
        """Tells each process there once, even if called several times."""
        if asked.number != self.number:
            write_request(self.directory, self.account, number=asked.number, stop=asked.stop, left_us=asked.left_us())
            self.number = asked.number
            self.told.clear()
        if self.marker:
            self.told.update(notify(self.marker, self.account, (*self.spare, *self.told)))

    def collect(self, *, stop: bool, max_bytes: int) -> tuple[files.FileEntry, ...]:
        """Stores its content. stop: ends all processes there first; otherwise files must not change meanwhile (StateConflict)."""
        if stop and self.ends and self.marker and not end_all(self.marker, self.account, self.spare):
            raise StateConflict(f"processes of the job on node {self.node} do not end")
        before = files.scan(self.directory, self.account)
        put = files.piece_writer(self.store, self.sub, self.index, self.attempt, self.written)
        try:
            packed = files.pack(self.directory, self.account, before, put, max_bytes=max_bytes)
        except FileNotFoundError as error:
            raise StateConflict(f"{error.filename} went while the files were copied") from None
        if not stop and files.scan(self.directory, self.account).entries != before.entries:
            raise StateConflict("the files changed while they were copied")
        self.lacks = files.missing(before)
        return packed

    def restore(self, manifest: files.Manifest, _key: str) -> None:
        """Replaces its content with a checkpoint. Raises: DataLost."""
        files.clear(self.directory, self.account)
        try:
            unpack(manifest.files, self.directory, self.account, files.piece_reader(self.store, manifest))
        except DataLost:
            files.clear(self.directory, self.account)
            raise


@dataclass(slots=True, kw_only=True, eq=False)
class RemotePart:
    """The same on another node. hold: the job's name below /holds. is_over: returns whether the result is not needed any more. lacks: as
    far as known here."""

    node: str
    hold: str
    peers: Peers
    coordinator: Coordinator
    store: Store
    is_over: Callable[[], bool] = lambda: False
    lacks: str = ""

    def measure(self) -> int:
        return self.stepped(Step(step="measure"))[0]

    def ask(self, asked: SaveRequest) -> None:
        self.stepped(Step(step="ask", number=asked.number, stop=asked.stop, left_us=asked.left_us()))

    def collect(self, *, stop: bool, max_bytes: int) -> tuple[files.FileEntry, ...]:
        _, row = self.stepped(Step(step="collect", stop=stop, max_bytes=max_bytes), timeout_s=_LONG_S)
        data = row_of(self.store, row, files.MOST_LIST_BYTES)
        if data is None or hashlib.sha256(data).hexdigest() != row.rpartition("/")[2]:
            raise DataLost(f"the list of files of node {self.node} is not in the data store, or not what that node has stored")
        return files.decode_files(data)

    def restore(self, _manifest: files.Manifest, key: str) -> None:
        self.stepped(Step(step="restore", row=key), timeout_s=_LONG_S)

    def stepped(self, step: Step, *, timeout_s: float = _QUICK_S) -> tuple[int, str]:
        end_s = machine.monotonic() + _PATIENCE_S
        while True:
            try:
                return self.peers.checkpoint(self._endpoint(), self.node, self.hold, step, timeout_s=timeout_s)
            except Unavailable:
                if machine.monotonic() > end_s or self.is_over():
                    raise
                machine.sleep(_PAUSE_S)

    def _endpoint(self) -> str:
        found = self.coordinator.get(paths.node(self.node)).result(_QUICK_S)
        if found is None:
            raise NotFound(f"there is no node {self.node} any more")
        return decode_record(found.data, NodeRecord, self.node).endpoint


#: The directory of a job on one node.
JobDirectory: TypeAlias = LocalPart | RemotePart


def answer(part: LocalPart, step: Step) -> tuple[int, str]:
    """Carries out a step for the head's Starter. Raises: as `LocalPart`; NotFound for a step that this release does not know."""
    match step.step:
        case "measure":
            return part.measure(), ""
        case "ask":
            part.ask(SaveRequest(number=step.number, stop=step.stop, end_s=machine.monotonic() + step.left_us / 1e6))
        case "collect":
            listed = files.encode_files(part.collect(stop=step.stop, max_bytes=step.max_bytes))
            digest = hashlib.sha256(listed).hexdigest()
            part.store.put(keys.checkpoint_piece(part.sub, part.index, part.attempt, digest), listed)
            return len(listed), keys.checkpoint_piece(part.sub, part.index, part.attempt, digest)
        case "restore":
            saved = keys.parse_checkpoint(step.row)
            if saved is None or (saved.sub, saved.index) != (part.sub, part.index):
                raise NotFound(f"{step.row!r} is no checkpoint of this job")
            try:
                part.restore(files.read_checkpoint(part.store, saved, part.seals), step.row)
            except PermissionDenied as error:
                raise DataLost(error.message) from None
        case _:
            raise NotFound(f"this Starter does not know the step {step.step!r}")
    return 0, ""


def each(parts: Sequence[JobDirectory], call: Callable[[JobDirectory], T]) -> list[T]:
    """Calls `call` for every part, several at once; raises the first error after all have ended."""
    if len(parts) == 1:
        return [call(parts[0])]
    with machine.pool(min(_NODES_AT_ONCE, len(parts)), "checkpoint") as pool:
        futures = [pool.submit(call, part) for part in parts]
        return [future.result() for future in futures]


def sentence(error: Exception) -> str:
    """Describes an error for people."""
    if isinstance(error, RmgrError):
        return error.message
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {os.path.basename(str(error.filename))}' if error.filename else ''}"
    return f"{type(error).__name__}: {error}"


# -- requests to the program, and answers ----------------------------------------------------------------------------------
# Asks a job on one node to save its state, and reads its answer: files in `.rmgr`, and SIGUSR1 to processes that catch it. A job's
# processes are found by the mark of its slot in their environment, as leftovers are; only processes of its user get signals. Launchers are
# skipped: they would pass the signal on to ranks that do not know it, and die of it.


def write_request(directory: Path, account: Account | None, *, number: int, stop: bool, left_us: int) -> None:
    """Writes the request, completely or not at all: its program has `left_us`, by this node's wall clock. Raises: OSError."""
    told = json.dumps({"deadline": (machine.wall_us() + left_us) / 1e6, "number": number, "stop": stop}, separators=(",", ":"))
    control = directory / CONTROL
    with acting(account):
        control.mkdir(mode=0o700, exist_ok=True)
        _write_whole(control / NUMBER, f"{number}\n")
        if stop:
            _write_whole(control / STOP, "")
        else:
            (control / STOP).unlink(missing_ok=True)  # left by a withdrawn one
        _write_whole(control / REQUEST, told)


def answered(directory: Path, account: Account | None) -> int:
    """Returns the number of the last answered request, 0 if none. Never waits. Cost: opening a small file with the user's rights, 30 us."""
    try:
        with open(open_regular(str(directory / CONTROL / SAVED), account), "rb", buffering=0) as file:
            return int((file.read(32) or b"").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(text)
    part.replace(path)


# -- processes ---------------------------------------------------------------------------------------------------------------


def members(marker: str, account: Account | None, spare: Iterable[int] = ()) -> list[int]:
    """Returns processes of the user with a slot's mark, except `spare`. Cost: 15 us a process of the machine. Empty without /proc."""
    wanted = f"RMGR_SLOT={marker}".encode()
    kept = {os.getpid(), *spare}
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in kept:
                continue
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0") and (account is None or uid_of(int(name)) == account.uid):
                    found.append(int(name))
    return found


def notify(marker: str, account: Account | None, spare: Iterable[int] = ()) -> list[int]:
    """Sends SIGUSR1 to the job's processes that catch it; returns these. Takes `_SETTLED_S`.

    Between fork and exec a child has its parent's handlers; the signal would then kill the program that it becomes (an `mv` in the middle
    of a script). So only processes that have had a handler for a while are told.
    """
    kept = tuple(spare)
    if not (known := _catching(marker, account, kept)):
        return []
    machine.sleep(_SETTLED_S)
    told = []
    for pid in _catching(marker, account, kept):
        if pid in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)
                told.append(pid)
    return told


def _catching(marker: str, account: Account | None, spare: Iterable[int]) -> list[int]:
    found = [pid for pid in members(marker, account, spare) if catches(pid, signal.SIGUSR1)]
    return [pid for pid in found if not _is_launcher(pid) and not _would_end(pid)]


def end_all(marker: str, account: Account | None, spare: Iterable[int] = ()) -> bool:
    """Sends SIGKILL to the job's processes until there are none; False if some do not die (yet)."""
    kept = tuple(spare)
    for _ in range(_KILL_ROUNDS):
        left = [pid for pid in members(marker, account, kept) if not _is_dead(pid)]
        if not left:
            return True
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        machine.sleep(_KILL_PAUSE_S)
    return False


def catches(pid: int, signum: int) -> bool:
    """Returns whether the process has a handler for the signal."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def children_of(pid: int) -> list[int]:
    """Returns its direct children."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
        return [int(child) for child in file.read().split()]
    return []


def _would_end(pid: int) -> bool:
    """Returns whether the process is a bash that catches SIGUSR1 only to clean up before it ends by it.

    bash catches all signals that end it as soon as it has a trap for EXIT or reads with a time limit. Whether it has a trap of its own
    for SIGUSR1 then, too, only the text of its script says. Cost: 20 us for other programs.
    """
    try:
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "bash" or not all(catches(pid, signum) for signum in _BASH_CATCHES):
            return False
        texts = [Path(f"/proc/{pid}/cmdline").read_bytes()]
        with contextlib.suppress(OSError), open(open_regular(f"/proc/{pid}/fd/255", None), "rb", buffering=0) as script:
            texts.append(script.read(_SCRIPT_BYTES))  # what it runs, unless that is no file, or none that can be read
    except OSError:  # it has ended
        return True
    return not any(map(_NAMES_USR1.search, texts))


def _is_launcher(pid: int) -> bool:
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() in _LAUNCHERS:
            return True
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        runs = any(os.path.basename(word) == b"rmgr" and after in {b"run", b"agent"} for word, after in pairwise(words))
        return runs or any(_RANK_CLIENT in word for word in words)
    return False


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] in {b"Z", b"X"}
    except OSError:
        return True


# -- parts of jobs whose script runs elsewhere -----------------------------------------------------------------------------
# The part of a checkpoint on this node of a job whose script runs on another one, whose Starter asks for the steps.


class HelperParts:
    """Parts of checkpoints with which one node helps. Owner's thread only."""

    def __init__(self, node: NodeAgent, holds: HeldParts) -> None:
        self._node = node
        self._shared = node.shared
        self._holds = holds
        self._parts: dict[Path, LocalPart] = {}

    def get(self, name: str, *, resume: bool) -> LocalPart | None:
        """Returns the part of a hold, None if that has no cores here (any more). resume: continues its processes if they are stopped."""
        hold = self._holds.get(name)
        if hold is None or hold.place is None or hold.lane is None:
            return None
        if resume:
            self._holds.suspend(name, resume=True)
        places = {other.place for other in self._holds if other.place is not None}
        self._parts = {place: part for place, part in self._parts.items() if place in places}
        part = self._parts.get(hold.place)
        if part is None:
            part = self._parts[hold.place] = LocalPart(
                node=self._node.name,
                directory=hold.place / CHECKPOINTS,
                account=hold.info.account if hold.info is not None else None,
                store=charged(self._shared.io.store, self._shared.charge_of(hold.info.record.user if hold.info is not None else "")),
                sub=hold.submission,
                index=hold.index,
                attempt=hold.attempt,
                ends=True,
                seals=self._shared.seals,
            )
        slot = hold.lane.slot
        part.marker, part.spare = slot.marker, (slot.pid, *_servers(slot.pid, hold.place))
        return part


def _servers(spawner: int, place: Path) -> list[int]:
    """Returns the pids of the program that starts the ranks of a hold."""
    found = []
    wanted = [ranks.__file__.encode(), str(place).encode()]
    for pid in children_of(spawner):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-3:-1] == wanted:
                found.append(pid)
    return found


# -- reused directories ----------------------------------------------------------------------------------------------------
# Directories and links reused by the next job, since making and removing them costs a Starter more than a short job. The caller gives back
# only unchanged ones; they are removed when they were not needed for a moment.


class DirectoryPool:
    """Lends directories of one node again. after: calls later, in the pool's thread. remove: removes one; may raise OSError."""

    def __init__(self, after: Callable[[float, Callable[[], None]], object], remove: Callable[[Path], None]) -> None:
        self._after = after
        self._remove = remove
        self._free: dict[Hashable, list[Path]] = {}
        self._wanted_s = -math.inf
        self._is_looking = False

    def take(self, kind: Hashable) -> Path | None:
        """Returns a directory of that kind that still stands, None if there is none. Cost: a stat."""
        self._wanted_s = machine.monotonic()
        free = self._free.get(kind)
        while free:
            place = free.pop()
            if place.exists():  # a cleaner may have removed it, and the next job would fail
                return place
            self._remove_quietly(place)
        return None

    def give(self, kind: Hashable, place: Path) -> None:
        """Takes back a directory that is not needed now."""
        free = self._free.setdefault(kind, [])
        if len(free) >= MOST:
            self._remove_quietly(place)
            return
        free.append(place)
        if not self._is_looking:
            self._is_looking = True
            self._after(IDLE_S, self._look)

    def forget_lost(self) -> None:
        """Drops directories that someone else has removed."""
        for kind, places in self._free.items():
            self._free[kind] = [place for place in places if place.exists()]
            for place in set(places).difference(self._free[kind]):
                self._remove_quietly(place)

    def _look(self) -> None:
        left_s = self._wanted_s + IDLE_S - machine.monotonic()
        if left_s > 0:
            self._after(left_s, self._look)
            return
        self._is_looking = False
        for places in self._free.values():
            for place in places:
                self._remove_quietly(place)
        self._free.clear()

    def _remove_quietly(self, place: Path) -> None:
        with contextlib.suppress(OSError):  # whatever stands there now was not made here, and goes with the next Starter
            self._remove(place)


class Untouched:
    """Whether empty directories are unchanged since they were made. Cost: an lstat; and a listing for one that was lent at once."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[tuple[int, ...], float]] = {}  #: its marks, and when every later change alters them
        self._lent_s: dict[Path, float] = {}

    def made(self, place: Path) -> None:
        """Notes a directory just made, empty and with its owner. Raises: OSError."""
        marks = marks_of(place)
        self._made[place] = marks, machine.monotonic() + blind_ns(marks) / 1e9

    def lent(self, place: Path) -> None:
        """Notes that a job may change the directory from now on."""
        self._lent_s[place] = machine.monotonic()

    def is_as_made(self, place: Path) -> bool:
        """Returns whether the directory is still empty and unchanged."""
        made, lent_s = self._made.get(place), self._lent_s.get(place, -math.inf)
        try:
            return made is not None and marks_of(place) == made[0] and (lent_s > made[1] or not os.listdir(place))
        except OSError:
            return False

    def forget(self, place: Path) -> None:
        """Forgets a directory that is gone, or belongs to another owner."""
        self._made.pop(place, None)
        self._lent_s.pop(place, None)


# -- one checkpoint --------------------------------------------------------------------------------------------------------
# From the directories of a job to its rows in the store, and back. Called on a thread that may wait.


def check(parts: Sequence[JobDirectory], store: Store, limit: int) -> None:
    """Raises: ValueTooLarge naming both sizes, StoreUnavailable if nothing could be stored now."""
    wrong = store_problem(store)
    if wrong is not None:
        raise StoreUnavailable(f"the data store is not there: {wrong}")
    files.check_size(sum(each(parts, lambda part: part.measure())), limit)


def take(
    parts: Sequence[JobDirectory],
    store: Store,
    saved: Checkpoint,
    base: Sequence[files.FileEntry],
    *,
    stop: bool,
    limit: int,
    made_us: int,
    is_over: Callable[[], bool],
    seals: files.Seals = files.OPEN,
) -> str:
    """Makes one checkpoint and describes it. Raises: ValueTooLarge, StateConflict, StoreUnavailable, OSError, RmgrError."""
    found = files.united(each(parts, lambda part: part.collect(stop=stop, max_bytes=limit)), base)
    size = sum(entry.size for entry in found)
    files.check_size(size, limit)
    count = sum(not entry.is_dir for entry in found)
    lacks = "".join(f"; {part.lacks}" for part in parts if part.lacks)
    if not count:
        return NOTHING + lacks
    if is_over():
        raise StateConflict("the job has ended meanwhile")
    files.write_checkpoint(
        store,
        seals.seal(
            files.Manifest(
                sub=saved.sub,
                index=saved.index,
                attempt=saved.attempt,
                n=saved.n,
                made_us=made_us,
                nodes=tuple(part.node for part in parts),
                size_bytes=size,
                files=found,
            )
        ),
    )
    with contextlib.suppress(RmgrError):  # else the next checkpoint, or the submission's end, removes them
        files.prune_checkpoints(store, saved.sub, saved.index, saved.attempt, seals)
    return f"checkpoint {saved} stored: {count} file{'s' if count > 1 else ''}, {files.size_text(size)}{lacks}"


@dataclass(slots=True, kw_only=True)
class RestoredCheckpoint:
    """Result of a restore here. manifest: None if the job begins from the start. lost: sentences about unreadable checkpoints."""

    manifest: files.Manifest | None = None
    key: str = ""
    lost: list[str] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)


def newest(store: Store, part: LocalPart, sub: int, index: int, found: RestoredCheckpoint) -> RestoredCheckpoint:
    """Restores the newest checkpoint of a task that can be read, was sealed and is not in `found.bad`.

    Raises: StoreUnavailable, CoordinationUnavailable, OSError.
    """
    for checkpoint in files.checkpoints_of(store, sub, index):
        if checkpoint.key in found.bad:
            continue
        try:
            manifest = files.read_checkpoint(store, checkpoint, part.seals)
            part.restore(manifest, checkpoint.key)
        except PermissionDenied as error:
            found.bad.add(checkpoint.key)
            found.lost.append(f"checkpoint {checkpoint} is refused (UNTRUSTED): {error.message}")
            continue
        except DataLost as error:
            found.bad.add(checkpoint.key)
            found.lost.append(f"checkpoint {checkpoint} cannot be read (DATA_LOST): {error.message}")
            continue
        found.manifest, found.key = manifest, checkpoint.key
        return found
    files.clear(part.directory, part.account)
    found.manifest, found.key = None, ""
    return found
