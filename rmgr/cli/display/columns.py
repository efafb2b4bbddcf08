"""The columns of each table: the default ones of cli.md section 4, and those that `-o` may add."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rmgr.cli.display.render import Column, age, clock, elapsed, here, paint, printable
from rmgr.model.node import NodeState
from rmgr.model.states import Reason, State
from rmgr.model.units import counted, format_duration, format_size
from rmgr.model.views import ClassView, JobView, NodeView, PromiseView, QueueView


def node_list(names: Sequence[str], most: int = 3) -> str:
    """Returns a short list of nodes: `n1,n2,n3,+5`."""
    more = len(names) - most
    return ",".join(names) if more <= 0 else f"{','.join(names[:most])},+{more}"


def tasks_done(job: JobView) -> str:
    """Returns `37/100` if some tasks have ended, `100` if all have."""
    ended = _ended_tasks(job)
    return str(job.tasks) if 0 < job.tasks <= ended else f"{ended}/{job.tasks}"


def _ended_tasks(job: JobView) -> int:
    return sum(job.counts.get(name, 0) for name in ("COMPLETED", "FAILED", "CANCELLED"))


def _failed_tasks(job: JobView) -> int:
    return job.counts.get("FAILED", 0)


def _running_tasks(job: JobView) -> int:
    return sum(job.counts.get(name, 0) for name in ("RUNNING", "STARTING", "SUSPENDED"))


def time_left(job: JobView, now_us: int) -> str:
    """Returns the time left: `~2m` at the pace of the job's tasks so far, `<9m30s` as the limit allows; "" if unknown."""
    if not job.started_us or job.state not in {State.RUNNING, State.STARTING, State.SUSPENDED}:
        return ""
    ended, ran_us = _ended_tasks(job), max(0, now_us - job.started_us)
    if ended and job.tasks > ended:
        return f"~{_roughly(ran_us / 1e6 * (job.tasks - ended) / ended)}"
    limit_s = float(job.asked.get("time_limit") or 0)
    if limit_s and job.tasks == 1 and not job.turns:
        return f"<{_roughly(max(0.0, limit_s - ran_us / 1e6))}"
    return ""


def _roughly(seconds: float) -> str:
    """Formats seconds: whole seconds; from 10 minutes on minutes, from 10 hours on hours."""
    unit = 1 if seconds < 600 else 60 if seconds < 36_000 else 3600
    return format_duration(max(1, round(seconds / unit)) * unit)


def where_or_why(job: JobView) -> str:
    """Returns where a job runs or ran, or why it waits or ended badly, the main point first: a narrow terminal cuts off the end."""
    if job.reason == Reason.OWNER_GONE:
        return here(job.detail)
    if job.state in {State.RUNNING, State.COMPLETED, State.STARTING, State.SUSPENDED} and job.nodes:
        return f"{node_list(job.nodes)} ({here(job.detail)})" if job.state is State.STARTING and job.detail else node_list(job.nodes)
    from rmgr.cli.display.shapes import cell, why_in_short

    if job.state is State.FAILED and not job.detail and job.failures:
        return cell(job)
    return here(why_in_short(job)) or node_list(job.nodes)


def totals(jobs: Sequence[JobView]) -> str:
    """Returns the last line of `rmgr jobs`: `12 jobs: 4 run, 2 wait, 6 ended; 10,014 of 11,017 tasks done, 4 run, 5 failed`."""
    ended = sum(job.state.is_final for job in jobs)
    waiting = sum(job.state in {State.INITIAL, State.HELD} for job in jobs)
    kinds = (("run", len(jobs) - ended - waiting), ("wait", waiting), ("ended", ended))
    message = f"{counted(len(jobs), 'job')}: " + ", ".join(f"{count} {word}" for word, count in kinds if count)
    tasks, running, failed = (sum(map(of, jobs)) for of in (lambda job: job.tasks, _running_tasks, _failed_tasks))
    if tasks == len(jobs):
        return message + (f"; {failed} failed" if failed else "")
    message += f"; {sum(map(_ended_tasks, jobs)):,} of {counted(tasks, 'task')} done"
    return message + (f", {running:,} run" if running else "") + (f", {failed:,} failed" if failed else "")


def share(account: str, of_account: float | None, of_user: float | None) -> str:
    """Returns the core time used against a share: the account's, if any, before the user's; `-` if no policy orders by it."""
    if of_account is None or of_user is None:
        return "-"
    return f"{format_duration(of_account)}/{format_duration(of_user)}" if account else format_duration(of_user)


def _share_order(job: JobView) -> tuple[float, float] | str:
    return "" if job.account_share is None or job.share is None else (job.account_share, job.share)


