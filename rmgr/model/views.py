"""Views for people and programs: the shapes of cli.md section 5, filled by `coord/views/answers.py`, drawn by the CLI.

Times are microseconds since the epoch (0 = not yet), rendered as ISO-8601 at the rim.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from rmgr.model.base.states import State


class Level(StrEnum):
    """Severity; the rule is in `coord/views/health.py`."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"  #: it makes the cluster unhealthy


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task."""

    attempt: int
    node: str
    state: State
    reason: str = ""
    started_us: int = 0
    ended_us: int = 0
    exit_code: int | None = None
    error: str = ""


class MovingView(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of moving a placed job. saves: it can save its state, and loses nothing.

    moves: how often a policy has moved it; most: so often one may, 0 = it does not say. Of several jobs: all save; all moves together.
    """

    saves: bool
    moves: int = 0
    most: int = 0


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One task; `index` is the number people see (the array index where there is one), `position` the dense one."""

    submission: int
    index: int
    position: int
    state: State
    reason: str = ""
    attempt: int = 0
    node: str = ""
    started_us: int = 0
    ended_us: int = 0
    exit_code: int | None = None
    error: str = ""
    cpu_us: int = 0
    max_rss_kib: int = 0
    served_us: int = 0  #: of one that shared its cores in time: for how long it had them
    turns: int = 0  #: and in how many turns
    attempts: tuple[AttemptView, ...] = ()
    story: tuple[str, ...] = ()  #: what became of its checkpoints
    saving: str = ""  #: how far the request to save its state is that it has now, "" = it has none
    moving: MovingView | None = None  #: of placed jobs, while their block is there

    @property
    def id(self) -> str:
        """`42_7`."""
        return f"{self.submission}_{self.index}"


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of a submission that FAILED alike. node: "" of those that ended on none, or on more nodes than are told apart.

    error: of the first of them.
    """

    reason: str
    node: str
    tasks: int
    exit_code: int | None = None
    error: str = ""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One submission, as `rmgr jobs` and `rmgr show` tell it."""

    id: int
    name: str
    user: str
    queue: str
    state: State
    reason: str = ""
    detail: str = ""
    submitted_us: int = 0
    started_us: int = 0
    ended_us: int = 0
    exit_code: int | None = None
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    tasks: int = 0
    priority: int = 0
    cpu_us: int = 0
    max_rss_kib: int = 0
    served_us: int = 0  #: for how long its tasks had their cores, of those that have shared them in time
    turns: int = 0  #: and in how many turns
    slots: str = ""  #: of one that shares its cores in time just now: its part of the slots, as 1/4
    work: str = ""
    command: str = ""
    cores: int = 1
    memory_bytes: int = 0
    after: tuple[str, ...] = ()
    processes: int = 1  #: of one task, `cores` each
    expected_start_us: int = 0  #: as a placing policy promised, 0 = unknown
    resources: dict[str, int] = msgspec.field(default_factory=dict)  #: of one process, beside cores and memory
    account: str = ""
    moving: MovingView | None = None  #: of placed work that has not ended
    #: Run time of all attempts of its ended tasks (of pulled work without lost ones), each on `cores * processes` cores; of one that shared
    #: them in time, for how long it had them.
    run_us: int = 0
    lost: int = 0  #: attempts of its ended tasks that were lost: with their node, its lease, a worker or data
    route: str = ""  #: its queue class: that its user named, or that a policy chose (for its first job that has one; the leader knows it)
    #: The rest of what was asked for, as in `show --json`, without what is usual.
    asked: dict[str, Any] = msgspec.field(default_factory=dict)
    #: What its user and its account have used against their shares (core-seconds), by which its policy orders just now; None: it does not
    share: float | None = None
    account_share: float | None = None
    by_us: int = 0  #: when an operator has held or cancelled it, 0 = none has
    failures: tuple[FailureView, ...] = ()  #: what is known of those that failed; of outcomes in rows of the store only once it is closed


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    id: str
    state: str
    cores: int
    cores_used: int
    memory_bytes: int
    memory_used_bytes: int = 0
    running: int = 0
    load: float | None = None
    incarnation: int = 0
    pid: int = 0
    host: str = ""
    reason: str = ""
    partition: str = "default"
    site: str = ""
    speed: float = 1.0
    features: tuple[str, ...] = ()
    endpoint: str = ""
    seen_us: int = 0
    version: str = ""  #: rmgr version of its Starter
    #: Beside cores and memory, by name: how many it has, how many are in use.
    resources: dict[str, int] = msgspec.field(default_factory=dict)
    resources_used: dict[str, int] = msgspec.field(default_factory=dict)
    trouble: str = ""  #: what keeps its Starter from taking work (`TroubleKind`), "" = nothing; `reason` says more
    until_us: int = 0  #: when it tries again by itself, 0 = when the cause is gone
    metrics: str = ""  #: host:port of its Starter's measurements and `/healthz`
    fix: str = ""  #: what to type or do so that it takes work
    level: str = Level.OK
    freezer: str = ""  #: how work stands still between its slots, "" = it cannot, or nobody has said
    clock_error_us: int | None = None  #: of the clock by which slots are counted, None: no jobs take turns there
    switches: int = 0  #: boundaries of slots at which its Starter has stopped or continued somebody
    late_switches: int = 0  #: those at which somebody did not stand still at once
    call_cores: int = 0  #: that it has beside `cores`, kept for a server of calls
    by: str = ""  #: who drains it
    since_us: int = 0  #: since when it is up, drained or in trouble, 0 = nobody knows


class HeldView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the ledger: cores of a node that are kept for a job until it starts. job: `42`, or `42_7` of several."""

    queue: str
    job: str
    node: str
    cores: int
    since_us: int = 0
    expected_start_us: int = 0


