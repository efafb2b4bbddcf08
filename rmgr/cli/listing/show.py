"""`rmgr show` and `rmgr explain`: everything about one submission or task, and why it is in its state."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
import msgspec

from rmgr.cli.display import shapes
from rmgr.cli.display.columns import node_list
from rmgr.cli.display.render import STATE_STYLES, Layout, clock, elapsed, emit, folded, here, now_us, paint, printable, table, told_counts
from rmgr.cli.display.shapes import Failure, harmless, of_job, sentence, steps
from rmgr.cli.session import Session, command
from rmgr.cli.session.tables import find_one, positions_of
from rmgr.coord.views.submission import changes_in_words as changed_in_words
from rmgr.coord.views.submission import in_words
from rmgr.errors import NotFound, RmgrError, UsageError
from rmgr.model.states import Reason, State
from rmgr.model.units import counted, format_duration, format_size
from rmgr.model.views import AttemptView, ExplainView, JobView, MovingView, TaskView, WhyView

if TYPE_CHECKING:
    from rmgr.cli.waiting import FollowedEnd

_EXITS = "0 ok, 3 no such id, 5 ZooKeeper cannot be reached"
#: Most groups shown with output of one of their tasks, and most tasks per group whose logs are searched for some.
MOST_SHOWN, _LOOKED_AT = 5, 3
#: Most lines shown of a traceback: the last ones.
_MOST_LINES = 20
#: What `rmgr run` writes below what a rank has said itself before it failed.
_OF_RANK = re.compile(r"rmgr run: rank \d+ on node \S+ ended with code \d+(?:: the others are ended)?")
#: What `faulthandler` writes when Python crashes: why, and the innermost place.
_CRASH = re.compile(rb"^(Fatal Python error: [^\n]{1,200})\n[^\0]{0,2000}?\(most recent call first\):\n +(File [^\n]{1,300})", re.MULTILINE)


@command(
    "show",
    examples="""\
    rmgr show 42          a submission
    rmgr show 42_7        one task with all its attempts
    rmgr show last --json""",
    exits=_EXITS,
)
@click.argument("selectors", metavar="ID", nargs=-1, required=True)
def show(session: Session, selectors: tuple[str, ...]) -> None:
    """Shows everything known about a submission, or about one task with its attempts."""
    if len(selectors) > 1:  # `show job 1`, as in other systems
        kind = selectors[0]
        about = "rmgr nodes" if kind.startswith("node") else "rmgr queues" if kind.startswith(("queue", "part")) else "rmgr show"
        raise UsageError(f"show takes one ID, not {len(selectors)} words", hint=f"{about} {selectors[-1]}")
    target, job = find_one(session, selectors[0])
    if target.tasks:
        task = find_task(session, job, target.tasks[0])
        bad = bad_ends_of(session, job, task.position) if task.state.is_final else BadEnds()
        then = _steps(session, job, bad, task.id)
        if session.json:
            emit(shapes.shown_task(task, job) | shapes.failures(bad.failures, then))
        else:
            _draw_task(task, job, [*told(bad, job, 1), *_labelled_steps(then)])
        return
    only = _only_task(session, job)
    bad = bad_ends_of(session, job)
    then = _steps(session, job, bad)
    attempts: Sequence[AttemptView] = only.attempts if only is not None else ()
    if session.json:
        emit(shapes.shown_job(job, attempts, only.story if only is not None else ()) | shapes.failures(bad.failures, then))
    else:
        draw_job(job, only, [*told(bad, job, job.tasks), *_labelled_steps(then)])


@command("explain", examples="rmgr explain 42\nrmgr explain 42_7\nrmgr explain last --json", exits=_EXITS)
@click.argument("selector", metavar="ID")
def explain(session: Session, selector: str) -> None:
    """Explains why work waits and for what, or how it ended."""
    target, _ = find_one(session, selector)
    number = target.submission
    position = positions_of(session, number, target.tasks)[0] if target.tasks else None
    try:
        view = session.query().explain(number, position)
    except NotFound:
        if position is not None:
            raise
        view = _explained_past(session.query().job(number))
    view = _with_story(session, view, position)
    if position is not None and view.state in {State.FAILED, State.CANCELLED}:
        view = _with_end(session, view, position)
    bad, then, lines, total = BadEnds(), [], [], 1
    if view.state is not State.COMPLETED and (position is None or view.state.is_final):
        job = session.query().job(number)
        bad = bad_ends_of(session, job, position)
        then = _steps(session, job, bad, view.id if position is not None else "")
        total = 1 if position is not None else job.tasks
        lines = [*told(bad, job, total), *_labelled_steps(then)]
    if session.json:
        more = [WhyView(what="failed", id=item.task or view.id, detail=sentence(item, total)) for item in bad.failures]
        emit(shapes.explain(msgspec.structs.replace(view, why=(*view.why, *more))) | shapes.failures(bad.failures, then))
        return
    if bad.failures and not bad.is_past:  # its end is described below
        view = msgspec.structs.replace(view, why=tuple(item for item in view.why if item.what != "ended"))
    draw_explained(view, lines)


def _shares(account: str, of_account: float, of_user: float) -> str:
    """Describes used shares; their half-life is the policy's."""
    whose = f"account {account} {format_duration(of_account)}, its user" if account else "its user"
    return f"{whose} {format_duration(of_user)} of core time against the share; who has used least goes first"


