"""One enum of states, one of reasons, and the transition table, used by znodes, store, CLI and API alike.

A change that is not an edge of `TRANSITIONS` does not happen: its reader counts it, logs it once, and keeps the former state. The one
fold of outcomes does so (`coord/decisions/progress.py`).
The diagram in `rmgr/model/README.md` is generated from this table.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """State of a task, and of a placed job (which adds the last three)."""

    INITIAL = "INITIAL"  #: waiting in a queue (the paper's word; PENDING elsewhere)
    HELD = "HELD"  #: waiting, not claimable: held by its user or by a dependency
    RUNNING = "RUNNING"  #: claimed by a Starter
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    STARTING = "STARTING"  #: jobs: assigned, start barrier open
    SUSPENDED = "SUSPENDED"  #: jobs: stopped in place (time-sharing), processes keep their memory
    STOPPING = "STOPPING"  #: jobs: cancel, checkpoint or time limit under way

    @property
    def is_final(self) -> bool:
        """Whether no attempt will follow."""
        return self in _FINAL


_FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class Reason(StrEnum):
    """Reason of a state: every end has one, and so do waits worth explaining."""

    NONE = ""
    # the work's own failure: `retries` may run it again
    EXIT_CODE = "EXIT_CODE"
    EXCEPTION = "EXCEPTION"
    SIGNAL = "SIGNAL"
    TIME_LIMIT = "TIME_LIMIT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DISK_LIMIT = "DISK_LIMIT"  #: files of its user's work took more of the node's disk than allowed
    # never run again: it cannot help
    BAD_OUTPUT = "BAD_OUTPUT"
    START_FAILED = "START_FAILED"  #: command or function that cannot be started (no such file, cannot be unpickled)
    POISON = "POISON"  #: lost its node five times while it was alone in its block
    OUTPUT_EXISTS = "OUTPUT_EXISTS"
    UNTRUSTED = "UNTRUSTED"  #: not what its user signed, or unsigned: none of it was run
    # losses: `resubmit` lets it run again
    NODE_LOST = "NODE_LOST"
    DATA_LOST = "DATA_LOST"
    LEASE_LOST = "LEASE_LOST"  #: exclusive work killed because its node lost contact
    WORKER_LOST = "WORKER_LOST"  #: its worker process was killed from outside
    # not ended by itself
    USER_CANCEL = "USER_CANCEL"
    OPERATOR_CANCEL = "OPERATOR_CANCEL"  #: by another user
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    MAX_FAILS = "MAX_FAILS"  #: more tasks of its submission failed than its user allows
    # waits
    BACKOFF = "BACKOFF"
    DEPENDENCY = "DEPENDENCY"
    USER_HOLD = "USER_HOLD"
    OPERATOR_HOLD = "OPERATOR_HOLD"  #: by another user: only operators release it
    REVOKED = "REVOKED"  #: the key that signed it was revoked: no more of it starts
    RESOURCES = "RESOURCES"
    QUEUE_CLOSED = "QUEUE_CLOSED"
    NO_POLICY = "NO_POLICY"  #: nothing is placed in its partition: the pipeline set there cannot be used
    BEGIN_TIME = "BEGIN_TIME"  #: a placed job that may not start before its --begin
    LIMIT = "LIMIT"  #: a limit of its user, account or partition is reached
    OWNER_GONE = "OWNER_GONE"  #: all submitted tasks have ended, and the program that could add more is gone
    # attempts given up through no fault of their own: the job waits again at once, nothing is counted
    MIGRATED = "MIGRATED"  #: asked to save its state and to continue elsewhere
    PREEMPTED = "PREEMPTED"  #: stopped without being asked, to make room
    OTHER = "OTHER"  #: known only to a newer release: read as final, never as a reason to run again

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        return cls.OTHER if isinstance(value, str) else None


#: Ends that count as the work's own failure (`retries`).
OWN_FAILURES = frozenset({Reason.EXIT_CODE, Reason.EXCEPTION, Reason.SIGNAL, Reason.TIME_LIMIT, Reason.OUT_OF_MEMORY, Reason.DISK_LIMIT})
#: Ends that count as a loss (`resubmit`).
LOSSES = frozenset({Reason.NODE_LOST, Reason.DATA_LOST, Reason.LEASE_LOST, Reason.WORKER_LOST})
#: Why work ends CANCELLED.
CANCELS = frozenset(
    {Reason.USER_CANCEL, Reason.OPERATOR_CANCEL, Reason.DEPENDENCY_FAILED, Reason.MAX_FAILS, Reason.OWNER_GONE, Reason.REVOKED}
)
#: Ends of attempts that were neither: the job went back to its queue.
GIVEN_UP = frozenset({Reason.MIGRATED, Reason.PREEMPTED})

#: The transition table: (from, to) -> what causes it.
TRANSITIONS: dict[tuple[State, State], str] = {
    (State.INITIAL, State.HELD): "held by its user before a Starter claimed it",
    (State.HELD, State.INITIAL): "released, or its dependency was met",
    (State.INITIAL, State.RUNNING): "claimed by a Starter",
    (State.RUNNING, State.INITIAL): "returned unstarted, split off, or its attempt FAILED and the rule lets it run again",
    (State.RUNNING, State.HELD): "returned by its Starter while the submission is held",
    (State.RUNNING, State.COMPLETED): "its Starter committed the result",
    (State.RUNNING, State.FAILED): "its attempt ended FAILED and the rule does not let it run again",
    (State.RUNNING, State.CANCELLED): "its Starter obeyed a cancel",
    (State.INITIAL, State.FAILED): "a failed attempt waiting for its back-off is given up (POISON, rule changed)",
    (State.INITIAL, State.CANCELLED): "cancelled while waiting",
    (State.HELD, State.CANCELLED): "cancelled while held, or its dependency failed",
    (State.INITIAL, State.STARTING): "job: assigned to nodes",
    (State.STARTING, State.RUNNING): "job: every node of the allocation is ready",
    (State.STARTING, State.INITIAL): "job: the start barrier was revoked, or a node was lost",
    (State.STARTING, State.STOPPING): "job: cancelled during its start",
    (State.STARTING, State.FAILED): "job: cannot be started anywhere",
    (State.RUNNING, State.SUSPENDED): "job: its time slot ended",
    (State.SUSPENDED, State.RUNNING): "job: its time slot begins",
    (State.RUNNING, State.STOPPING): "job: cancel, checkpoint or time limit",
    (State.SUSPENDED, State.STOPPING): "job: cancel, checkpoint or time limit",
    (State.SUSPENDED, State.FAILED): "job: a node was lost while it was stopped",
    (State.STOPPING, State.INITIAL): "job: checkpointed for migration",
    (State.STOPPING, State.COMPLETED): "job: ended by itself while it was being stopped",
    (State.STOPPING, State.FAILED): "job: time limit, or its node was lost meanwhile",
    (State.STOPPING, State.CANCELLED): "job: cancelled",
}


def diagram() -> str:
    """Returns the table as a Mermaid state diagram, for `rmgr/model/README.md` (a test compares them)."""
    lines = ["stateDiagram-v2", "    [*] --> INITIAL", "    [*] --> HELD"]
    lines += [f"    {old} --> {new}: {why.removeprefix('job: ')}" for (old, new), why in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in State if state.is_final]
    return "\n".join(lines)
