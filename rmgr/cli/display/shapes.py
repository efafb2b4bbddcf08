"""Turns views into the JSON shapes of cli.md section 5. Strings without a value are empty; times and numbers without one are null."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmgr.cli.display.render import elapsed, iso, printable
from rmgr.model import views
from rmgr.model.base import MIB
from rmgr.model.states import LOSSES, Reason, State
from rmgr.model.units import counted, format_size, signal_name, told_code

#: Keys of `counts`, in this order, always all of them.
COUNTED = tuple(str(s) for s in ("INITIAL", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "HELD", "SUSPENDED"))
#: Most bytes shown of a line that a task has written.
LINE_BYTES = 160
#: Most nodes named in a group, and most groups in a cell of a table.
_MOST_NODES, _MOST_CELLS = 4, 3
#: Sequences that a terminal obeys: control sequences, their strings (titles, links), and other escapes.
_STEERING = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?")
_WORDS = {
    Reason.EXCEPTION: "an exception",
    Reason.OUT_OF_MEMORY: "out of memory",
    Reason.TIME_LIMIT: "out of time",
    Reason.DISK_LIMIT: "too much disk",
    Reason.BAD_OUTPUT: "bad output",
    Reason.START_FAILED: "could not be started",
    Reason.POISON: "lost again and again",
    Reason.OUTPUT_EXISTS: "an output key exists",
    Reason.UNTRUSTED: "not what its user signed",
    Reason.NODE_LOST: "the node was lost",
    Reason.DATA_LOST: "data were lost",
    Reason.LEASE_LOST: "the node lost contact",
    Reason.WORKER_LOST: "the worker was lost",
}
#: Words for reasons of waiting or cancelled work whose detail is empty.
_WAITS = {
    Reason.USER_HOLD: "held by its user",
    Reason.OPERATOR_HOLD: "held by an operator",
    Reason.DEPENDENCY: "waits for other work",
    Reason.RESOURCES: "waits for room",
    Reason.BACKOFF: "runs again soon",
    Reason.USER_CANCEL: "cancelled by its user",
    Reason.OPERATOR_CANCEL: "cancelled by an operator",
    Reason.DEPENDENCY_FAILED: "what it waits for cannot happen",
    Reason.MAX_FAILS: "too many of its tasks have failed",
    Reason.QUEUE_CLOSED: "its queue starts nothing",
    Reason.NO_POLICY: "nobody places in its partition",
    Reason.BEGIN_TIME: "its time has not come",
    Reason.LIMIT: "a limit is reached",
    Reason.REVOKED: "its key was revoked",
}
#: Words before a detail that does not say this itself.
_BEFORE = {
    Reason.USER_HOLD: "held: ",
    Reason.OPERATOR_HOLD: "held ",
    Reason.USER_CANCEL: "cancelled: ",
    Reason.OPERATOR_CANCEL: "cancelled ",
}
#: How a node begins to say why it could not start a command (`runner/command.py`) -> the option of `rmgr rerun` that changes that.
_OTHERWISE_STARTED = {"the work directory ": "--cwd DIR", "the output file ": "-o FILE"}
#: Reasons that would occur again if the same work ran again.
_IN_VAIN = frozenset({Reason.START_FAILED, Reason.BAD_OUTPUT, Reason.OUTPUT_EXISTS, Reason.UNTRUSTED})


def counts(known: Mapping[str, int]) -> dict[str, int]:
    """Returns the `counts`; with STARTING (placed, and not begun) if it is not 0."""
    starting = known.get(State.STARTING, 0)
    return {name: known.get(name, 0) for name in COUNTED} | ({str(State.STARTING): starting} if starting else {})


def attempt(view: views.AttemptView) -> dict[str, Any]:
    """Returns an element of `attempts`."""
    return _fields(view, "attempt node state reason started_us ended_us exit_code error")


def job(view: views.JobView) -> dict[str, Any]:
    """Returns an element of `jobs`: the fields of `show`, without attempts."""
    return {
        "id": str(view.id),
        **_fields(view, "name user queue state reason submitted_us started_us ended_us exit_code"),
        "counts": counts(view.counts),
        **_fields(view, "nodes detail tasks priority work command cores memory_bytes after cpu_us max_rss_kib"),
        **_served_fields(view),
        "processes": max(1, view.processes),
        **_fields(view, "expected_start_us account"),
        **_shares(view),
        **_asked_terms(view),
        **({"resources": dict(sorted(view.resources.items()))} if view.resources else {}),
        **({"class": view.route} if view.route else {}),
        **_moving_fields(view.moving),
        **({"by_time": iso(view.by_us)} if view.by_us else {}),
        **({"failures": [_fields(item, "reason exit_code node tasks error") for item in view.failures]} if view.failures else {}),
    }


def _asked_terms(view: views.JobView) -> dict[str, Any]:
    """Returns what the work asks for besides cores and memory, and the changes made to that."""
    from rmgr.coord.views.submission import USUAL  # imports all records of work, which tables do without

    changes = [_change(one) for one in view.asked.get("changes", ())]
    return {**USUAL, **view.asked, "begin": iso(int(view.asked.get("begin") or 0)), "changes": changes}


def _change(one: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an element of `changes`."""
    return {"by": one["by"], "at": iso(one["at"]), "operator": one["operator"], "changed": changed(one["changed"])}


