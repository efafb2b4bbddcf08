"""Waiting for work: `rmgr wait`, and what `run`, `submit --wait` and `logs -f` share with it.

It handles ends of tasks as they are committed, the report of a failure, files fetched here, exit codes and Ctrl-C.
The Submitter engine delivers outcomes on its own thread; a queue passes them to the thread of the command, where Ctrl-C arrives.
The only change that a wait may ask for is the cancellation that Ctrl-C means.
"""

from __future__ import annotations

import math
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import emit, folded, here, paint, printable, told_counts
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.session.errors import INTERRUPTED, Terminated
from rmgr.cli.session.tables import filter_options, positions_of
from rmgr.cli.words.params import WORK_EXITS, exit_code_of, highest
from rmgr.cli.words.selectors import Filter, parse, resolve, targets_of
from rmgr.client.logs import EndedTask, read_end, tail_of
from rmgr.coord.decisions.keeping import is_branch_not_taken
from rmgr.coord.decisions.progress import EndFold, was_cancelled
from rmgr.coord.protocol.keys import STREAMS
from rmgr.errors import NotFound, RmgrError
from rmgr.model.block import Fragment, Outcome
from rmgr.model.states import Reason, State
from rmgr.model.submission import Array, Phase, Submission, expand_output_name, has_own_name, parse_array
from rmgr.model.units import counted, told_code
from rmgr.model.views import JobView

if TYPE_CHECKING:
    from rmgr.submitter.port import Stored

#: Longest time in seconds between two looks at Ctrl-C, --timeout and progress.
TICK_S = 0.2
#: Number of output lines shown with a failure.
TAIL_LINES = 10
AGAIN_S = 2.0
#: Seconds after which a command says why its work has not begun, for at most `_TOLD` submissions.
PATIENCE_S = 3.0
_TOLD = 3
#: A record in these phases has the reason of its end, and changes no more.
_FINAL = {Phase.CANCELLED, Phase.CLOSED}
_NO_OUTPUT = "(no output)"
#: Seconds between checks whether a TaskQueue whose tasks have all ended still has an owner who could add to it.
_OWNER_S = 2.0


@command(
    "wait",
    examples="""\
    rmgr wait 42
    rmgr wait 42_7 50-60 --progress
    rmgr wait last --timeout 10m
    rmgr wait all --json | jq '.items[] | select(.state != "COMPLETED")'""",
    exits=WORK_EXITS,
)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("--progress", is_flag=True, help="a bar on a terminal, lines elsewhere")
@filter_options
def wait(session: Session, selectors: tuple[str, ...], progress: bool, chosen: Filter) -> None:
    """Waits until submissions or tasks have ended, and exits with their code.

    A TaskQueue whose program is gone counts as ended once all that it submitted has.
    """
    selection = parse(selectors, chosen)
    session.query().check_queue(chosen.queue)
    if selection.needs_list:
        known = session.query().jobs(ended=bool(selection.ranges or selection.last or chosen.states or selection.named))
        targets = resolve(selection, known, me=session.me)
    else:
        targets = targets_of(selection)
    follow = Follow(session)
    ids = [id_ for target in targets for id_ in target.ids]
    try:
        for target in targets:
            positions = positions_of(session, target.submission, target.tasks) if target.tasks else None
            follow.add(target.submission, positions)
        until_ended(session, follow, progress=progress)
    except KeyboardInterrupt:
        raise detached(session, ids, attach=f"rmgr wait {' '.join(ids)}") from None
    if session.json:
        emit({"items": [item for followed in follow.items for item in items_of(followed)]})
    else:
        for item in follow.items:
            tell_failure(session, item, with_tail=True)
    if not targets:
        session.note("nothing of yours waits or runs")
    raise WorkEnded(codes(follow.items))


