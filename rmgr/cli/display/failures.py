"""Failures in words: tasks that ended alike are told once, with what they said last and what to type next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rmgr.cli.display.render import elapsed, printable
from rmgr.model.base.resources import MIB
from rmgr.model.base.states import LOSSES, Reason
from rmgr.model.base.units import counted, format_size
from rmgr.model.views import JobView

#: Bytes of a line that a task has written.
LINE_BYTES = 160
#: Nodes of a group that are named, and groups in a cell of a table.
_MOST_NODES, _MOST_CELLS = 4, 3
#: What a terminal obeys: control sequences, strings for it (titles, links), and other escapes.
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
#: To run these again as they are helps nobody.
_IN_VAIN = frozenset({Reason.START_FAILED, Reason.BAD_OUTPUT, Reason.OUTPUT_EXISTS, Reason.UNTRUSTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Tasks that FAILED for the same reason with the same exit code.

    nodes: how many ended on which; "" is no node. task: the first of those looked at whose stderr says something, else the first.
    error, started_us, ended_us, max_rss_kib, stderr: its; of stderr the last line, harmless. has_output: one of them wrote something.
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

    @property
    def tasks(self) -> int:
        """How many."""
        return sum(self.nodes.values())

    @property
    def said(self) -> str:
        """What the one that stands for all said last: its exception, else its stderr."""
        return self.error if self.reason == Reason.EXCEPTION else self.stderr

    @property
    def detail(self) -> str:
        """What its node says of its end beside reason and exit code: the limit that it crossed, the program that is not there."""
        return "" if self.reason == Reason.EXCEPTION or self.error == word_for(self.reason, self.exit_code) else self.error


def harmless(data: bytes) -> str:
    """A line that anybody has written, as one line of at most `LINE_BYTES` that steers no terminal."""
    text = printable(_STEERING.sub("", data.decode("utf-8", "replace"))).strip()
    return text if len(text.encode()) <= LINE_BYTES else text.encode()[: LINE_BYTES - 3].decode("utf-8", "ignore") + "..."


def word_for(reason: str, exit_code: int | None) -> str:
    """`exit code 3`, `out of memory`."""
    if reason == Reason.EXIT_CODE:
        return f"exit code {exit_code}"
    if reason == Reason.SIGNAL:
        return f"killed by signal {exit_code - 128}" if exit_code else "killed by a signal"
    return _WORDS.get(Reason(reason), reason)


def of_job(job: JobView) -> list[Failure]:
    """What the leader, or the history, tells of a submission's failures; the most frequent first."""
    groups: dict[tuple[str, int | None], Failure] = {}
    for view in job.failures:
        known = groups.get((view.reason, view.exit_code))
        nodes = dict(known.nodes) if known is not None else {}
        nodes[view.node] = nodes.get(view.node, 0) + view.tasks
        error = known.error if known is not None else view.error
        groups[view.reason, view.exit_code] = Failure(reason=view.reason, exit_code=view.exit_code, nodes=nodes, error=error)
    return sorted(groups.values(), key=lambda failure: -failure.tasks)


def sentence(failure: Failure, total: int) -> str:
    """`8 of 256 tasks: exit code 3 (5 on n2, 3 on n3)`; of the only one `out of memory on n1 after 0.1s, over its 50M (peak 52M)`."""
    word = word_for(failure.reason, failure.exit_code)
    if total > 1:
        return f"{failure.tasks:,} of {counted(total, 'task')}: {word}{_places(failure.nodes)}"
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


def cell(job: JobView) -> str:
    """For a table: `EXIT_CODE 3 on n2,n3: 8 tasks; OUT_OF_MEMORY on n1: 2 tasks`, "" where nothing is known to have failed."""
    told = []
    for failure in of_job(job)[:_MOST_CELLS]:
        code = f" {failure.exit_code}" if failure.reason in {Reason.EXIT_CODE, Reason.SIGNAL} and failure.exit_code is not None else ""
        nodes = [node for node in failure.nodes if node]
        where = f" on {','.join(nodes[:3])}{f',+{len(nodes) - 3}' if len(nodes) > 3 else ''}" if nodes else ""
        told.append(f"{failure.reason}{code}{where}" + (f": {counted(failure.tasks, 'task')}" if job.tasks > 1 else ""))
    return "; ".join(told)


def steps(job: JobView, failures: Sequence[Failure], *, task: str = "", mine: bool = True) -> list[str]:
    """What to type next, a command each.

    Args: task: `42_7` where that one is meant. mine: the work is that of who asks, and so are what it is run again with.
    """
    several = job.tasks > 1 and not task
    found = []
    if any(failure.has_output for failure in failures):
        found.append(f"rmgr logs {task or job.id}" + (" --failed" if several else ""))
    again = [failure for failure in failures if failure.reason not in _IN_VAIN]
    if mine and again:
        which = ""
        if task and job.tasks > 1:
            which = f" --tasks {task.partition('_')[2]}"
        elif several:
            which = " --lost" if all(failure.reason in {*LOSSES, Reason.POISON} for failure in again) else " --failed"
        found.append(f"rmgr rerun {job.id}{which}{_more(job, again)}")
    return found


def _more(job: JobView, failures: Sequence[Failure]) -> str:
    """Options that move the limits which these have crossed."""
    options = ""
    starved = [failure.max_rss_kib * 1024 for failure in failures if failure.reason == Reason.OUT_OF_MEMORY]
    most = max([*starved, job.memory_bytes]) if starved else 0
    if most:
        options += f" --mem {format_size(_rounded(most * (4 if most < 1024 * MIB else 2)))}"
    limit = job.asked.get("time_limit")
    if limit and any(failure.reason == Reason.TIME_LIMIT for failure in failures):
        options += f" -t {_asked_time(2 * limit)}"
    return options


def _rounded(size_bytes: int) -> int:
    """The next power of two."""
    return 1 << (size_bytes - 1).bit_length()


def _asked_time(seconds: float) -> str:
    """As `-t` takes it: `90s`, `15m`, `2h`."""
    whole = max(1, -int(-seconds // 1))
    for unit, length in (("h", 3600), ("m", 60)):
        if whole >= 2 * length:
            return f"{-(-whole // length)}{unit}"
    return f"{whole}s"