def changed(terms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns term -> {old, new}."""
    return {name: {at: iso(value or 0) for at, value in one.items()} if name == "begin" else dict(one) for name, one in terms.items()}


def failures(found: Sequence[Failure], steps: Sequence[str]) -> dict[str, Any]:
    """Returns `failures` of `show` and `explain`, read from the ends themselves, and `next`; nothing if nothing failed."""
    if not found:
        return {}
    told = [
        {**_fields(item, "reason exit_code"), "node": node, "tasks": count, **_fields(item, "error task stderr"), **_traceback(item)}
        for item in found
        for node, count in item.nodes.items()
    ]
    return {"failures": told, "next": list(steps)}


def _traceback(failure: Failure) -> dict[str, Any]:
    return {"traceback": list(failure.traceback)} if failure.traceback else {}


def shown_job(view: views.JobView, attempts: Iterable[views.AttemptView], story: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the answer of `show ID`. story: of its checkpoints, omitted if there are none."""
    told = job(view)
    rest = {key: told.pop(key) for key in list(told)[list(told).index("counts") :]}
    return {**told, "attempts": [attempt(item) for item in attempts], **rest, **_checkpoints(story)}


def _moving_fields(view: views.MovingView | None) -> dict[str, Any]:
    """Returns the fields of placed jobs that have not ended. max_moves: null = no cap of its own."""
    return {} if view is None else {"saves": view.saves, "moves": view.moves, "max_moves": view.most or None}


def _checkpoints(story: Sequence[str]) -> dict[str, Any]:
    return {"checkpoints": list(story)} if story else {}


def shown_task(view: views.TaskView, of: views.JobView) -> dict[str, Any]:
    """Returns the answer of `show 42_7`: the same fields, for one task."""
    return {
        "id": view.id,
        **_fields(of, "name user queue"),
        **_fields(view, "state reason"),
        **_fields(of, "submitted_us"),
        **_fields(view, "started_us ended_us exit_code"),
        "attempts": [attempt(item) for item in view.attempts],
        "counts": counts({view.state: 1}),
        "nodes": [view.node] if view.node else [],
        **_fields(view, "index attempt error"),
        **_fields(of, "command cores memory_bytes priority after account"),
        **_asked_terms(of),
        **({"resources": dict(sorted(of.resources.items()))} if of.resources else {}),
        **_fields(view, "cpu_us max_rss_kib"),
        **_served_fields(view),
        **_checkpoints(view.story),
        **_moving_fields(view.moving),
        **({"saving": view.saving} if view.saving else {}),
    }


def _served_fields(view: views.JobView | views.TaskView) -> dict[str, Any]:
    """Returns the fields of work that shared its cores in time."""
    told = _fields(view, "served_us turns") if view.turns or view.served_us else {}
    return told | ({"slots": view.slots} if isinstance(view, views.JobView) and view.slots else {})


def task(view: views.TaskView) -> dict[str, Any]:
    """Returns an element of `tasks`."""
    names = "id index state reason attempt node started_us ended_us exit_code error cpu_us max_rss_kib"
    return {**_fields(view, names), **_served_fields(view)}


def node(view: views.NodeView) -> dict[str, Any]:
    """Returns an element of `nodes`."""
    return {
        **_fields(view, "id state cores cores_used memory_bytes load incarnation pid reason memory_used_bytes running"),
        **_fields(view, "host partition site speed features"),
        "resources": dict(sorted(view.resources.items())),
        "resources_used": {name: view.resources_used.get(name, 0) for name in sorted(view.resources)},
        **_fields(view, "seen_us endpoint version trouble until_us metrics fix level"),
        **_fields(view, "freezer clock_error_us switches late_switches call_cores by since_us"),
    }


def queue(view: views.QueueView) -> dict[str, Any]:
    """Returns an element of `queues`."""
    told = _fields(view, "id partition dispatch policy state pending running limits")
    return {**told, "held": [held(item) for item in view.held], "held_tasks": view.held_tasks}


def queue_class(view: views.QueueView) -> dict[str, Any]:
    """Returns an element of `classes`; null stands for what only the leader knows if it does not answer."""
    found = view.of_class
    assert found is not None
    priority, head, no_waiter = found.fired
    return {
        **_fields(view, "id partition policy state"),
        "pending": view.pending if found.is_known else None,
        "running": view.running if found.is_known else None,
        "limits": dict(view.limits),
        "threshold": found.threshold if found.max_reservations else None,
        **_fields(found, "max_reservations head_trigger"),
        "fired": {"priority": priority, "head": head, "no_waiter": no_waiter} if found.is_known else None,
        "promised": [{"for": one.job, **_fields(one, "cores held waits_for expected_start_us")} for one in found.promised],
        "chosen": found.chosen,
    }


def held(view: views.HeldView) -> dict[str, Any]:
    """Returns a line of the ledger: an element of `held`."""
    return {"for": view.job, **_fields(view, "node cores since_us expected_start_us")}


def policy(view: views.PolicyView) -> dict[str, Any]:
    """Returns an element of `status.policies`."""
    return {
        **_fields(view, "partition policy passes last_pass_s"),
        "faults": [_fields(fault, "policy count error") for fault in view.faults],
        "problem": view.problem,
        **(_fields(view, "generation max_tqlb") if view.generation is not None else {}),
        **(_fields(view, "servers age_s degraded") if view.servers is not None else {}),
    }


def leader(view: views.LeaderView | None) -> dict[str, Any] | None:
    """Returns `status.leader`."""
    return None if view is None else _fields(view, "id host pid epoch since_us endpoint version metrics")


def status(view: views.StatusView) -> dict[str, Any]:
    """Returns the answer of `status`."""
    return {
        "healthy": view.healthy,
        "leader": leader(view.leader),
        **_fields(view, "zookeeper store"),
        "counts": counts(view.counts),
        "nodes": {"up": 0, "draining": 0, "fenced": 0, **view.nodes},
        **_fields(view, "cluster_id problems watchdogs uptime_s"),
        "policies": [policy(item) for item in view.policies],
        "warnings": list(view.warnings),
        "parts": [part(item) for item in view.parts],
        "since": iso(view.healthy_since_us),
        **_fields(view, "cores cores_used memory_bytes memory_used_bytes"),
        "oldest_wait": iso(view.oldest_us),
        "users": {name: cores for name, cores in by_cores(view.users) if name},
        "users_others": view.users.get("", 0),
    }


def by_cores(users: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns users sorted by cores, most first; those whom the caller may not know come last."""
    return sorted(users.items(), key=lambda pair: (not pair[0], -pair[1], pair[0]))


def part(view: views.PartView) -> dict[str, Any]:
    """Returns an element of `status.parts`: one that is not well."""
    return _fields(view, "kind id state reason fix level")


def explain(view: views.ExplainView) -> dict[str, Any]:
    """Returns the answer of `explain`."""
    return {
        **_fields(view, "id state"),
        "why": [_fields(item, "what id detail") for item in view.why],
        **_fields(view, "expected_start_us reason priority account"),
        **_shares(view),
    }


def _shares(view: views.JobView | views.ExplainView) -> dict[str, Any]:
    """Returns core time used against the shares of user and account; null if the policy does not order by that."""
    return {"share_core_seconds": view.share, "account_share_core_seconds": view.account_share}


def history(view: views.JobView) -> dict[str, Any]:
    """Returns an element of `history`."""
    began = view.started_us or view.submitted_us
    return {
        "id": str(view.id),
        **_fields(view, "name user state reason exit_code submitted_us started_us ended_us"),
        "elapsed": max(0, view.ended_us - began) / 1e6 if view.ended_us else 0.0,
        **_fields(view, "cpu_us max_rss_kib"),
        **_served_fields(view),
        **_fields(view, "nodes queue tasks"),
        "counts": counts(view.counts),
        **_fields(view, "command account"),
    }


#: Fields whose key and value in JSON do not follow from the rules of `_fields`.
_OTHERWISE: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "memory_bytes": ("mem_bytes", int),
    "memory_used_bytes": ("mem_used_bytes", int),
    "max_rss_kib": ("max_rss_bytes", lambda kib: kib * 1024),
    "cpu_us": ("cpu_seconds", lambda us: us / 1e6),
    "served_us": ("served_seconds", lambda us: us / 1e6),
    "clock_error_us": ("clock_error_us", lambda us: us),
}


def _fields(view: object, names: str) -> dict[str, Any]:
    """Returns these fields of a view as JSON has them, in this order: a time (`_us`) as text, a duration (`_s`) as a number, both without
    their unit in the key.
    """
    told: dict[str, Any] = {}
    for name in names.split():
        value = getattr(view, name)
        if name in _OTHERWISE:
            key, convert = _OTHERWISE[name]
            told[key] = convert(value)
        elif name.endswith("_us"):
            told[name.removesuffix("_us")] = iso(value)
        else:
            told[name.removesuffix("_s")] = str(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value
    return told


def item(id_: str, state: State, reason: str, exit_code: int | None) -> dict[str, Any]:
    """Returns an element of `wait`'s items."""
    return {"id": id_, "state": str(state), "reason": str(reason), "exit_code": exit_code}


# -- failures in words ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Tasks that FAILED for the same reason with the same exit code.

    nodes: node -> number of ends there; "" is no node. task: the first of the examined tasks with something on stderr, else the first.
    error, started_us, ended_us, max_rss_kib, stderr: of that task; stderr is the last line, made harmless. has_output: of any of them.
    first: ids of the first of them, as far as known. kind: the type of the exception that all of them raised, if known. traceback: lines
    of that task's traceback, made harmless.
    """

    reason: str
    exit_code: int | None
    nodes: dict[str, int]
    task: str = ""
    error: str = ""
    started_us: int = 0
    ended_us: int = 0
    max_rss_kib: int = 0
    stderr: str = ""
    has_output: bool = False
    first: tuple[str, ...] = ()
    kind: str = ""
    traceback: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(self.nodes.values())

    @property
    def word(self) -> str:
        """The reason in words, or the type of the exception."""
        return self.kind or word_for(self.reason, self.exit_code)

    @property
    def said(self) -> str:
        """The last words of the task that represents the group: its exception, else its stderr."""
        return self.error if self.reason == Reason.EXCEPTION else self.stderr

    @property
    def detail(self) -> str:
        """The node's words beyond reason and exit code: the crossed limit, the missing program."""
        usual = {word_for(self.reason, self.exit_code), f"exit code {self.exit_code}", *(f"node {node} was lost" for node in self.nodes)}
        return "" if self.reason == Reason.EXCEPTION or self.error in usual else self.error


def harmless(data: bytes) -> str:
    """Returns anybody's line as one line of at most `LINE_BYTES` that steers no terminal."""
    text = printable(_STEERING.sub("", data.decode("utf-8", "replace"))).strip()
    return text if len(text.encode()) <= LINE_BYTES else text.encode()[: LINE_BYTES - 3].decode("utf-8", "ignore") + "..."


def word_for(reason: str, exit_code: int | None) -> str:
    """Returns the reason in words: `exit code 3`, `killed by SIGSEGV`, `out of memory`."""
    if reason == Reason.EXIT_CODE:
        return f"exit code {told_code(exit_code)}"
    if reason == Reason.SIGNAL:
        return f"killed by {signal_name(exit_code - 128)}" if exit_code else "killed by a signal"
    return _WORDS.get(Reason(reason), reason)


def why_in_short(job: views.JobView) -> str:
    """Returns why a submission waits, or ended, in a few words; "" for no reason."""
    if job.reason == Reason.DEPENDENCY and job.after:
        return f"waits for {', '.join(job.after)}"
    if job.reason == Reason.DEPENDENCY_FAILED and ": submission " in job.detail:
        return "job " + job.detail.partition(": submission ")[2]
    if job.state is State.FAILED and job.reason and not job.detail:
        return word_for(job.reason, job.exit_code)
    return reason_in_words(job.reason, job.detail)


def reason_in_words(reason: str, detail: str) -> str:
    """Returns why work waits, or was cancelled: `cancelled: wrong input`, `held by its user`; "" for no reason."""
    if not reason:
        return ""
    return _BEFORE.get(Reason(reason), "") + detail if detail else _WAITS.get(Reason(reason), reason)


def of_job(job: views.JobView) -> list[Failure]:
    """Returns a submission's failures as the leader, or the history, reports them; the most frequent first."""
    groups: dict[tuple[str, int | None], Failure] = {}
    for view in job.failures:
        known = groups.get((view.reason, view.exit_code))
        nodes = dict(known.nodes) if known is not None else {}
        nodes[view.node] = nodes.get(view.node, 0) + view.tasks
        error = known.error if known is not None else view.error
        is_one = view.reason == Reason.EXCEPTION and sum(nodes.values()) == 1  # of several only the first one's is known
        kind = error.partition(":")[0] if is_one else ""
        groups[view.reason, view.exit_code] = Failure(reason=view.reason, exit_code=view.exit_code, nodes=nodes, error=error, kind=kind)
    return sorted(groups.values(), key=lambda failure: -failure.tasks)


def sentence(failure: Failure, total: int) -> str:
    """Describes failures: `8 of 256 tasks: exit code 3 (5 on n2, 3 on n3): 42_7, 42_9, 42_30, ...`.

    A single one: `out of memory on n1 after 0.1s, over 50M`.
    """
    word = failure.word
    if total > 1:
        more = ", ..." if failure.tasks > len(failure.first) else ""
        which = f": {', '.join(failure.first)}{more}" if failure.first else ""
        return f"{failure.tasks:,} of {counted(total, 'task')}: {word}{_places(failure.nodes)}{which}"
    if failure.reason == Reason.START_FAILED and failure.detail:  # which names the node
        return f"{word}: {failure.detail}"
    ran = elapsed(failure.started_us, failure.ended_us, 0) if failure.started_us and failure.ended_us else ""
    where = "".join(f" on {node}" for node in failure.nodes if node)
    return f"{word}{where}" + (f" after {ran}" if ran else "") + (f", {failure.detail}" if failure.detail else "")


def _places(nodes: dict[str, int]) -> str:
    named = sorted(((node, count) for node, count in nodes.items() if node), key=lambda pair: (-pair[1], pair[0]))
    if not named:
        return ""
    if len(named) == 1:
        return f" on {named[0][0]}"
    shown = [f"{count:,} on {node}" for node, count in named[:_MOST_NODES]]
    if rest := named[_MOST_NODES:]:
        shown.append(f"{sum(count for _, count in rest):,} on {len(rest)} more")
    return f" ({', '.join(shown)})"


def cell(job: views.JobView) -> str:
    """Returns failures for a table: `8: exit code 3 on n2,n3; 2: out of memory on n1`, "" if none is known."""
    told, groups = [], of_job(job)
    for failure in groups[:_MOST_CELLS]:
        nodes = [node for node in failure.nodes if node]
        where = f" on {','.join(nodes[:3])}{f',+{len(nodes) - 3}' if len(nodes) > 3 else ''}" if nodes else ""
        count = f"{failure.tasks:,}: " if len(groups) > 1 else ""  # the column of failures shows the count of a single group
        told.append(count + failure.word + where)
    return "; ".join(told)


def steps(job: views.JobView, failures: Sequence[Failure], *, task: str = "", mine: bool = True) -> list[str]:
    """Returns what to type next, one command each.

    Args: task: an id such as `42_7` if only that task is meant. mine: whether the work is the caller's, who may then run it again.
    """
    several = job.tasks > 1 and not task
    found = []
    if any(failure.has_output for failure in failures):
        found.append(f"rmgr logs {task or job.id}" + (" --failed" if several else ""))
    if cause := unmet(job.reason, job.detail):
        found.append(f"rmgr explain {cause}")
    if several and (raised := next((failure for failure in failures if failure.traceback), None)) is not None:
        found.append(f"rmgr explain {raised.task}")  # with the whole traceback
    again = [failure for failure in failures if failure.reason not in _IN_VAIN]
    which = f" --tasks {task.partition('_')[2]}" if task and job.tasks > 1 else " --failed" if several else ""
    if mine:
        stopped = (failure.error for failure in failures if failure.reason == Reason.START_FAILED)
        options = dict.fromkeys(option for error in stopped for begin, option in _OTHERWISE_STARTED.items() if error.startswith(begin))
        found += [f"rmgr rerun {job.id}{which} {option}" for option in options]
    if mine and again:
        if several and all(failure.reason in {*LOSSES, Reason.POISON} for failure in again):
            which = " --lost"
        found.append(f"rmgr rerun {job.id}{which}{larger_limits(job.memory_bytes, job.asked.get('time_limit') or 0.0, again)}")
    return found


def unmet(reason: str, detail: str) -> str:
    """Returns the id of the submission whose end cancelled the work that waited for it, "" if that is not why it ended."""
    found = re.search(r": submission (\d+) ", detail) if reason == Reason.DEPENDENCY_FAILED else None
    return found[1] if found else ""


def larger_limits(memory_bytes: int, time_limit_s: float, failures: Iterable[Failure]) -> str:
    """Returns options that raise the limits which these tasks have crossed; the limits are those that they had, 0 = none."""
    options = ""
    crossed = [failure for failure in failures if failure.reason in {Reason.OUT_OF_MEMORY, Reason.TIME_LIMIT}]
    starved = [failure.max_rss_kib * 1024 for failure in crossed if failure.reason == Reason.OUT_OF_MEMORY]
    most = max([*starved, memory_bytes]) if starved else 0
    if most:
        wanted = most * (4 if most < 1024 * MIB else 2)
        options += f" --mem {format_size(1 << (wanted - 1).bit_length())}"  # the next power of two
    if time_limit_s and len(crossed) > len(starved):
        options += f" -t {_asked_time(2 * time_limit_s)}"
    return options


def _asked_time(seconds: float) -> str:
    """Returns a time as `-t` takes it: `90s`, `15m`, `2h`."""
    whole = max(1, -int(-seconds // 1))
    for unit, length in (("h", 3600), ("m", 60)):
        if whole >= 2 * length:
            return f"{-(-whole // length)}{unit}"
    return f"{whole}s"
