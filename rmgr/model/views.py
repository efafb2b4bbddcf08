"""Views for people and programs: the shapes of cli.md section 5, filled by `coord/views/answers.py`, drawn by the CLI.

Times are microseconds since the epoch (0 = not yet), formatted as ISO-8601 on output.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from rmgr.model.states import State


class Level(StrEnum):
    """Severity; `coord/views/health.py` has the rule."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"  #: makes the cluster unhealthy


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

    moves: how often a policy has moved it; most: its limit, 0 = none. For several jobs: whether all save; the sum of moves.
    """

    saves: bool
    moves: int = 0
    most: int = 0


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One task; `index` is the number that people see (the array index, if any), `position` the dense one."""

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
    served_us: int = 0  #: how long it had its cores, if it shared them in time
    turns: int = 0  #: in how many turns
    attempts: tuple[AttemptView, ...] = ()
    story: tuple[str, ...] = ()  #: fate of its checkpoints
    saving: str = ""  #: progress of its current request to save state, "" = none
    moving: MovingView | None = None  #: of placed jobs, while their block exists

    @property
    def id(self) -> str:
        """The task's id, as `42_7`."""
        return f"{self.submission}_{self.index}"


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of a submission that FAILED alike. node: "" if they ended on no node, or on more nodes than are kept apart.

    error: of the first of them.
    """

    reason: str
    node: str
    tasks: int
    exit_code: int | None = None
    error: str = ""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One submission, as `rmgr jobs` and `rmgr show` show it."""

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
    served_us: int = 0  #: how long tasks that shared their cores in time had them
    turns: int = 0  #: in how many turns
    slots: str = ""  #: its share of the slots, as 1/4, if it shares its cores in time now
    work: str = ""
    command: str = ""
    cores: int = 1
    memory_bytes: int = 0
    after: tuple[str, ...] = ()
    processes: int = 1  #: per task, each with `cores`
    expected_start_us: int = 0  #: as a placing policy promised, 0 = unknown
    resources: dict[str, int] = msgspec.field(default_factory=dict)  #: per process, beside cores and memory
    account: str = ""
    moving: MovingView | None = None  #: of placed work that has not ended
    #: Run time of all attempts of its ended tasks (for pulled work without lost ones), each on `cores * processes` cores; served time
    #: if they shared them in time.
    run_us: int = 0
    lost: int = 0  #: attempts of its ended tasks lost with their node, its lease, a worker or data
    route: str = ""  #: its queue class, named by its user or chosen by a policy (of its first job that has one; known to the leader)
    #: Other unusual options, as in `show --json`.
    asked: dict[str, Any] = msgspec.field(default_factory=dict)
    #: Use of its user and account against their shares (core-seconds), if the current policy orders by that; else None.
    share: float | None = None
    account_share: float | None = None
    by_us: int = 0  #: when an operator held or cancelled it, 0 = never
    failures: tuple[FailureView, ...] = ()  #: known failures; those in the store's rows of outcomes are added when it is closed


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
    #: Resources beside cores and memory, by name: how many it has, how many are in use.
    resources: dict[str, int] = msgspec.field(default_factory=dict)
    resources_used: dict[str, int] = msgspec.field(default_factory=dict)
    trouble: str = ""  #: why its Starter takes no work (`TroubleKind`), "" = it does; `reason` says more
    until_us: int = 0  #: when it tries again by itself, 0 = when the cause is gone
    metrics: str = ""  #: host:port of its Starter's measurements and `/healthz`
    fix: str = ""  #: what to type or do so that it takes work
    level: str = Level.OK
    freezer: str = ""  #: method that stops work between its slots, "" = none, or unknown
    clock_error_us: int | None = None  #: error of the clock that counts slots, None: no jobs take turns there
    switches: int = 0  #: slot boundaries at which its Starter stopped or continued a part
    late_switches: int = 0  #: boundaries at which a part did not stop at once
    call_cores: int = 0  #: beside `cores`, kept for a server of calls
    by: str = ""  #: who drained or resumed it
    since_us: int = 0  #: since when it is up, drained or in trouble, 0 = unknown