def until_ended(
    session: Session, follow: Follow, *, progress: bool, on_end: Callable[[FollowedEnd], None] = lambda _: None, title: str = ""
) -> None:
    """Waits until all that is followed has ended; reports when ZooKeeper goes away. Raises DeadlineExceeded, KeyboardInterrupt."""
    from rmgr.client.progress import Counts, ProgressDisplay

    patience_s: float | None = time.monotonic() + PATIENCE_S
    ask_s = time.monotonic() + _OWNER_S
    names = title or " ".join(str(item.number) for item in follow.items)
    with ProgressDisplay(names, enabled=progress and not session.json, trouble=follow.trouble) as display:
        while True:
            counts = [item.counts for item in follow.items]
            display.update(
                Counts(
                    total=sum(item.total for item in follow.items),
                    final=sum(sum(count.values()) for count in counts),
                    failed=sum(count.get(State.FAILED, 0) for count in counts),
                    cancelled=sum(count.get(State.CANCELLED, 0) for count in counts),
                )
            )
            if follow.is_ended:
                break
            for end in follow.next():
                on_end(end)
                patience_s = None
            if patience_s is not None and time.monotonic() > patience_s:
                patience_s = None
                for item in [item for item in follow.items if not item.is_ended][:_TOLD]:
                    tell_why(session, item, say=lambda text: display.say(f"rmgr: {here(text)}"))
            if time.monotonic() > ask_s:
                _look_for_owners(session, [item for item in follow.items if not item.is_ended and item.is_idle])
                ask_s = time.monotonic() + _OWNER_S


def _look_for_owners(session: Session, idle: Sequence[AwaitedSubmission]) -> None:
    """Ends the wait for TaskQueues whose owner is gone and whose tasks have all ended: nobody will submit more."""
    if not idle:
        return
    try:
        jobs = session.query().jobs(tuple(item.number for item in idle), ended=True)
    except RmgrError:
        return  # the next check asks again
    gone = {job.id for job in jobs if job.reason == Reason.OWNER_GONE}
    for item in idle:
        if item.number in gone and not item.is_left:
            item.is_left = True
            session.note(f"{item.number}: its program is gone, all that it submitted has ended")


def tell_why(session: Session, item: AwaitedSubmission, *, say: Callable[[str], None] | None = None) -> None:
    """Says in one line what submitted work waits for while none of it runs, so that the command is not silent."""
    try:
        view = session.query().explain(item.number, None)
    except RmgrError:
        return
    if view.why and not view.state.is_final and view.why[0].what not in {"running", "node"}:
        (say or session.note)(f"{item.number} waits: {view.why[0].detail}")


def items_of(followed: AwaitedSubmission) -> Sequence[dict[str, object]]:
    """Returns what `wait --json` says about one submission, or about the named tasks."""
    from rmgr.cli.display import shapes

    if followed.wanted is not None:
        return [
            shapes.item(end.id, end.state, end.reason, end.exit_code) for end in sorted(followed.ends.values(), key=lambda e: e.position)
        ]
    if followed.past is not None:
        past = followed.past
        return [shapes.item(str(past.id), past.state, past.reason, past.exit_code)]
    worst = followed.worst
    codes_ = [end.exit_code for end in followed.ends.values() if end.exit_code is not None]
    highest = max(codes_, default=None)
    reason = worst.reason if worst is not None else ""
    return [shapes.item(str(followed.number), followed.state, reason, highest)]


# -- following -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedEnd(EndedTask):
    """The end of one task."""

    index: int  #: the number that people see
    state: State
    reason: str
    exit_code: int | None
    node: str
    error: str
    started_us: int = 0
    max_rss_kib: int = 0
    raised: bytes = b""  #: pickle of the exception, if it came with the outcome; only of ends that `read_ends` reads

    @property
    def id(self) -> str:
        """The id of the task: `42_7`."""
        return f"{self.submission}_{self.index}"

    @property
    def code(self) -> int:
        """The exit code for this end (cli.md section 6)."""
        return exit_code_of(self.state, self.reason, self.exit_code)