def _code(value: int | None) -> str:
    return "" if value is None else str(value)


def job_columns(now_us: int, *, of_all: bool = False) -> tuple[Column, ...]:
    """Returns the columns of `rmgr jobs`. of_all: the jobs of several users are listed, so show the users."""
    return (
        Column(name="ID", also="JOBID", text=lambda j: str(j.id), order=lambda j: j.id, is_id=True, right=True),
        Column(name="NAME", text=lambda j: j.name),
        Column(name="USER", text=lambda j: j.user, default=of_all),
        Column(name="STATE", text=lambda j: str(j.state), state=True),
        Column(name="DONE", text=tasks_done, order=_ended_tasks, right=True),
        Column(name="RUN", text=lambda j: str(_running_tasks(j) or ""), order=_running_tasks, right=True),
        Column(name="FAIL", text=lambda j: str(_failed_tasks(j) or ""), order=_failed_tasks, right=True, style="red"),
        Column(
            name="TIME",
            text=lambda j: _duration(j.served_us) if j.served_us else elapsed(j.started_us, j.ended_us, now_us),
            order=lambda j: j.served_us or ((j.ended_us or now_us) - j.started_us if j.started_us else ""),
            right=True,
        ),
        Column(name="LEFT", text=lambda j: time_left(j, now_us), right=True),
        Column(name="WHERE/WHY", also="NODES(REASON)", text=where_or_why),
        Column(name="QUEUE", text=lambda j: j.queue, default=False),
        Column(name="TASKS", text=lambda j: str(j.tasks), order=lambda j: j.tasks, right=True, default=False),
        Column(name="CLASS", text=lambda j: j.route, default=False),
        Column(name="PRIORITY", text=lambda j: str(j.priority), order=lambda j: j.priority, right=True, default=False),
        Column(name="SHARE", text=lambda j: share(j.account, j.account_share, j.share), order=_share_order, right=True, default=False),
        Column(name="SUBMITTED", text=lambda j: clock(j.submitted_us), order=lambda j: j.submitted_us, default=False),
        Column(name="STARTED", text=lambda j: clock(j.started_us), order=lambda j: j.started_us, default=False),
        Column(name="ENDED", text=lambda j: clock(j.ended_us), order=lambda j: j.ended_us, default=False),
        Column(name="EXIT", text=lambda j: _code(j.exit_code), order=lambda j: j.exit_code, right=True, default=False),
        Column(name="CORES", text=lambda j: str(j.cores), order=lambda j: j.cores, right=True, default=False),
        Column(name="PROCESSES", text=lambda j: str(max(1, j.processes)), order=lambda j: j.processes, right=True, default=False),
        Column(name="START", text=lambda j: clock(j.expected_start_us), order=lambda j: j.expected_start_us, default=False),
        Column(
            name="MEM", text=lambda j: format_size(j.memory_bytes) if j.memory_bytes else "", order=lambda j: j.memory_bytes, default=False
        ),
        Column(name="REASON", text=lambda j: str(j.reason), default=False),
        Column(name="NODES", text=lambda j: ",".join(j.nodes), default=False),
        Column(name="AFTER", text=lambda j: ",".join(j.after), default=False),
        Column(name="WORK", text=lambda j: str(j.work), default=False),
        Column(name="COMMAND", text=lambda j: j.command, default=False),
        Column(name="SLOTS", text=lambda j: j.slots, default=False),
        *(_count_column(state) for state in ("INITIAL", "STARTING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "HELD", "SUSPENDED")),
    )


def task_columns(now_us: int) -> tuple[Column, ...]:
    """Returns the columns of `rmgr tasks`."""
    return (
        Column(name="TASK", text=lambda t: t.id, order=lambda t: (t.submission, t.position), is_id=True),
        Column(name="STATE", text=lambda t: str(t.state), state=True),
        Column(name="ATTEMPT", text=lambda t: str(t.attempt or ""), order=lambda t: t.attempt, right=True),
        Column(name="NODE", text=lambda t: t.node),
        Column(
            name="TIME",
            text=lambda t: elapsed(t.started_us, t.ended_us, now_us),
            order=lambda t: (t.ended_us or now_us) - t.started_us if t.started_us else "",
            right=True,
        ),
        Column(name="EXIT", text=lambda t: _code(t.exit_code), order=lambda t: t.exit_code, right=True),
        Column(name="ERROR", text=lambda t: here(t.error) or (f"({t.reason})" if t.reason and t.state is not State.COMPLETED else "")),
        Column(name="REASON", text=lambda t: str(t.reason), default=False),
        Column(name="INDEX", text=lambda t: str(t.index), order=lambda t: t.index, right=True, default=False),
        Column(name="STARTED", text=lambda t: clock(t.started_us), order=lambda t: t.started_us, default=False),
        Column(name="ENDED", text=lambda t: clock(t.ended_us), order=lambda t: t.ended_us, default=False),
        Column(name="CPUTIME", text=lambda t: format_duration(t.cpu_us / 1e6) if t.cpu_us else "", order=lambda t: t.cpu_us, default=False),
        Column(name="MAXRSS", text=lambda t: _rss(t.max_rss_kib), order=lambda t: t.max_rss_kib, right=True, default=False),
    )


def _rss(kib: int) -> str:
    return format_size(kib * 1024) if kib else ""


def _memory(node: NodeView) -> str:
    if not node.memory_bytes:
        return ""
    return f"{format_size(node.memory_used_bytes)}/{format_size(node.memory_bytes)}"


def _resources(node: NodeView) -> str:
    return " ".join(f"{name}:{node.resources_used.get(name, 0)}/{count}" for name, count in sorted(node.resources.items()))


def _node_state(node: NodeView) -> str:
    """Returns the state as `state_words` does, but in the reader's own time."""
    return f"{node.state} until {clock(node.until_us)}" if node.state == NodeState.QUARANTINED and node.until_us else str(node.state)


def _node_reason(node: NodeView) -> str:
    """Returns the reason, after the user who drained or resumed the node, and when: a narrow terminal cuts off the end."""
    is_resumed = node.state == NodeState.UP
    who = f"{'resumed' if is_resumed else 'drained'} by {node.by}, {clock(node.since_us)}" if node.by else ""
    return ": ".join(told for told in (who, here(node.reason)) if told)


def node_columns(now_us: int) -> tuple[Column, ...]:
    """Returns the columns of `rmgr nodes`, with used/total for resources."""
    return (
        Column(name="NODE", text=lambda n: n.id, is_id=True),
        Column(name="STATE", text=_node_state, state=True),
        Column(name="CORES", text=lambda n: f"{n.cores_used}/{n.cores}", order=lambda n: n.cores, right=True),
        Column(name="MEM", text=_memory, order=lambda n: n.memory_bytes, right=True),
        Column(name="GRES", text=_resources),
        Column(name="RUN", text=lambda n: str(n.running), order=lambda n: n.running, right=True),
        Column(name="LOAD", text=lambda n: "" if n.load is None else f"{n.load:.2f}", order=lambda n: n.load, right=True),
        Column(name="SEEN", text=lambda n: age(n.seen_us, now_us), order=lambda n: n.seen_us, right=True),
        Column(name="REASON", text=_node_reason),
        Column(name="BY", text=lambda n: n.by, default=False),
        Column(name="SINCE", text=lambda n: clock(n.since_us) if n.since_us else "", order=lambda n: n.since_us, default=False),
        Column(name="PARTITION", text=lambda n: n.partition, default=False),
        Column(name="SITE", text=lambda n: n.site, default=False),
        Column(name="SPEED", text=lambda n: f"{n.speed:g}", order=lambda n: n.speed, right=True, default=False),
        Column(name="FEATURES", text=lambda n: ",".join(n.features), default=False),
        Column(name="HOST", text=lambda n: n.host, default=False),
        Column(name="PID", text=lambda n: str(n.pid or ""), order=lambda n: n.pid, right=True, default=False),
        Column(name="INCARNATION", text=lambda n: str(n.incarnation), order=lambda n: n.incarnation, right=True, default=False),
        Column(name="ENDPOINT", text=lambda n: n.endpoint, default=False),
        Column(name="FIX", text=lambda n: n.fix, default=False),
        Column(name="METRICS", text=lambda n: n.metrics, default=False),
        Column(name="VERSION", text=lambda n: n.version, default=False),
        Column(name="FREEZER", text=lambda n: n.freezer, default=False),
        Column(name="CLOCK", text=_clock_error, order=lambda n: n.clock_error_us or 0, right=True, default=False),
        Column(name="LATE", text=lambda n: f"{n.late_switches}/{n.switches}" if n.switches else "", right=True, default=False),
        Column(name="CALLCORES", text=lambda n: str(n.call_cores or ""), order=lambda n: n.call_cores, right=True, default=False),
    )


def _clock_error(node: NodeView) -> str:
    return "" if node.clock_error_us is None else format_duration(node.clock_error_us / 1e6)


def _max_time(queue: QueueView) -> str:
    seconds = queue.limits.get("max_time_s", 0)
    return format_duration(float(seconds)) if seconds else ""


def _limit_size(queue: QueueView) -> str:
    size = queue.limits.get("max_memory_bytes", 0)
    return format_size(float(size)) if size else ""


def _reserved(queue: QueueView) -> str:
    cores = sum(held.cores for held in queue.held)
    return f"{counted(cores, 'core')} for {', '.join(dict.fromkeys(held.job for held in queue.held))}" if cores else ""

QUEUE_COLUMNS = (
    Column(name="QUEUE", text=lambda q: q.id, is_id=True),
    Column(name="STATE", text=lambda q: q.state, state=True),
    Column(name="POLICY", text=lambda q: q.policy),
    Column(name="PENDING", text=lambda q: str(q.pending), order=lambda q: q.pending, right=True),
    Column(name="RUNNING", text=lambda q: str(q.running), order=lambda q: q.running, right=True),
    Column(name="MAXTIME", text=_max_time, order=lambda q: float(q.limits.get("max_time_s", 0)), right=True),
    Column(name="HELD", text=lambda q: str(q.held_tasks), order=lambda q: q.held_tasks, right=True, default=False),
    Column(name="RESERVED", text=_reserved, order=lambda q: sum(held.cores for held in q.held), default=False),
    Column(name="PARTITION", text=lambda q: q.partition, default=False),
    Column(name="DISPATCH", text=lambda q: str(q.dispatch), default=False),
    Column(name="MAXCORES", text=lambda q: str(q.limits.get("max_cores", "")), right=True, default=False),
    Column(name="MAXMEM", text=_limit_size, right=True, default=False),
)

HELD_COLUMNS = (
    Column(name="HELD FOR", text=lambda h: h.job, is_id=True),
    Column(name="QUEUE", text=lambda h: h.queue),
    Column(name="NODE", text=lambda h: h.node),
    Column(name="CORES", text=lambda h: str(h.cores), order=lambda h: h.cores, right=True),
    Column(name="SINCE", text=lambda h: clock(h.since_us), order=lambda h: h.since_us),
    Column(name="EXPECTED START", text=lambda h: clock(h.expected_start_us), order=lambda h: h.expected_start_us),
)


def _elapsed_us(job: JobView) -> int:
    return max(0, job.ended_us - (job.started_us or job.submitted_us)) if job.ended_us else 0

HISTORY_COLUMNS = (
    Column(name="ID", also="JOBID", text=lambda j: str(j.id), order=lambda j: j.id, is_id=True, right=True),
    Column(name="NAME", text=lambda j: j.name),
    Column(name="USER", text=lambda j: j.user),
    Column(name="STATE", text=lambda j: str(j.state), state=True),
    Column(name="EXIT", text=lambda j: _code(j.exit_code), order=lambda j: j.exit_code, right=True),
    Column(name="SUBMITTED", text=lambda j: clock(j.submitted_us), order=lambda j: j.submitted_us),
    Column(name="ELAPSED", text=lambda j: format_duration(_elapsed_us(j) / 1e6) if j.ended_us else "", order=_elapsed_us, right=True),
    Column(name="CPUTIME", text=lambda j: format_duration(j.cpu_us / 1e6) if j.cpu_us else "", order=lambda j: j.cpu_us, right=True),
    Column(name="MAXRSS", text=lambda j: _rss(j.max_rss_kib), order=lambda j: j.max_rss_kib, right=True),
    Column(name="NODES", text=lambda j: node_list(j.nodes)),
    Column(name="QUEUE", text=lambda j: j.queue, default=False),
    Column(name="ACCOUNT", text=lambda j: j.account, default=False),
    Column(name="REASON", text=lambda j: str(j.reason), default=False),
    Column(name="TASKS", text=lambda j: str(j.tasks), order=lambda j: j.tasks, right=True, default=False),
    Column(name="STARTED", text=lambda j: clock(j.started_us), order=lambda j: j.started_us, default=False),
    Column(name="ENDED", text=lambda j: clock(j.ended_us), order=lambda j: j.ended_us, default=False),
    Column(name="COMMAND", text=lambda j: j.command, default=False),
    Column(name="SERVED", text=lambda j: _duration(j.served_us), order=lambda j: j.served_us, right=True, default=False),
    Column(name="TURNS", text=lambda j: str(j.turns or ""), order=lambda j: j.turns, right=True, default=False),
)


def _duration(time_us: int) -> str:
    return format_duration(time_us / 1e6) if time_us else ""


def _count_column(state: str) -> Column:
    """Returns a column with the number of a submission's tasks in `state`."""
    return Column(name=state, text=lambda j: str(j.counts.get(state, 0)), order=lambda j: j.counts.get(state, 0), default=False)


# -- queues: queue classes, reservations ---------------------------------------------------------------------------------------


def _of(queue: QueueView) -> ClassView:
    assert queue.of_class is not None
    return queue.of_class


def _text_or_unknown(queue: QueueView, text: str) -> str:
    """Returns `text`, or "?" if it is known to a leader only and there is none."""
    return text if _of(queue).is_known else "?"


def _limit(queue: QueueView, name: str) -> str:
    return str(queue.limits.get(name, ""))


def _cores(queue: QueueView) -> int:
    return sum(promise.cores for promise in _of(queue).promised)


def _promised(queue: QueueView) -> str:
    cores = _cores(queue)
    return f"{cores} for {node_list([promise.job for promise in _of(queue).promised], most=2)}" if cores else ""


def _reserves(queue: QueueView, text: str) -> str:
    return text if _of(queue).max_reservations else ""

CLASS_COLUMNS = (
    Column(name="CLASS", text=lambda q: q.id, is_id=True),
    Column(name="WAIT", text=lambda q: _text_or_unknown(q, str(q.pending)), order=lambda q: q.pending, right=True),
    Column(name="RUN", text=lambda q: _text_or_unknown(q, str(q.running)), order=lambda q: q.running, right=True),
    Column(name="CPUS", text=lambda q: _limit(q, "max_cpus"), right=True),
    Column(name="PROCS", text=lambda q: _limit(q, "max_processes"), right=True),
    Column(name="THREADS", text=lambda q: _limit(q, "max_threads"), right=True),
    Column(name="TIME", text=_max_time, order=lambda q: float(q.limits.get("max_time_s", 0)), right=True),
    Column(name="OVER", text=lambda q: _reserves(q, str(_of(q).threshold)), order=lambda q: _of(q).threshold, right=True),
    Column(name="RES", text=lambda q: _reserves(q, f"{len(_of(q).promised)}/{_of(q).max_reservations}"), right=True),
    Column(name="FIRED", text=lambda q: _reserves(q, _text_or_unknown(q, "/".join(map(str, _of(q).fired)))), right=True),
    Column(name="PROMISED", text=_promised, order=_cores),
    Column(name="PARTITION", text=lambda q: q.partition, default=False),
    Column(name="STATE", text=lambda q: q.state, state=True, default=False),
    Column(name="POLICY", text=lambda q: q.policy, default=False),
    Column(name="LIMITS", text=lambda q: _of(q).limits, default=False),
    Column(name="CHOSEN", text=lambda q: _of(q).chosen, default=False),
)


def draw_class(queue: QueueView) -> None:
    """Draws one class, in words."""
    out, found = sys.stdout, _of(queue)
    lines = [
        ("class", f"{queue.id} of partition {queue.partition}, placed by {queue.policy}, {queue.state}"),
        ("limits", found.limits),
        ("jobs", f"{queue.pending} wait, {queue.running} run" if found.is_known else "only the leader knows, and it does not answer"),
    ]
    lines += [("chosen", found.chosen)] if found.chosen else []
    lines += [("reserves", _when(found)), *_fired(found)]
    lines += [("promised" if not at else "", _promise(promise)) for at, promise in enumerate(found.promised)]
    for name, told in lines:
        out.write(f"{paint(f'{name:<9}', 'bold', out)}  {printable(told)}\n")
    out.flush()


def _when(found: ClassView) -> str:
    if not found.max_reservations:
        return "nothing: its jobs wait for free cores"
    head = ", or as the first of it when something has ended and it cannot start" if found.head_trigger else ""
    return (
        f"cores of running jobs, for at most {found.max_reservations} of its jobs at a time ({len(found.promised)} now): for one whose "
        f"individual priority is above {found.threshold}, one that comes to the empty class and cannot start{head}"
    )


def _fired(found: ClassView) -> Sequence[tuple[str, str]]:
    if not found.max_reservations or not found.is_known:
        return ()
    priority, head, no_waiter = found.fired
    return (("fired", f"priority {priority}, head {head}, no waiter {counted(no_waiter, 'time')} (reservations made)"),)


def _promise(promise: PromiseView) -> str:
    free = f", {promise.held} of them free already" if promise.held else ""
    waits = f"; waits for the end of {node_list(promise.waits_for, most=8)}" if promise.waits_for else ""
    start = f"; starts by {clock(promise.expected_start_us)}" if promise.expected_start_us else ""
    return f"{counted(promise.cores, 'core')} for {promise.job}{free}{waits}{start}"
