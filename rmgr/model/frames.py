"""Messages on a node: Starter <-> spawner (control socket) and Starter <-> Python worker (data socket).

Each is a frame (`model/stream.py`): a struct as array whose first element is its tag. Both ends run the same version of rmgr,
so fields may change freely; nothing here is stored.

`seq` names one attempt of one task on this node. The Starter's side assigns it, never 0, and it grows in the order
in which work is sent to one spawner or worker, so work is taken back as "everything after seq n".
Times named `_us` are microseconds, `started_us` since the epoch; `_ns` are CLOCK_BOOTTIME nanoseconds.
"""

from __future__ import annotations

import msgspec

from rmgr.model.states import Reason

#: Size above which arguments travel in a file that the frame names.
MAX_INLINE_PAYLOAD = 1024 * 1024
#: Size above which a result value travels in a spool file that the frame names.
MAX_INLINE_VALUE = 1024 * 1024
#: Most bytes per stream of a task's output that travel in the report of its end.
MAX_INLINE_OUTPUT = 4 * 1024
#: Most bytes of a function blob inside every batch that needs it; a larger one is a file.
MAX_INLINE_FUNCTION = 16 * 1024


class Output(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Result of one stream of a task's output.

    size: bytes that the task wrote. data: all of it, if small. path: else a file that now belongs to the receiver.
    dropped: bytes cut out of the middle of the file because of the cap (a marker line is in their place).
    """

    size: int = 0
    data: bytes = b""
    path: str = ""
    dropped: int = 0


NO_OUTPUT = Output()


class BatchShape(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Settings that all tasks of a batch share.

    limit_us: time limit of each task, 0 = none. grace_us: between SIGTERM and SIGKILL. memory_bytes: 0 = no limit.
    exclusive: killed when the lease ends. output_cap: bytes kept per stream. environ: RMGR_* beside those made from the
    ids (RMGR_NODELIST, RMGR_HOSTFILE, ...) and the user's.
    """

    submission: int = 0
    cores: int = 1
    limit_us: int = 0
    grace_us: int = 5_000_000
    memory_bytes: int = 0
    exclusive: bool = False
    output_cap: int = 64 * 1024 * 1024
    environ: dict[str, str] = {}


# -- Starter -> spawner -----------------------------------------------------------------------------------------------


class Setup(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=1):
    """First frame of a spawner's life.

    node: name of the node. directory: its own; exists, and the Starter removes it. cgroup: the slot's cgroup v2
    directory, "" = none; the spawner and its commands are in its child `main`, workers and isolated commands in
    children of their own. freezer, memory, pids: the same in v1 hierarchies, "" = none. has_memory: the v2 children can
    limit memory.
    """

    slot: int
    node: str
    directory: str
    cgroup: str = ""
    freezer: str = ""
    memory: str = ""
    pids: str = ""
    has_memory: bool = False
    lease_end_ns: int = 0


class StartWorker(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=2):
    """Forks a Python worker; answered by `WorkerForked` with its sockets, or `WorkerGone`.

    sys_path: added if they exist. archives: zip files put first on sys.path. argv: `sys.argv`. warnings: filters,
    () = the usual ones. settings: what differs from a fresh interpreter. initializer: pickle of (function, args), run once.
    python_version: the client's "3.11"; another one is refused. cloudpickle: the client's "3.1.1"; another major version is refused.
    protocol: the Starter's; an interpreter with another rmgr is refused. inline_bytes: larger results are left in files.
    program: the one that the worker serves. group: its own calls go to workers of this group, as `PythonEnvironment.worker_group`.
    """

    worker: int
    environ: dict[str, str] = {}
    sys_path: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    initializer: bytes = b""
    python_version: str = ""
    memory_bytes: int = 0
    cloudpickle: str = ""
    protocol: int = 0
    inline_bytes: int = MAX_INLINE_VALUE
    program: str = ""
    argv: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str, str, str, str], ...] = ()
    group: str = ""
    settings: tuple[tuple[str, str], ...] = ()