class PromiseView(msgspec.Struct, frozen=True, kw_only=True):
    """Cores that a job was promised by a connection reservation: `cores` in all, of which `held` are free for it already.

    job, waits_for: `42`, or `42_7` of several; waits_for: whose ends make the others free. expected_start_us: 0 = unknown.
    """

    job: str
    cores: int
    held: int = 0
    waits_for: tuple[str, ...] = ()
    expected_start_us: int = 0


class ClassView(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a queue class beside those of every queue.

    limits: of the class, in words. threshold: individual priority above which a job reserves. max_reservations: at a time, 0 = none.
    head_trigger: the first of it reserves, too. fired: how often each trigger has made a reservation, since its policy places: priority,
    head, no waiter. chosen: by whom for a job, in words. is_known: the leader told; else only what the settings say is here.
    """

    limits: str
    threshold: int = 0
    max_reservations: int = 0
    head_trigger: bool = False
    fired: tuple[int, ...] = (0, 0, 0)
    promised: tuple[PromiseView, ...] = ()
    chosen: str = ""
    is_known: bool = True


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; or a queue class (`of_class`), whose jobs are counted in the queue where they stand, too."""

    id: str
    partition: str
    dispatch: str
    policy: str
    state: str
    pending: int
    running: int
    held_tasks: int = 0
    limits: dict[str, int | str] = msgspec.field(default_factory=dict)
    held: tuple[HeldView, ...] = ()
    of_class: ClassView | None = None


class LeaderView(msgspec.Struct, frozen=True, kw_only=True):
    """The leader."""

    id: str
    host: str
    pid: int
    epoch: int
    since_us: int
    endpoint: str = ""
    version: str = ""
    metrics: str = ""  #: host:port of its measurements and `/healthz`


class FaultView(msgspec.Struct, frozen=True, kw_only=True):
    """A stage's policy that was skipped: it raised, slept, or asked for what cannot be. error: the last time's."""

    policy: str
    count: int
    error: str = ""


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """Policy that places in a partition, and its state."""

    partition: str
    policy: str
    passes: int = 0
    last_pass_s: float = 0.0
    faults: tuple[FaultView, ...] = ()
    problem: str = ""  #: why nobody places there
    generation: int | None = None  #: of the record by which jobs share nodes in time there, None: none do
    max_tqlb: int = 0  #: so many slots at most from one turn of a job to its next
    servers: int | None = None  #: that can have calls; None: it places jobs
    age_s: float = 0.0  #: of the oldest load of those
    degraded: bool = False  #: no leader answers: gateways pick servers by themselves


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the cluster that is not well. kind: zookeeper | store | leader | watchdogs | nodes | node | queue | partition.

    state: one word or two. fix: what to type. told: all of it in a sentence, "" = `reason` is one.
    """

    kind: str
    id: str
    state: str
    reason: str
    fix: str
    level: str = Level.PROBLEM
    told: str = ""


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """Health and counts of the whole cluster."""

    healthy: bool
    leader: LeaderView | None
    zookeeper: dict[str, object]
    store: dict[str, object]
    counts: dict[str, int]
    nodes: dict[str, int]
    cluster_id: str = ""
    problems: tuple[str, ...] = ()
    watchdogs: int = 0
    uptime_s: float = 0.0
    policies: tuple[PolicyView, ...] = ()
    warnings: tuple[str, ...] = ()  #: what is no reason to call the cluster unhealthy
    parts: tuple[PartView, ...] = ()  #: all that is not well, problems and warnings alike
    healthy_since_us: int = 0  #: since when it is as healthy as it is, as far as this leader has seen, 0 = nobody knows
    cores: int = 0  #: of nodes that take work; so are the next three
    cores_used: int = 0
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    oldest_us: int = 0  #: when the oldest submission was made of which nothing has begun, and which is not held; 0 = there is none
    users: dict[str, int] = msgspec.field(default_factory=dict)  #: cores that run work of each, as far as the asker may know; "" = others


class WhyView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps something waiting, or explains its end."""

    what: str
    id: str
    detail: str


class ExplainView(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a state. account, share, account_share: of what has not ended, as in `JobView`."""

    id: str
    state: State
    reason: str  #: a `Reason`, or words
    why: tuple[WhyView, ...]
    expected_start_us: int = 0
    priority: int = 0
    account: str = ""
    share: float | None = None
    account_share: float | None = None


class PlacedView(msgspec.Struct, frozen=True, kw_only=True):
    """One placed job as the leader's last pass left it.

    state: waiting | running | stopping | suspended. what, blocker: what it waits for (reservation, limit, node, order, ...), its id;
    reason: in words; of one that runs, why the policies that place there do not move it. expected_start_us: as the policy promised, 0 =
    unknown. nodes: (name, processes) of its allocation, the head first.
    """

    state: str
    what: str = ""
    blocker: str = ""
    reason: str = ""
    expected_start_us: int = 0
    nodes: tuple[tuple[str, int], ...] = ()
    route: str = ""  #: its queue class, which a policy chose for it or its user named
    saves: bool = False  #: it can save its state, as the leader knows
    moves: int = 0  #: how often a policy has moved it
    turns: str = ""  #: it shares its nodes in time: with how many, and its part of the slots
    slots: str = ""  #: the same as 1/4
    served_us: int = 0  #: for how long it has had its cores


class GangSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that share the nodes of a partition in time. generation: version of their record. reference: the node whose clock counts, ""
    = it cannot be read; error_us: of reading it. max_tqlb: so many slots at most from one turn of a job to its next."""

    generation: int
    jobs: int
    max_tqlb: int
    reference: str = ""
    error_us: int = 0


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """Placement in a partition. faults: (stage's policy, how often it was skipped, the last error)."""

    policy: str
    passes: int = 0
    last_pass_s: float = 0.0
    faults: tuple[tuple[str, int, str], ...] = ()
    problem: str = ""  #: why nobody places there: the configured pipeline cannot be used
    instead: str = ""  #: the configured pipeline has failed: why, who places in its place, and until when
    is_stopped: bool = False  #: nobody does
    resting: tuple[tuple[str, float], ...] = ()  #: nodes that gave jobs back unbegun, and after how many seconds they are tried again
    gang: GangSummary | None = None  #: None: no jobs share nodes in time there


class PlacingView(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge of the placing leader: partitions by name, jobs by (submission, index), the ledger of what is held for whom, and classes.

    shares: what (partition, account, user) have used against their shares, (account, user), core-seconds; where a policy orders by it.
    """

    partitions: dict[str, PartitionView] = msgspec.field(default_factory=dict)
    jobs: dict[tuple[int, int], PlacedView] = msgspec.field(default_factory=dict)
    ledger: tuple[HeldView, ...] = ()
    classes: tuple[QueueView, ...] = ()
    shares: dict[tuple[str, str, str], tuple[float, float]] = msgspec.field(default_factory=dict)


class ShareView(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of a job on one node."""

    node: str
    processes: int


class WhatIfView(msgspec.Struct, frozen=True, kw_only=True):
    """Place and time of a request if it were submitted now, runs end at their limits, and nothing else comes.

    start_us: 0 = nobody can say. nodes: the head first, () = nobody can say. at_once: it need not wait. reason: what it would wait for
    first. route: its queue class, which its user named or a policy chose.
    """

    start_us: int = 0
    nodes: tuple[ShareView, ...] = ()
    at_once: bool = False
    reason: str = ""
    route: str = ""
