"""Ends a wait: the report of a failure, files fetched here, exit codes; shared by run, submit --wait, wait and logs -f."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmgr.cli.display.render import folded, paint, printable, told_counts
from rmgr.cli.waiting.follow import AwaitedSubmission, FollowedEnd
from rmgr.client.logs import read_ended, tail_of
from rmgr.coord.protocol.keys import STREAMS
from rmgr.errors import RmgrError
from rmgr.model.base.states import Reason, State
from rmgr.model.base.units import counted

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session

#: Lines of output that a failure shows.
TAIL_LINES = 10


def tell_failure(session: Session, item: AwaitedSubmission, *, with_tail: bool) -> None:
    """On stderr: which task failed, where, how, its last lines, and what to type next. Nothing when all is well."""
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
    single = item.total == 1
    id_ = str(item.number) if single else first.id
    told = _detail(item, first)
    lines = [f"{id_} {how(first)}" + (f"{'; ' if first.error else ': '}{told}" if told and told not in first.error else "")]
    if with_tail and first.state is State.FAILED:
        lines += _tail(session, first)
    if len(failed) > 1:
        lines.append(f"{len(failed)} of {counted(item.total, 'task')} did not complete: rmgr tasks {item.number} --state failed,cancelled")
    steps = [f"rmgr logs {id_}" if with_tail and first.node else f"rmgr show {id_}"]
    if first.reason == Reason.START_FAILED:  # it has written nothing
        steps.clear()
    if first.state is not State.CANCELLED:
        steps.append(f"rmgr explain {id_}")
    lines.append(f"next: {'; '.join(steps)}")
    out = sys.stderr
    out.write(paint(folded(f"rmgr: {printable(lines[0])}", out, indent=6), "red", out) + "\n")
    for line in lines[1:]:
        told = printable(line) if line.startswith("| ") else folded(printable(line), out, begin=6, indent=6)
        out.write(f"      {told}\n")
    out.flush()


def _detail(item: AwaitedSubmission, end: FollowedEnd) -> str:
    """What the submission knows of such an end, and the task's own words do not say."""
    submission = item.submission
    if submission is None:
        return ""
    if end.state is State.CANCELLED:
        return submission.reason_detail
    if end.reason == Reason.OUT_OF_MEMORY:
        return "more: --mem" if submission.request.memory_bytes else "say what it needs: --mem"
    return "more: -t/--time" if end.reason == Reason.TIME_LIMIT else ""


def how(end: FollowedEnd) -> str:
    """`FAILED on n1 with exit code 3 (EXIT_CODE), attempt 2: message`."""
    where = f" on {end.node}" if end.node else ""
    code = f" with exit code {end.exit_code}" if end.exit_code is not None else ""
    reason = f" ({end.reason})" if end.reason else ""
    attempt = f", attempt {end.attempt}" if end.attempt > 1 else ""
    error = f": {end.error}" if end.error and end.error not in {f"exit code {end.exit_code}", end.reason} else ""
    return f"{end.state}{where}{code}{reason}{attempt}{error}"


def _tail(session: Session, end: FollowedEnd) -> list[str]:
    """The last lines of stderr, else of stdout."""
    for number in (1, 0):
        try:
            store = session.data_store() if end.log_parts[number] else None
            parts, rest = end.log_parts[number], end.log[number]
            last = list(read_ended(store, end.submission, end.position, end.attempt, STREAMS[number], parts=parts, rest=rest))
        except RmgrError as error:
            return [f"(its output cannot be read: {error.message})"]
        lines = tail_of(last, TAIL_LINES)
        if lines:
            return [f"| {line}" for line in lines]
    return ["(no output)"]


def fetch_files(session: Session, item: AwaitedSubmission) -> None:
    """`-o` and `-e`: what tasks wrote into files on their nodes is written to the same names here, unless it is here."""
    submission = item.submission
    command = submission.command if submission is not None else None
    if command is None or submission is None or not (command.out or command.err):
        return
    started: set[str] = set()  # both streams may have one file
    for number, pattern in enumerate((command.out, command.err)):
        if not pattern:
            continue
        for end in sorted(item.ends.values(), key=lambda end: end.position):
            target = Path(expand(pattern, end, submission.name))
            try:
                if not target.parent.is_dir():
                    where = f"{('-o', '-e')[number]} {target}: there is no directory {target.parent} here"
                    session.note(f"{where}; where a node has none either it was not written: rmgr logs {end.id}")
                    break  # one word of them all
                if str(target) not in started and target.exists():
                    continue  # the node wrote it: it is this machine, or a shared file system
                store = session.data_store() if end.log_parts[number] else None
                parts = read_ended(
                    store, end.submission, end.position, end.attempt, STREAMS[number], parts=end.log_parts[number], rest=end.log[number]
                )
                with target.open("ab") as file:
                    file.writelines(parts)
                started.add(str(target))
            except OSError as error:
                session.note(f"{target} cannot be written on {socket.gethostname()}: {error.strerror}; rmgr logs {end.id} -o FILE")


def expand(pattern: str, end: FollowedEnd, name: str) -> str:
    """A file name of one task: as the Starter expands it."""
    values = {"j": str(end.submission), "a": str(end.index), "t": str(end.attempt), "x": name.replace(os.sep, "_"), "N": end.node, "%": "%"}
    out, at = [], 0
    while at < len(pattern):
        if pattern[at] == "%" and pattern[at + 1 : at + 2] in values:
            out.append(values[pattern[at + 1]])
            at += 2
        else:
            out.append(pattern[at])
            at += 1
    return "".join(out)


def summary(item: AwaitedSubmission) -> str:
    """`42: 98 COMPLETED, 2 FAILED`."""
    counts = told_counts(item.counts)
    return f"{item.number}: {counts or 'no task'}"


def codes(items: Sequence[AwaitedSubmission]) -> int:
    """The exit code for several: the highest."""
    return max((item.code for item in items), default=0)