class HeldView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the ledger: cores of a node kept for a job until it starts. job: `42`, or `42_7` of several."""

    queue: str
    job: str
    node: str
    cores: int
    since_us: int = 0
    expected_start_us: int = 0


class PromiseView(msgspec.Struct, frozen=True, kw_only=True):
    """Cores promised to a job by a connection reservation: `cores` in all, `held` of them free for it already.

    job, waits_for: `42`, or `42_7` of several; waits_for: jobs whose ends free the others. expected_start_us: 0 = unknown.
    """

    job: str
    cores: int
    held: int = 0
    waits_for: tuple[str, ...] = ()
    expected_start_us: int = 0


class ClassView(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a queue class beside those of every queue.

    limits: of the class, in words. threshold: individual priority above which a job reserves. max_reservations: at a time, 0 = none.
    head_trigger: its first job reserves, too. fired: reservations by each trigger since its policy places: priority,
    head, no waiter. chosen: what chooses it for a job, in words. is_known: from the leader; else only what the settings say.
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
    """One queue; or a queue class (`of_class`), whose jobs are also counted in their queue."""

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
    """A stage's policy that was skipped: it raised, slept, or asked for something impossible. error: the last one."""

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
    problem: str = ""  #: why nothing is placed there
    generation: int | None = None  #: of the record of jobs that share nodes in time there, None: no such jobs
    max_tqlb: int = 0  #: most slots from one turn of a job to its next
    servers: int | None = None  #: number that can have calls; None: the policy places jobs
    age_s: float = 0.0  #: age of their oldest load
    degraded: bool = False  #: no leader answers: gateways pick servers by themselves


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the cluster that is not well. kind: zookeeper | store | leader | watchdogs | nodes | node | queue | partition | user.

    state: one word or two. fix: what to type. told: the whole in a sentence, "" = `reason` is one.
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
    warnings: tuple[str, ...] = ()  #: not a reason to call the cluster unhealthy
    parts: tuple[PartView, ...] = ()  #: everything that is not well, problems and warnings alike
    healthy_since_us: int = 0  #: since when health is as it is, as far as this leader has seen, 0 = unknown
    cores: int = 0  #: of nodes that take work; also the next three
    cores_used: int = 0
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    oldest_us: int = 0  #: when the oldest submission was made that has not begun and is not held; 0 = none
    users: dict[str, int] = msgspec.field(default_factory=dict)  #: cores that run work of each, as far as the asker may know; "" = others


class WhyView(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why something waits, or explanation of its end."""

    what: str
    id: str
    detail: str


class ExplainView(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a state. account, share, account_share: as in `JobView`, for work that has not ended."""

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
    """One placed job after the leader's last pass.

    state: waiting | running | stopping | suspended. what, blocker: what it waits for (reservation, limit, node, order, ...), and its id;
    reason: in words; for a running job, why policies do not move it. expected_start_us: promised by the policy, 0 =
    unknown. nodes: (name, processes) of its allocation, the head first.
    """

    state: str
    what: str = ""
    blocker: str = ""
    reason: str = ""
    expected_start_us: int = 0
    nodes: tuple[tuple[str, int], ...] = ()
    route: str = ""  #: its queue class, chosen by a policy or named by its user
    saves: bool = False  #: it can save its state, as far as the leader knows
    moves: int = 0  #: how often a policy has moved it
    turns: str = ""  #: for a job that shares its nodes in time: with how many others, and its share of the slots
    slots: str = ""  #: its share, as 1/4
    served_us: int = 0  #: how long it has had its cores


class GangSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that share the nodes of a partition in time. generation: version of their record. reference: the node with the clock, ""
    = unreadable; error_us: of reading it. max_tqlb: most slots from one turn of a job to its next."""

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
    problem: str = ""  #: why nothing is placed there: the configured pipeline cannot be used
    instead: str = ""  #: why the configured pipeline has failed, what replaces it, and until when
    is_stopped: bool = False  #: nothing replaces it
    resting: tuple[tuple[str, float], ...] = ()  #: nodes that gave jobs back before they began, and seconds until they are tried again
    gang: GangSummary | None = None  #: None: no jobs share nodes in time there


class PlacingView(msgspec.Struct, frozen=True, kw_only=True):
    """What the placing leader knows: partitions by name, jobs by (submission, index), the ledger of holds, and classes.

    shares: use of (partition, account, user) against their shares, as (account, user) in core-seconds, if a policy orders by it.
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
    """Where and when a request would start if it were submitted now, runs ended at their limits, and no other work came.

    start_us: 0 = unknown. nodes: the head first, () = unknown. at_once: it need not wait. reason: what it would wait for
    first. route: its queue class, named by its user or chosen by a policy.
    """

    start_us: int = 0
    nodes: tuple[ShareView, ...] = ()
    at_once: bool = False
    reason: str = ""
    route: str = ""
