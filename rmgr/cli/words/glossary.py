"""The meaning of states, reasons and words of rmgr, in one table: `rmgr help states|reasons|words` prints it, cli.md section 10 has it."""

from __future__ import annotations

from typing import NamedTuple

from rmgr.model.node import NodeState
from rmgr.model.states import Reason, State


class Entry(NamedTuple):
    """One row. kind: its group."""

    name: str
    kind: str
    meaning: str


_WORK, _NODE = "work", "node"
_STATES = {
    State.INITIAL: "it waits in its queue (PENDING elsewhere); rmgr explain ID says for what",
    State.HELD: "it waits and cannot start: its user holds it, or it waits for other work",
    State.STARTING: "it has nodes, and they get ready; placed jobs only",
    State.RUNNING: "it runs",
    State.SUSPENDED: "it stands still in its place while other jobs have their turn; placed jobs only",
    State.STOPPING: "it is being ended: a cancel, a checkpoint or its time limit; placed jobs only",
    State.COMPLETED: "it has succeeded",
    State.FAILED: "it has failed, and does not run again",
    State.CANCELLED: "somebody, or a rule, ended it before it could succeed; its reason says which",
}
_NODE_STATES = {
    NodeState.UP: "it takes work",
    NodeState.DRAINING: "it finishes what it has and takes nothing new",
    NodeState.DRAINED: "it is empty and takes nothing; rmgr resume NODE",
    NodeState.QUARANTINED: "too much has failed there by the node's own fault; its Starter tries again by itself",
    NodeState.LOST: "its Starter does not answer; its work runs again elsewhere once the node is fenced",
    NodeState.FENCED: "it was lost, and nothing that it still does counts; a Starter that lives registers again by itself",
    NodeState.DOWN: "its Starter was stopped in good order",
}

_OWN, _FINAL, _LOSS = "its own failure", "failure for good", "loss"
_CANCELLED, _WAITS, _GIVEN_UP = "cancelled", "waits", "attempt given up"
#: Consequence of each kind of reason.
KINDS = {
    _OWN: "runs again as often as --retries says",
    _FINAL: "never runs again: it would end in the same way",
    _LOSS: "runs again by itself, unless --no-resubmit was given",
    _CANCELLED: "does not run",
    _WAITS: "starts once the cause is gone",
    _GIVEN_UP: "waits again at once, and nothing is counted",
}
_REASONS = {
    Reason.EXIT_CODE: (_OWN, "the command ended with an exit code other than 0"),
    Reason.EXCEPTION: (_OWN, "the Python function raised an exception"),
    Reason.SIGNAL: (_OWN, "a signal ended it that was none of rmgr's own"),
    Reason.TIME_LIMIT: (_OWN, "it ran longer than its limit; -t gives it more"),
    Reason.OUT_OF_MEMORY: (_OWN, "it used more memory than it asked for, or than its node had; --mem gives it more"),
    Reason.DISK_LIMIT: (_OWN, "files of its user's work took more of the node's disk than they may"),
    Reason.BAD_OUTPUT: (_FINAL, "the function did not return one value for each output key"),
    Reason.START_FAILED: (_FINAL, "the command or function cannot be started: no such file, or it cannot be loaded"),
    Reason.POISON: (_FINAL, "its worker or its node was lost five times while it ran there alone"),
    Reason.OUTPUT_EXISTS: (_FINAL, "an output key is taken; overwrite=True replaces what is there"),
    Reason.UNTRUSTED: (_FINAL, "it is not what its user signed; nothing of it ran"),
    Reason.OTHER: (_FINAL, "only a newer release has a word for it"),
    Reason.NODE_LOST: (_LOSS, "its node died, lost contact, or failed by itself"),
    Reason.DATA_LOST: (_LOSS, "its function, its arguments or its result are not in the data store any more"),
    Reason.LEASE_LOST: (_LOSS, "its node lost contact, so it was killed there (--on-disconnect exclusive)"),
    Reason.WORKER_LOST: (_LOSS, "the process that ran it was killed from outside"),
    Reason.USER_CANCEL: (_CANCELLED, "its user cancelled it"),
    Reason.OPERATOR_CANCEL: (_CANCELLED, "an operator cancelled it: rmgr explain ID says who"),
    Reason.DEPENDENCY_FAILED: (_CANCELLED, "what it waits for can never happen any more"),
    Reason.MAX_FAILS: (_CANCELLED, "more of its tasks have failed than --max-fails allows"),
    Reason.BACKOFF: (_WAITS, "it has failed, and runs again after its --backoff"),
    Reason.DEPENDENCY: (_WAITS, "other work has not ended yet (--after)"),
    Reason.USER_HOLD: (_WAITS, "it is held: rmgr release ID"),
    Reason.OPERATOR_HOLD: (_WAITS, "an operator holds it, and operators alone release it: rmgr explain ID says who"),
    Reason.REVOKED: (_WAITS, "the key that signed it was revoked; submit it again with a new one"),
    Reason.RESOURCES: (_WAITS, "cores, memory or other resources that it needs are in use"),
    Reason.QUEUE_CLOSED: (_WAITS, "its queue starts nothing at present"),
    Reason.NO_POLICY: (_WAITS, "the policy of its partition cannot be used: rmgr policy show"),
    Reason.BEGIN_TIME: (_WAITS, "its --begin has not come"),
    Reason.LIMIT: (_WAITS, "its user, account or partition has reached a limit"),
    Reason.OWNER_GONE: (_WAITS, "all that was submitted has ended, and the program that could add more is gone"),
    Reason.MIGRATED: (_GIVEN_UP, "it saved its state and continues on other nodes"),
    Reason.PREEMPTED: (_GIVEN_UP, "it was stopped to make room"),
}