@dataclass(slots=True)
class AwaitedSubmission:
    """A submission that is waited for. wanted: positions of the tasks, None for all. past: its summary, if it is already history."""

    number: int
    wanted: frozenset[int] | None = None
    submission: Submission | None = None
    handle: Any = None
    past: JobView | None = None
    ends: dict[int, FollowedEnd] = field(default_factory=dict)
    dead: RmgrError | None = None
    is_left: bool = False  #: it could grow, but its owner has gone
    is_read_again: bool = False  #: done after the first of its tasks ended CANCELLED

    @property
    def total(self) -> int:
        """Number of tasks that are waited for, as far as they are submitted."""
        if self.wanted is not None:
            return len(self.wanted)
        return self.past.tasks if self.past is not None else self.handle.progress.total

    def id_of(self, end: FollowedEnd) -> str:
        """The id of a task as people write it: `42_7`, or `42` of a submission's only task."""
        return str(self.number) if self.handle.progress.total == 1 else end.id

    @property
    def counts(self) -> dict[State, int]:
        """Number of ended tasks by state."""
        if self.past is not None:
            return {State(name): count for name, count in self.past.counts.items() if State(name).is_final}
        if self.wanted is None:
            return dict(self.handle.progress.counts)
        states = [end.state for end in self.ends.values()]
        return {state: states.count(state) for state in State if state.is_final}

    @property
    def is_ended(self) -> bool:
        """Whether nothing that is waited for can still change."""
        if self.past is not None:
            return True
        if self.wanted is not None:
            return len(self.ends) >= len(self.wanted)
        return bool(self.handle.progress.is_ended or (self.is_left and self.is_idle)) and len(self.ends) >= self.handle.progress.final

    @property
    def is_idle(self) -> bool:
        """Whether all tasks submitted so far have ended; more may come."""
        return self.past is None and self.wanted is None and self.handle.progress.final >= self.handle.progress.total

    @property
    def state(self) -> State:
        """The state of what is waited for, once it has ended."""
        if self.past is not None:
            return self.past.state
        states = {end.state for end in self.ends.values()}
        if State.FAILED in states:
            return State.FAILED
        if State.CANCELLED in states or (not states and self.submission is not None and was_cancelled(self.submission)):
            return State.CANCELLED
        return State.COMPLETED

    @property
    def worst(self) -> FollowedEnd | None:
        """The end that decides the exit code, None when all is well."""
        bad = [end for end in self.ends.values() if end.code]
        return max(bad, key=lambda end: (end.code, -end.position)) if bad else None

    @property
    def is_not_taken(self) -> bool:
        """Whether the work was to run only after a failure that did not happen."""
        if self.past is not None:
            return is_branch_not_taken(self.past.reason, self.past.detail)
        return self.submission is not None and is_branch_not_taken(self.submission.reason, self.submission.reason_detail)

    @property
    def code(self) -> int:
        """The exit code for this submission."""
        if self.is_not_taken:
            return 0
        if self.past is not None:
            return exit_code_of(self.past.state, self.past.reason, self.past.exit_code)
        if not self.ends:
            return exit_code_of(self.state, "", None)
        failed = [end.code for end in self.ends.values() if end.state is State.FAILED]
        most = self.submission.max_fails if self.submission is not None else -1
        if self.wanted is None and 0 <= most < len(failed):  # --max-fails has cancelled the others
            return highest(failed)
        return highest(end.code for end in self.ends.values())


def _terminate(signum: int, _frame: object) -> None:
    signal.signal(signum, signal.SIG_DFL)
    raise Terminated(signum)


