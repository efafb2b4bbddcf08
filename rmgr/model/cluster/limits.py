"""Limits of each user: numbers in the cluster's settings (`[limits]`), their names, and what to do at them; and what users have of cores.

Two of them are *caps*: how many cores users have at once, and how many open jobs. A user may have caps of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmgr.model.base.version import Newer, newer


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """For each user; 0 = no limit. The defaults bear two million waiting tasks of one honest user.

    Beside them ZooKeeper's quotas hold (`coord/protocol/acl.py`): with a heap of 1000 MiB two million waiting tasks pass, with less as
    many less.
    Those of a gateway or daemon hold in each process of that kind; those of the cluster hold over all gateways.

    cores_of, jobs_of: caps of single users, in place of those of each (0 = no limit for them).
    """

    max_cores_per_user: int = 0  #: in use at once; Starters of pulled queues stop there
    max_jobs_per_user: int = 0  #: open jobs: submissions that have not ended
    cores_of: dict[str, int] = field(default_factory=dict)
    jobs_of: dict[str, int] = field(default_factory=dict)

    requests_per_s: int = 5_000  #: to one gateway or daemon; twice as many at once
    sessions: int = 150  #: clients at once, of one gateway
    streams: int = 75  #: logs that are followed and terminals, of one gateway or Starter
    tunnels: int = 38  #: ways through one gateway to a node
    calls: int = 48  #: questions and calls to the store at once, of one gateway or daemon
    remote_calls: int = 96  #: of named functions on servers, through one gateway at once; more wait in the client
    lines: int = 192  #: direct lines to one Starter
    followed: int = 50_000  #: submissions that clients follow, through one gateway
    held_bytes: int = 64 * 1024 * 1024  #: asked and not answered, answered and not read, of one gateway
    open_submissions: int = 50_000  #: not ended
    unfinished_tasks: int = 8_000_000  #: waiting or running
    zookeeper_bytes: int = 4 * 1024**3  #: records, arguments and outcomes in ZooKeeper
    store_bytes: int = 1024**4  #: written through one gateway, or by work of one Starter, within a day
    audit_lines: int = 120  #: of refusals a minute; the rest is counted and told in one line
    newer: Newer = newer()

    def of(self, name: str, user: str) -> int:
        """The limit of that name for that user, 0 = none. Cost: 0.3 us."""
        own = self.cores_of if name == CORES else self.jobs_of if name == JOBS else {}
        return own[user] if user in own else int(getattr(self, name))

    @property
    def has_caps(self) -> bool:
        """Somebody may not have as many cores, or open jobs, as they like."""
        return bool(self.max_cores_per_user or self.max_jobs_per_user or any(self.cores_of.values()) or any(self.jobs_of.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedUse:
    """`/usage`: what users who have a cap have of it, as the leader counted last. Who has nothing is left out.

    cores: in use, by user; nodes: on how many nodes. jobs: open ones. free: nodes that had cores left; all, if none had.
    """

    cores: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    free: int = 0
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One of them. where: gateway, daemon, starter, cluster. what: as errors name it. advice: what to type or do at it."""

    name: str
    where: str
    what: str
    advice: str


#: The caps.
CORES, JOBS = "max_cores_per_user", "max_jobs_per_user"
_RAISED = "an operator raises it: rmgr admin limit USER"
_WAIT = "wait a moment, or ask for less at once"
_SESSIONS = "end some, or name another gateway too: --gateway A:PORT,B:PORT"
_FOLLOWED = "close queues that are done (TaskQueue.close), or end some clients"
_ARGUMENTS = "wait for some; put large arguments into the store once (rmgr store put)"
_AUDIT = "see why requests are refused: rmgr limits"
#: In the order in which they are shown: name, where it holds, of what, what to do at it.
_TABLE = (
    (CORES, "cluster", "cores at once", f"what waits runs as some become free; {_RAISED} --cores N"),
    (JOBS, "cluster", "open jobs", f"wait for some (rmgr wait), cancel some, or use --array; {_RAISED} --jobs N"),
    ("requests_per_s", "gateway, daemon", "requests a second", _WAIT),
    ("sessions", "gateway", "clients of one gateway at once", _SESSIONS),
    ("streams", "gateway, daemon", "logs and terminals followed at once", "end some (Ctrl-C)"),
    ("tunnels", "gateway", "ways to nodes through one gateway at once", "end some terminals"),
    ("calls", "gateway, daemon", "calls at once", _WAIT),
    ("remote_calls", "gateway", "calls of functions on servers at once", "wait for some; rmgr.call_async waits by itself"),
    ("lines", "Starter", "direct lines to one Starter at once", "none is needed: work goes the long way"),
    ("followed", "gateway", "submissions followed through one gateway", _FOLLOWED),
    ("held_bytes", "gateway", "bytes asked and not answered, or answered and not read", "read the answers"),
    ("open_submissions", "cluster", "submissions that have not ended", "wait for some (rmgr wait), cancel some, or use --array"),
    ("unfinished_tasks", "cluster", "tasks that wait or run", "wait for some (rmgr wait), or cancel some"),
    ("zookeeper_bytes", "cluster", "bytes of submissions in ZooKeeper", _ARGUMENTS),
    ("store_bytes", "gateway, Starter", "bytes written to the store within a day", "write less, or tomorrow; an operator can raise it"),
    ("audit_lines", "gateway, daemon", "lines of audit a minute", _AUDIT),
)
BOUNDS = tuple(Bound(name=name, where=where, what=what, advice=advice) for name, where, what, advice in _TABLE)
BOUND = {bound.name: bound for bound in BOUNDS}