_WHO, _WHAT, _WHERE, _HOW = "parts of rmgr", "work", "where it runs", "what keeps it right"
_WORDS = (
    Entry("Starter", _WHO, "the daemon on each node that runs work"),
    Entry("WatchDog", _WHO, "a daemon that can lead; two machines or more have one"),
    Entry("leader", _WHO, "the WatchDog that lets work of lost nodes run again, and places jobs; Starters pull work without it, too"),
    Entry("gateway", _WHO, "the daemon (`rmgr submitter`) that serves clients without a route to ZooKeeper"),
    Entry("server", _WHO, "a daemon that offers named functions for calls"),
    Entry("ZooKeeper", _WHO, "where queues and the state of all work are kept, safe from the loss of one machine of three"),
    Entry("data store", _WHO, "where functions, arguments, results, output and values by key are kept: an SQLite file or Cassandra"),
    Entry("submission", _WHAT, "what one `rmgr submit`, TaskQueue or Executor makes: a number, and tasks; also called a job"),
    Entry("task", _WHAT, "one run of a command or a call; `42_7` is task 7 of submission 42"),
    Entry("attempt", _WHAT, "one try at a task; another follows a loss, or a failure with --retries"),
    Entry("job array", _WHAT, "a submission with a task for each number of --array"),
    Entry("rank", _WHAT, "one process of a job that has several"),
    Entry("key", _WHAT, "the name of a value in the data store"),
    Entry("node", _WHERE, "a machine, or a part of one, with a Starter"),
    Entry("slot", _WHERE, "the cores of a node that a task runs on"),
    Entry("queue", _WHERE, "where work waits; its limits and its kind of dispatch hold for all of it"),
    Entry("pulled", _WHERE, "of a queue: Starters take its work by themselves"),
    Entry("placed", _WHERE, "of a queue: the leader decides where its jobs run, following a policy"),
    Entry("partition", _WHERE, "nodes that placed jobs share, with one policy"),
    Entry("policy", _WHERE, "the rule by which a leader orders and places jobs"),
    Entry("queue class", _WHERE, "a kind of job within a partition, by size and time, that a policy orders apart"),
    Entry("session", _HOW, "a daemon's connection to ZooKeeper; when it ends, the daemon counts as lost"),
    Entry("fencing", _HOW, "a lost node can commit nothing from then on, so each task has one result at most"),
    Entry("commit", _HOW, "one write to ZooKeeper that happens as a whole or not at all"),
    Entry("token", _HOW, "a name for a submission: sent again, it submits nothing twice"),
    Entry("retention", _HOW, "for how long an ended submission is kept with its arguments and results"),
    Entry("bundle", _HOW, "a directory with the certificate and keys of a daemon or a user"),
    Entry("authority", _HOW, "the directory that makes bundles: whoever has it has the cluster"),
)

TOPICS: dict[str, tuple[Entry, ...]] = {
    "states": (
        *(Entry(str(state), _WORK, meaning) for state, meaning in _STATES.items()),
        *(Entry(str(state), _NODE, meaning) for state, meaning in _NODE_STATES.items()),
    ),
    "reasons": tuple(Entry(str(reason), kind, meaning) for reason, (kind, meaning) in _REASONS.items()),
    "words": _WORDS,
}


def heading(topic: str, kind: str) -> str:
    """Returns the heading of a group."""
    return f"{kind}: {KINDS[kind]}" if topic == "reasons" else kind