class Follow:
    """Follows submissions until they end.

    Raises (`add`): NotFound. Raises (`next`): DeadlineExceeded at `--timeout`; the error that ended a handle.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._news: queue.SimpleQueue[tuple[AwaitedSubmission, Fragment | None, Sequence[Outcome]]] = queue.SimpleQueue()
        self._engine: Any = None
        self.items: list[AwaitedSubmission] = []
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(signum) is signal.SIG_DFL:  # nohup ignores SIGHUP
                    signal.signal(signum, _terminate)

    def add(self, number: int, wanted: Sequence[int] | None = None, *, made: Stored | None = None) -> AwaitedSubmission:
        """Begins to follow a submission, or its tasks at these positions. Ends that are already history arrive at once.

        made: the submission as committed just now; None: it is read.
        """
        followed = AwaitedSubmission(number, frozenset(wanted) if wanted is not None else None)
        self._session.followed.append(number)
        if self._engine is None:
            self._engine = self._session.submitter()
        try:
            timeout_s = self._session.left_s(10.0)
            followed.handle = self._engine.attach(number, _Listener(self._news, followed), own=False, timeout_s=timeout_s, made=made)
            followed.submission = followed.handle.submission
        except NotFound:
            from rmgr.client.queries import read_past

            followed.past = read_past(self._session, number)
            if followed.past is None:
                raise
        self.items.append(followed)
        return followed

    @property
    def is_ended(self) -> bool:
        """Whether everything that is followed has ended."""
        return all(item.is_ended for item in self.items)

    def trouble(self) -> str:
        """Returns what is wrong with the cluster at present, "" if nothing is known to be."""
        if self._engine is None:
            return ""
        from rmgr.client.submission.engine import trouble_of

        cluster = self._session.config().cluster
        return trouble_of(self._engine.session_state, cluster.gateway if cluster.uses_gateway else "")

    def next(self, wait_s: float = TICK_S) -> list[FollowedEnd]:
        """Returns the ends that have arrived; waits at most `wait_s` for the first.

        Raises: DeadlineExceeded when `--timeout` has run out; NotFound and others when a submission can no longer be followed.
        """
        left_s = self._session.left_s(wait_s)
        ends: list[FollowedEnd] = []
        end = time.monotonic() + (0.0 if self.is_ended else left_s)
        while True:
            try:
                item, fragment, outcomes = self._news.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if item.dead is not None and not item.is_ended:
                raise item.dead
            known = item.submission
            if item.handle is not None and (known is None or known.phase not in _FINAL):  # else it was read again, and is newer
                item.submission = item.handle.submission
            if fragment is not None:
                fresh = _ends(item, fragment, outcomes)
                ends += fresh
                if any(end.state is State.CANCELLED for end in fresh):
                    self._learn_why(item)
            end = -math.inf  # take what else is queued, but wait no longer
        return ends

    def _learn_why(self, item: AwaitedSubmission) -> None:
        """Reads the record of a cancelled submission for the reason; ends of its tasks may arrive before it, by another way."""
        if item.submission is None or item.submission.phase in _FINAL or item.is_read_again:
            return
        from rmgr.submitter.questions import ReadRecord

        with suppress(NotFound):
            item.submission = self._session.ask(ReadRecord(number=item.number)).record
        item.is_read_again = True


class _Listener:
    """`handle.Listener`: passes everything on at once."""

    def __init__(self, news: queue.SimpleQueue[Any], followed: AwaitedSubmission) -> None:
        self._news = news
        self._followed = followed

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        self._news.put((self._followed, fragment, outcomes))

    def on_progress(self) -> None:
        self._news.put((self._followed, None, ()))

    def on_dead(self, error: RmgrError) -> None:
        self._followed.dead = error
        self._news.put((self._followed, None, ()))


def _ends(item: AwaitedSubmission, fragment: Fragment, outcomes: Sequence[Outcome]) -> list[FollowedEnd]:
    assert item.submission is not None
    array = parse_array(item.submission.array) if item.submission.array else None
    fresh = []
    for outcome in outcomes:
        if item.wanted is None or outcome.index in item.wanted:
            end = item.ends[outcome.index] = _end(item.number, array, fragment, outcome)
            fresh.append(end)
    return fresh


def _end(number: int, array: Array | None, fragment: Fragment, outcome: Outcome) -> FollowedEnd:
    started_us = fragment.base_us + outcome.started_us if fragment.base_us else 0
    return FollowedEnd(
        submission=number,
        position=outcome.index,
        index=array.index_at(outcome.index) if array else outcome.index,
        state=outcome.state,
        reason=str(outcome.reason),
        exit_code=outcome.exit_code,
        node=fragment.node,
        attempt=outcome.attempt or fragment.attempt,
        error=outcome.error,
        started_us=started_us,
        ended_us=started_us + outcome.elapsed_us if started_us else 0,
        max_rss_kib=outcome.max_rss_kib,
        log=outcome.log,
        log_parts=outcome.log_parts,
    )


def read_ends(session: Session, number: int) -> Iterator[FollowedEnd]:
    """Yields how the ended tasks of a submission ended, in the order of their commits; reads once, without following it.

    Raises: NotFound, DataLost. Cost: reads every outcome; holds those of one fragment in memory at a time.
    """
    from rmgr.procedures.snapshot import outcomes_of
    from rmgr.submitter.questions import ReadFragments

    ends, first, is_last = EndFold(), 0, False
    while not is_last:
        page = session.ask(ReadFragments(number=number, first=first), 30.0)
        first, is_last = page.next, page.is_last
        array = parse_array(page.record.array) if page.record.array else None
        for fragment in page.fragments:
            store = session.store_or_none() if fragment.row else None
            for outcome in ends.fold(outcomes_of(fragment, store, end=page.total), page.total):
                end = _end(number, array, fragment, outcome)
                yield replace(end, raised=outcome.value) if outcome.reason == Reason.EXCEPTION else end


# -- ends of a wait ------------------------------------------------------------------------------------------------------------


def tell_failure(session: Session, item: AwaitedSubmission, *, with_tail: bool) -> None:
    """Tells on stderr which task failed, where and how, its last lines, and what to type next; says nothing if all is well."""
    if item.is_not_taken:
        detail = item.past.detail if item.past is not None else item.submission.reason_detail if item.submission is not None else ""
        session.note(f"{item.number} was not needed: {detail}")
        return
    if item.past is not None:
        if item.past.state is not State.COMPLETED:
            session.note(f"{item.number} ended {item.past.state} ({item.past.reason}); rmgr history {item.number}")
        return
    failed = [end for end in item.ends.values() if end.state is not State.COMPLETED]
    if not failed:
        if item.state is State.CANCELLED:
            session.note(f"{item.number} was cancelled")
        return
    first = min((end for end in failed if end.state is State.FAILED), key=lambda end: end.position, default=failed[0])
    id_ = item.id_of(first)
    told = _detail(item, first)
    lines = [f"{id_} {how(first)}" + (f"{'; ' if first.error else ': '}{told}" if told and told not in first.error else "")]
    has_run = first.state is State.FAILED and first.reason != Reason.START_FAILED
    tail = _tail(session, first) if with_tail and has_run else []
    lines += tail
    if len(failed) > 1:
        lines.append(f"{len(failed)} of {counted(item.total, 'task')} did not complete: rmgr tasks {item.number} --state failed,cancelled")
    steps = [f"rmgr logs {id_}" if with_tail and first.node else f"rmgr show {id_}"]
    if first.reason == Reason.START_FAILED or tail == [_NO_OUTPUT]:  # the task has written nothing
        steps.clear()
    if limits := _larger_limits(session, item, first):
        more = f" --tasks {first.index}" if item.total > 1 else ""
        steps = [f"rmgr rerun {item.number}{more}{limits}", *(step for step in steps if "logs" in step)]
    if first.state is not State.CANCELLED:
        steps.append(f"rmgr explain {id_}")
    elif cause := _cause(item, first):
        steps = [f"rmgr explain {cause}"]
    lines.append(f"next: {'; '.join(steps)}")
    out = sys.stderr
    out.write(paint(folded(f"rmgr: {printable(lines[0])}", out, indent=6), "red", out) + "\n")
    for line in lines[1:]:
        told = printable(line) if line.startswith("| ") else folded(printable(line), out, begin=6, indent=6)
        out.write(f"      {told}\n")
    out.flush()


def _larger_limits(session: Session, item: AwaitedSubmission, end: FollowedEnd) -> str:
    """Returns options of `rmgr rerun` that raise the limit which the task has crossed; "" for others' work."""
    from rmgr.cli.display.shapes import Failure, larger_limits

    record = item.submission
    if end.reason not in {Reason.OUT_OF_MEMORY, Reason.TIME_LIMIT} or record is None or record.user != session.me:
        return ""
    failure = Failure(reason=end.reason, exit_code=end.exit_code, nodes={end.node: 1}, max_rss_kib=end.max_rss_kib)
    return larger_limits(record.request.memory_bytes, record.request.time_limit_us / 1e6, [failure])