def find_task(session: Session, job: JobView, index: int) -> TaskView:
    """Returns the task that people call `index`. Raises NotFound."""
    position = positions_of(session, job.id, [index], total=job.tasks)[0]
    return session.query().tasks(job.id, first=position, limit=1)[0]


def _only_task(session: Session, job: JobView) -> TaskView | None:
    """Returns the task of a submission that has just one; None if it has several, or is history."""
    if job.tasks != 1:
        return None
    try:
        return session.query().tasks(job.id)[0]
    except NotFound:
        return None


def _steps(session: Session, job: JobView, bad: BadEnds, task: str = "") -> list[str]:
    """Returns what to type next; history can be neither read nor run again."""
    return [] if bad.is_past else steps(job, bad.failures, task=task, mine=job.user == session.me)


def _labelled_steps(commands: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (name, command) for each line."""
    return [("next" if not at else "", command_) for at, command_ in enumerate(commands)]


def _explained_past(job: JobView) -> ExplainView:
    number = f"all {job.tasks} tasks" if job.tasks != 1 else "its only task"
    detail = f"it is history: {number} ended ({told_counts(job.counts)}), and no output is kept; rmgr history {job.id} tells the rest"
    why = WhyView(what="ended", id=str(job.id), detail=detail)
    return ExplainView(id=str(job.id), state=job.state, reason=job.reason, why=(why,), priority=job.priority, account=job.account)


def _with_story(session: Session, view: ExplainView, position: int | None) -> ExplainView:
    """Adds the story of a running task's checkpoints and of its claim."""
    from rmgr.coord.ops.work import CLAIM_WAS_GONE

    if view.state not in {State.RUNNING, State.STARTING, State.STOPPING}:
        return view
    number = int(view.id.partition("_")[0])
    try:
        tasks = session.query().tasks(number, first=position or 0, limit=2 if position is None else 1)
    except NotFound:
        return view
    told = []
    for task in tasks if len(tasks) == 1 else ():
        claims = [line for line in task.story if line.startswith(CLAIM_WAS_GONE)]
        others = [line for line in task.story if line not in claims]
        kinds = (("checkpoints", others), ("claim", claims))
        told += [WhyView(what=what, id=task.id, detail="; ".join(lines)) for what, lines in kinds if lines]
    return msgspec.structs.replace(view, why=(*view.why, *told))


def _with_end(session: Session, view: ExplainView, position: int) -> ExplainView:
    """Adds why a task ended as it did; the leader keeps the states of ended tasks alone."""
    try:
        [task] = session.query().tasks(int(view.id.partition("_")[0]), first=position, limit=1)
    except (NotFound, ValueError):
        return view
    why = view.why
    if task.state is State.CANCELLED:
        ran = f", on {task.node} after {elapsed(task.started_us, task.ended_us, 0)}" if task.node and task.started_us else "; it never ran"
        words = shapes.reason_in_words(task.reason, task.error if task.error != task.reason else "")
        why = (WhyView(what="ended", id=view.id, detail=words + ran),)
    return msgspec.structs.replace(view, reason=task.reason, why=why)


# -- drawing -------------------------------------------------------------------------------------------------------------------


def draw_explained(view: ExplainView, bad: Sequence[tuple[str, str]]) -> None:
    """Draws an explanation. bad: the failures, as `told` returns them."""
    out = sys.stdout
    head = f"{view.id} is {paint(str(view.state), STATE_STYLES.get(str(view.state), ''), out)}"
    out.write(f"{head} ({view.reason})\n" if view.reason else f"{head}\n")
    for item in view.why:
        label = f"{item.what}:" if item.id in {"", view.id} else f"{item.what} {item.id}:"
        out.write(f"  {paint(label, 'bold', out)} {folded(here(item.detail), out, begin=len(f'  {label} '), indent=4)}\n")
    for name, words in bad:
        indent = len("  next: ") if words.startswith("rmgr ") and not name else 4
        label = f"  {name}: " if name else " " * indent
        out.write(paint(label, "bold", out) + folded(printable(words), out, begin=len(label), indent=indent + 2) + "\n")
    if view.expected_start_us:
        out.write(f"  expected to start at {clock(view.expected_start_us)}\n")
    if not view.state.is_final:
        out.write(f"  {paint('priority:', 'bold', out)} {view.priority}\n")
        if view.share is not None and view.account_share is not None:
            out.write(f"  {paint('fair share:', 'bold', out)} {printable(_shares(view.account, view.account_share, view.share))}\n")


def draw_job(job: JobView, only: TaskView | None, bad: list[tuple[str, str]]) -> None:
    counts = told_counts(job.counts)
    _fields(
        ("id", str(job.id)),
        ("name", job.name),
        ("user", job.user),
        ("queue", job.queue + (f", class {job.route}" if job.route else "") + (f", priority {job.priority}" if job.priority else "")),
        ("state", _state(job.state, job.reason, job.detail) + (f", {clock(job.by_us)}" if job.by_us else "")),
        ("tasks", f"{job.tasks}: {counts}" if job.tasks != 1 else ""),
        ("submitted", clock(job.submitted_us)),
        ("expected", f"to start at {clock(job.expected_start_us)}" if job.expected_start_us else ""),
        ("started", clock(job.started_us)),
        ("ended", clock(job.ended_us) + (f"  after {elapsed(job.started_us, job.ended_us, 0)}" if job.ended_us and job.started_us else "")),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("asks for", _request(job)),
        ("", in_words(job.asked, clock)),
        ("moves", _moving_text(job.moving)),
        ("after", ", ".join(job.after)),
        *_changes(job),
        ("account", job.account),
        ("used", _used_text(job.cpu_us, job.max_rss_kib)),
        ("served", _served_text(job)),
        ("nodes", node_list(job.nodes, 12)),
        (str(job.work) or "command", job.command),
        *bad,
    )
    if only is not None:
        _draw_attempts(only.attempts)
        _draw_story(only)


def _changes(job: JobView) -> list[tuple[str, str]]:
    """Returns lines about changes since the submission was sent: when, by whom, what."""
    told: list[tuple[str, str]] = []
    for one in job.asked.get("changes", ()):
        who = f"{one['by']}, an operator" if one["operator"] else one["by"]
        told.append(("" if told else "changed", f"{clock(one['at'])} by {who}: {changed_in_words(one['changed'], clock)}"))
    return told


def _draw_task(task: TaskView, job: JobView, bad: list[tuple[str, str]]) -> None:
    _fields(
        ("id", task.id),
        ("name", job.name),
        ("queue", job.queue),
        ("state", _state(task.state, task.reason, "")),
        ("node", task.node),
        ("checkpoint", here(task.saving)),
        ("moves", _moving_text(task.moving)),
        ("started", clock(task.started_us)),
        ("ended", clock(task.ended_us) + (f"  after {elapsed(task.started_us, task.ended_us, 0)}" if task.ended_us else "")),
        ("exit code", "" if task.exit_code is None else str(task.exit_code)),
        ("error", "" if bad else here(task.error)),
        ("asks for", _request(job)),
        ("", in_words(job.asked, clock)),
        ("used", _used_text(task.cpu_us, task.max_rss_kib)),
        ("served", _served_text(task)),
        (str(job.work) or "command", job.command),
        *bad,
    )
    _draw_attempts(task.attempts)
    _draw_story(task)


def _draw_story(task: TaskView) -> None:
    """Draws the story of a task's checkpoints, oldest first."""
    if task.story:
        sys.stdout.write("\n")
    for words in task.story:
        sys.stdout.write(f"{folded(here(words), sys.stdout, indent=2)}\n")


def _draw_attempts(attempts: Sequence[AttemptView]) -> None:
    from rmgr.cli.display.render import Column

    if not attempts:
        return
    now = now_us()
    sys.stdout.write("\n")
    table(
        attempts,
        (
            Column(name="ATTEMPT", text=lambda a: str(a.attempt), is_id=True, right=True),
            Column(name="STATE", text=lambda a: str(a.state), state=True),
            Column(name="NODE", text=lambda a: a.node),
            Column(name="STARTED", text=lambda a: clock(a.started_us)),
            Column(name="TIME", text=lambda a: elapsed(a.started_us, a.ended_us, now), right=True),
            Column(name="EXIT", text=lambda a: "" if a.exit_code is None else str(a.exit_code), right=True),
            Column(name="REASON", text=lambda a: str(a.reason)),
            Column(name="ERROR", text=lambda a: "" if a.error == f"exit code {a.exit_code}" else here(a.error)),
        ),
        Layout(),
    )


def _fields(*pairs: tuple[str, str]) -> None:
    width = max(len(name) for name, value in pairs if value)
    for name, value in pairs:
        if value:
            shown = value if name == "state" else printable(value)
            if name not in {"state", "command"}:
                shown = folded(shown, sys.stdout, begin=width + 2, indent=width + 2)
            sys.stdout.write(f"{paint(f'{name:<{width}}', 'bold', sys.stdout)}  {shown}\n")


def _state(state: State, reason: str, detail: str) -> str:
    message = f" ({reason}{f': {here(detail)}' if detail else ''})" if reason else ""
    return paint(str(state), STATE_STYLES.get(str(state), ""), sys.stdout) + message


def _request(job: JobView) -> str:
    cores = f"{job.cores} core{'s' if job.cores != 1 else ''}"
    asked = f"{cores}, {format_size(job.memory_bytes)}" if job.memory_bytes else cores
    asked += "".join(f", {count} {name}" for name, count in sorted(job.resources.items()))
    return f"{counted(job.processes, 'process')} of {asked}" if job.processes > 1 else asked


def _moving_text(view: MovingView | None) -> str:
    """Describes what policies may do with a job, if there is anything to say."""
    if view is None or not (view.saves or view.moves or view.most):
        return ""
    cap = f", at most {view.most}" if view.most else ""
    return f"{view.moves} by policies{cap}; {'it saves its state' if view.saves else 'nothing says that it saves its state'}"


def _served_text(view: JobView | TaskView) -> str:
    return f"{format_duration(view.served_us / 1e6)} in {counted(view.turns, 'turn')}" if view.turns else ""


def _used_text(cpu_us: int, rss_kib: int) -> str:
    parts = [f"{format_duration(cpu_us / 1e6)} of CPU" if cpu_us else "", f"{format_size(rss_kib * 1024)} resident" if rss_kib else ""]
    return ", ".join(part for part in parts if part)


# -- what has failed: ends and logs of groups ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Group:
    nodes: dict[str, int] = field(default_factory=dict)
    first: list[FollowedEnd] = field(default_factory=list)

    def add(self, end: FollowedEnd) -> None:
        """Adds an end; only the first few keep their logs."""
        self.nodes[end.node] = self.nodes.get(end.node, 0) + 1
        if len(self.first) < _LOOKED_AT or end.position < self.first[-1].position:
            self.first = sorted([*self.first, end], key=lambda one: one.position)[:_LOOKED_AT]


@dataclass(slots=True)
class BadEnds:
    """Bad ends of a submission with failures. cancelled: in words, "" = none. is_past: only the history reports them."""

    failures: list[Failure] = field(default_factory=list)
    cancelled: str = ""
    is_past: bool = False


def read_bad_ends(session: Session, number: int, total: int, positions: Collection[int] | None = None) -> BadEnds:
    """Returns the failures (of these tasks), the most frequent first, and the cancelled tasks.

    Raises: NotFound if only the history is kept; DataLost. Cost: reads every outcome, and a row of the store for a few tasks.
    """
    from rmgr.cli.waiting import read_ends

    groups: dict[tuple[str, int | None, str], _Group] = {}
    cancelled, why, last_us = 0, "", 0
    for end in read_ends(session, number):
        if positions is not None and end.position not in positions:
            continue
        if end.state is State.FAILED:
            kind = end.error.partition(":")[0] if end.reason == Reason.EXCEPTION else ""
            groups.setdefault((end.reason, end.exit_code, kind), _Group()).add(end)
        elif end.state is State.CANCELLED:
            cancelled, why, last_us = cancelled + 1, why or end.error, max(last_us, end.ended_us)
    ordered = sorted(groups.items(), key=lambda pair: -sum(pair[1].nodes.values()))
    found = [_failure(session, *alike, group, looks=at < MOST_SHOWN) for at, (alike, group) in enumerate(ordered)]
    return BadEnds(found, _cancelled(cancelled, total, why, last_us) if cancelled else "")


def bad_ends_of(session: Session, job: JobView, position: int | None = None) -> BadEnds:
    """Returns the bad ends of a submission, or of its task at `position`; for history, what that reports. Raises: DataLost."""
    if not job.counts.get(State.FAILED):
        return BadEnds()
    try:
        return read_bad_ends(session, job.id, job.tasks if position is None else 1, None if position is None else {position})
    except NotFound:
        return BadEnds(of_job(job) if position is None else [], is_past=True)


def told(bad: BadEnds, job: JobView, total: int) -> list[tuple[str, str]]:
    """Returns (name, words) for people, one per line: each failure, with the last output of one of its tasks; cancelled tasks."""
    lines = []
    for failure in bad.failures[:MOST_SHOWN]:
        lines.append(("failed", sentence(failure, total)))
        if failure.traceback and total == 1:
            lines += [("", f"| {line}") for line in failure.traceback[-_MOST_LINES:]]
        elif failure.said or (failure.detail and total > 1):
            lines.append(("", (f"{failure.task} " if total > 1 and failure.task else "") + f"| {failure.said or failure.detail}"))
    if rest := bad.failures[MOST_SHOWN:]:
        lines.append(("", f"{sum(failure.tasks for failure in rest):,} more, in other ways: rmgr tasks {job.id} --state failed"))
    if bad.cancelled and lines:
        more = f": {here(job.detail)}" if job.detail and here(job.detail) not in bad.cancelled else ""
        lines.append(("cancelled", bad.cancelled + more))
    return lines


def _cancelled(count: int, total: int, why: str, last_us: int) -> str:
    return f"{count:,} of {counted(total, 'task')}" + (f" at {clock(last_us)}" if last_us else "") + (f": {here(why)}" if why else "")


def _failure(session: Session, reason: str, code: int | None, kind: str, group: _Group, *, looks: bool) -> Failure:
    chosen, line = group.first[0], ""
    for end in group.first if looks else ():
        line = last_line(session, end)
        if line:
            chosen = end
            break
    return Failure(
        reason=reason,
        exit_code=code,
        nodes=group.nodes,
        task=chosen.id,
        error=chosen.error,
        started_us=chosen.started_us,
        ended_us=chosen.ended_us,
        max_rss_kib=chosen.max_rss_kib,
        stderr=line,
        has_output=any(any(end.log) or any(end.log_parts) for end in group.first),
        first=tuple(end.id for end in group.first),
        kind=kind,
        traceback=traceback_in(chosen.raised),
    )


def traceback_in(pickled: bytes) -> tuple[str, ...]:
    """Returns the lines of the traceback that travels with an exception, made harmless. Its pickle is looked at, and never loaded."""
    if not pickled:
        return ()
    import pickletools  # costs 5 ms

    text = ""
    with suppress(ValueError):  # not a pickle
        for _, value, _ in pickletools.genops(pickled):
            if isinstance(value, str) and "(most recent call last):\n" in value:
                text = value  # the last one: a message may hold another
    lines = text.encode("utf-8", "replace").splitlines()
    return tuple(" " * (len(line) - len(line.lstrip())) + harmless(line) for line in lines if line.strip())


def last_line(session: Session, end: FollowedEnd) -> str:
    """Returns the last non-empty line of a task's stderr, "" if there is none or the store is away. Cost: reads at most one row.

    Of a call in which Python itself crashed: the cause and the innermost place, which come first there.
    """
    for data in _ends_of_stderr(session, end):
        if (crash := _CRASH.search(data)) is not None:
            return harmless(crash[1] + b": " + crash[2])
        last = ""
        for line in reversed(data[-64 * 1024 :].splitlines()):  # splits bytes at \n and \r only: the last state of a progress bar counts
            if told := harmless(line[:4096]):
                if _OF_RANK.fullmatch(told) is None:
                    return told
                last = last or told
        if last:
            return last
    return ""


def _ends_of_stderr(session: Session, end: FollowedEnd) -> Iterator[bytes]:
    """Yields the part of a task's stderr that came with the end, then the last part in the store."""
    yield end.log[1]
    if not end.log_parts[1]:
        return
    from rmgr.client.logs import read_part

    try:
        yield read_part(session.data_store(), end.submission, end.position, end.attempt, "stderr", end.log_parts[1] - 1)
    except RmgrError as error:
        session.detail(f"{end.id}: its stderr cannot be read: {error.message}")