class CommandItem(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One command of a batch. label: number in RMGR_ARRAY_INDEX and in the id, -1 = the index.

    argv: its own, () = the batch's. directory: prepared work directory, "" = the spawner makes one. entry: RMGR_ENTRY, any bytes but
    NUL; empty = none. out, err: files to write, "" = private ones; equal names share one file.
    """

    seq: int
    index: int
    attempt: int = 1
    label: int = -1
    argv: tuple[str, ...] = ()
    directory: str = ""
    entry: bytes = b""
    out: str = ""
    err: str = ""


class CommandBatch(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=3):
    """Commands to run one after another. Answered by `CommandEnds`.

    argv: program and arguments. script: run by its #! line (else /bin/sh), with argv as arguments; text of any encoding. Their
    environment: the spawner's, `shape.environ`, the ids' RMGR_*, the item's own. cwd: directory to run in, "" = the work
    directory.
    stdin: bytes, or a file. keep: the work directory is left to the Starter. append: the files of (out, err) are appended to. named_only:
    a command does not start if their directories do not exist. is_mixed: other commands write into those too, so what is there is the
    output of none.
    """

    shape: BatchShape
    argv: tuple[str, ...] = ()
    script: bytes = b""
    cwd: str = ""
    stdin: bytes = b""
    stdin_path: str = ""
    keep: bool = False
    append: tuple[bool, bool] = (False, False)
    named_only: bool = False
    is_mixed: bool = False
    isolate: bool = False  #: gets its own cgroup (freezable, with a memory limit), at a cost of a few ms
    halts: bool = False  #: each stops itself before its exec, and the turner continues it: no check from outside could come early enough
    items: tuple[CommandItem, ...]


class Stop(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=4):
    """Ends work: SIGTERM, `grace_us`, SIGKILL (0: SIGKILL at once), to all its processes.

    worker: 0 = a command. seq: only if this runs now (a queued command is dropped, and reported with the
    reason); 0 = whatever runs, and the worker itself ends.
    """

    worker: int = 0
    seq: int = 0
    reason: Reason = Reason.USER_CANCEL
    grace_us: int = 5_000_000


class Signal(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=5):
    """Sends a signal to every process of the running command or of the worker's task. seq as in `Stop`."""

    worker: int = 0
    seq: int = 0
    signum: int


class SuspendWork(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=6):
    """Stops (resume=False) or continues all processes of the work in place."""

    worker: int = 0
    seq: int = 0
    resume: bool = False


class RecallCommands(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=7):
    """Takes back queued commands after the first `keep`; answered by `CommandsReturned`."""

    keep: int = 0


class LeaseEnd(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=8):
    """Exclusive work may run until then (CLOCK_BOOTTIME); 0 = it may not run."""

    end_ns: int


class LimitWork(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=10):
    """Changes the time limit of running work (seq as in `Stop`), counted from its start; 0 = none."""

    worker: int = 0
    seq: int
    limit_us: int


class Shutdown(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=9):
    """Ends all work as `Stop` would, then the spawner."""

    grace_us: int = 0


ToSpawner = Setup | StartWorker | CommandBatch | Stop | Signal | SuspendWork | LimitWork | RecallCommands | LeaseEnd | Shutdown


# -- spawner -> Starter -----------------------------------------------------------------------------------------------


class SpawnerUp(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=20):
    """The spawner obeys from now on; carries one descriptor, the board of its commands.

    features: what contains its work ("subreaper", "cgroup", "freezer", "pids", "memory"). error: why it cannot work (it ends).
    """

    pid: int
    features: tuple[str, ...] = ()
    error: str = ""


class WorkerForked(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=21):
    """A worker exists. Carries two descriptors: its data socket and its board (`runner/host/board.py`)."""

    worker: int
    pid: int
    directory: str


class WorkerGone(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=22):
    """A worker is dead, and so are all processes that it started.

    reason: why it was killed, or what its death means for its task (EXIT_CODE, SIGNAL, OUT_OF_MEMORY,
    WORKER_LOST, ...). seq: the task that the reason is for, 0 = none was running.
    """

    worker: int
    reason: Reason
    seq: int = 0
    exit_code: int | None = None
    signal: int = 0
    cpu_us: int = 0
    max_rss_kib: int = 0
    detail: str = ""
    out: Output = NO_OUTPUT  #: of the task `seq`
    err: Output = NO_OUTPUT


class CommandStarted(msgspec.Struct, frozen=True, array_like=True):
    """A command runs (sent only after a few ms).

    out, err: its files while it runs, kept below `cap` bytes unless its user named them; its own output begins at `out_at`, `err_at`.
    """

    seq: int
    pid: int
    started_us: int
    directory: str
    out: str
    err: str
    cap: int = 64 * 1024 * 1024
    out_at: int = 0
    err_at: int = 0


class CommandEnd(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, kw_only=True):
    """End of a command. reason NONE: exit code 0. directory: only if it was to be kept."""

    seq: int
    reason: Reason = Reason.NONE
    exit_code: int | None = None
    signal: int = 0
    started_us: int = 0
    elapsed_us: int = 0
    cpu_us: int = 0
    max_rss_kib: int = 0
    out: Output = NO_OUTPUT
    err: Output = NO_OUTPUT
    detail: str = ""
    leftovers: int = 0  #: number of processes that it left behind, which were killed
    directory: str = ""


class CommandEnds(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Commands that started and ended since the last report, in order."""

    ends: tuple[CommandEnd, ...] = ()
    started: tuple[CommandStarted, ...] = ()


class CommandsReturned(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Queued commands that will not run here. reason: NONE = recalled, else why (LEASE_LOST)."""

    seqs: tuple[int, ...]
    reason: Reason = Reason.NONE


class Surprise(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """An event to count and log: what (a closed list of words), detail."""

    what: str
    detail: str = ""


FromSpawner = SpawnerUp | WorkerForked | WorkerGone | CommandEnds | CommandsReturned | Surprise


# -- Starter -> worker ------------------------------------------------------------------------------------------------


class TaskItem(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One function call. payload: pickle of (args, kwargs), b"" = none. path: a file with it: `size` bytes from `start`, 0 = all."""

    seq: int
    index: int
    attempt: int = 1
    label: int = -1
    payload: bytes = b""
    path: str = ""
    start: int = 0
    size: int = 0


class KeyedInput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Value of one input key. path: file with the bytes instead. sha256: of these bytes, to be compared if nobody has; in that case
    key: the input key."""

    data: bytes = b""
    pickled: bool = False
    path: str = ""
    sha256: bytes = b""
    key: str = ""


class KeyedCall(msgspec.Struct, frozen=True, array_like=True):
    """Payload of the keyed form: function(*inputs) -> one value per output. Encoded into `TaskItem.payload`."""

    inputs: tuple[KeyedInput, ...]
    outputs: int


class TaskBatch(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag=40):
    """Calls of one function, one after another. function: sha256 of its cloudpickle; blob, or path of a file with it."""

    shape: BatchShape
    function: str
    blob: bytes = b""
    path: str = ""
    keyed: bool = False
    items: tuple[TaskItem, ...]


class Granted(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """The worker has the slot again (answer to `Unblocking`)."""

    seq: int


ToWorker = TaskBatch | Granted


# -- worker -> Starter ------------------------------------------------------------------------------------------------


class Value(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One result value. path: spool file that now belongs to the receiver, instead of data. sha256: of its bytes."""

    data: bytes = b""
    pickled: bool = True
    path: str = ""
    size: int = 0  #: bytes in the spool file
    sha256: bytes = b""


class TaskExtra(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Fields that most task ends do not have.

    reason: why it failed (EXCEPTION, BAD_OUTPUT, START_FAILED, TIME_LIMIT, ...), NONE = it did not.
    error: pickle of the exception with its remote traceback as __cause__. summary: "Type: message", one line.
    value: a spooled result. values: one per output key (keyed form).
    """

    reason: Reason = Reason.NONE
    error: bytes = b""
    summary: str = ""
    value: Value | None = None
    values: tuple[Value, ...] | None = None
    out: Output = NO_OUTPUT
    err: Output = NO_OUTPUT
    max_rss_kib: int = 0


class TaskEnd(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """End of a call. data: the result's bytes, pickled or raw. extra: failure, output, ... (None: success, silent)."""

    seq: int
    started_us: int
    elapsed_us: int
    cpu_us: int
    data: bytes = b""
    pickled: bool = True
    extra: TaskExtra | None = None


class TaskEnds(msgspec.Struct, frozen=True, array_like=True, tag=60):
    """Ends of several tasks, in order."""

    ends: tuple[TaskEnd, ...]


class Skipped(msgspec.Struct, frozen=True, array_like=True, tag=61):
    """Tasks taken back before they started."""

    seqs: tuple[int, ...]


class WorkerUp(msgspec.Struct, frozen=True, array_like=True, tag=62):
    """The worker's environment is ready: it takes tasks."""

    pid: int


class WorkerRefused(msgspec.Struct, frozen=True, array_like=True, tag=63):
    """The environment cannot be made (initializer failed, wrong Python, archive broken); the worker ends.

    error: pickled exception. summary: "Type: message". initializer: the initializer has failed.
    """

    error: bytes
    summary: str
    initializer: bool = False
    out: Output = NO_OUTPUT
    err: Output = NO_OUTPUT


class Blocked(msgspec.Struct, frozen=True, array_like=True, tag=64):
    """Task `seq` waits for another task: its slot is free, and work sent after it must run elsewhere."""

    seq: int


class Unblocking(msgspec.Struct, frozen=True, array_like=True, tag=65):
    """Task `seq` could continue: it waits for `Granted`."""

    seq: int


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag=66):
    """The idle worker ends itself because tasks left processes behind; send nothing more to it."""

    why: str


FromWorker = TaskEnds | Skipped | WorkerUp | WorkerRefused | Blocked | Unblocking | Leaving