def _cause(item: AwaitedSubmission, end: FollowedEnd) -> str:
    from rmgr.cli.display.shapes import unmet

    return unmet(end.reason, item.submission.reason_detail) if item.submission is not None else ""


def _detail(item: AwaitedSubmission, end: FollowedEnd) -> str:
    """Returns what the submission knows about this end and the task's own message does not say."""
    submission = item.submission
    if submission is None:
        return ""
    if end.state is State.CANCELLED:
        return submission.reason_detail
    return "say what it needs: --mem" if end.reason == Reason.OUT_OF_MEMORY and not submission.request.memory_bytes else ""


def how(end: FollowedEnd) -> str:
    """Describes an end: `FAILED on n1 with exit code 3 (EXIT_CODE), attempt 2: message`."""
    where = f" on {end.node}" if end.node else ""
    shown = told_code(end.exit_code) if end.reason == Reason.EXIT_CODE else end.exit_code
    code = f" with exit code {shown}" if end.exit_code else ""  # one that ended well, and failed all the same, has its reason
    reason = f" ({end.reason})" if end.reason else ""
    attempt = f", attempt {end.attempt}" if end.attempt > 1 else ""
    error = f": {end.error}" if end.error and end.error not in {f"exit code {end.exit_code}", end.reason} else ""
    return f"{end.state}{where}{code}{reason}{attempt}{error}"


def _tail(session: Session, end: FollowedEnd) -> list[str]:
    """Returns the last lines of stderr, or of stdout if stderr is empty."""
    for stream in reversed(STREAMS):
        try:
            lines = tail_of(list(read_end(session, end, stream)), TAIL_LINES)
        except RmgrError as error:
            return [f"(its output cannot be read: {error.message})"]
        if lines:
            return [f"| {line}" for line in lines]
    return [_NO_OUTPUT]


def fetch_files(session: Session, item: AwaitedSubmission) -> None:
    """Writes here, for `-o` and `-e`, the files that tasks wrote on their nodes, under the same names unless they exist here."""
    submission = item.submission
    command = submission.command if submission is not None else None
    if command is None or submission is None or not (command.out or command.err):
        return
    started: set[str] = set()  # both streams may share one file
    for stream, option, pattern in zip(STREAMS, ("-o", "-e"), (command.out, command.err), strict=True):
        if not pattern:
            continue
        for end in sorted(item.ends.values(), key=lambda end: end.position):
            if end.reason == Reason.START_FAILED:
                continue  # it has written nothing, and `tell_failure` says why
            target = Path(
                expand_output_name(pattern, job=end.submission, index=end.index, attempt=end.attempt, name=submission.name, node=end.node)
            )
            try:
                if not target.parent.is_dir():
                    where = f"{option} {target}: there is no directory {target.parent} here"
                    session.note(f"{where}; where a node has none either it was not written: rmgr logs {item.id_of(end)}")
                    break  # one message covers all tasks
                if str(target) not in started and target.exists():
                    continue  # the node wrote it: the node is this machine, or shares a file system with it
                if len(item.ends) > 1 and not has_own_name(pattern):
                    session.note(f"{option} {target} stays on the nodes: several tasks write into it, %a gives each its own")
                    break
                parts = read_end(session, end, stream)
                with target.open("ab") as file:
                    file.writelines(parts)
                started.add(str(target))
            except OSError as error:
                session.note(f"{target} cannot be written on {socket.gethostname()}: {error.strerror}; rmgr logs {item.id_of(end)} -o FILE")


def summary(item: AwaitedSubmission) -> str:
    """Returns a line such as `42: 98 COMPLETED, 2 FAILED`."""
    counts = told_counts(item.counts)
    return f"{item.number}: {counts or 'no task'}"


def codes(items: Sequence[AwaitedSubmission]) -> int:
    """Returns the exit code for several submissions: the highest."""
    return max((item.code for item in items), default=0)


# -- Ctrl-C: once detaches, twice within 2 s cancels (cli.md section 7) --------------------------------------------------------


def detached(session: Session, ids: Sequence[str], *, attach: str) -> WorkEnded:
    """Handles a Ctrl-C, SIGTERM or SIGHUP that has just arrived; returns what the command ends with (exit code 130, 143 or 129).

    Args:
        ids: what was waited for. attach: the command that waits again.
    """
    selected = " ".join(ids)
    by = sys.exc_info()[1]
    try:
        if isinstance(by, Terminated):
            session.note(f"detached from {selected} by {by}; it goes on")
        else:
            session.note(f"detached from {selected}; it goes on (Ctrl-C again within 2 s cancels it)")
            time.sleep(AGAIN_S)
    except Terminated as error:  # is no second Ctrl-C
        by = error
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third Ctrl-C must not stop the cancellation half-way
        _cancel(session, ids, selected)
        return WorkEnded(INTERRUPTED)
    session.note(f"attach again: {attach}")
    session.note(f"cancel:       rmgr cancel {selected}")
    return WorkEnded(by.exit_code if isinstance(by, Terminated) else INTERRUPTED)


def _cancel(session: Session, ids: Sequence[str], selected: str) -> None:
    from rmgr.cli.control.gate import cancel_ids

    session.note(f"cancelling {selected}")
    try:
        changes = cancel_ids(session, ids, reason="cancelled with Ctrl-C")
    except RmgrError as error:
        session.note(f"{error.message}; try: rmgr cancel {selected}")
        return
    for id_, why in changes.unchanged:
        session.note(f"{id_}: {why}")
    if changes.changed:
        session.note(f"cancelled {' '.join(changes.changed)}")
