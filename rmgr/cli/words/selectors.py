"""Selectors of submissions and tasks: `42`, `42_7`, `1-10:2`, `last`, `all`, --name, --state, --queue."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rmgr.errors import NotFound, UsageError
from rmgr.model.base import parse_submission
from rmgr.model.states import State
from rmgr.model.submission import Array, parse_array
from rmgr.model.views import JobView

_TASKS = re.compile(r"^(?:taskq-)?(\d{1,10})_\[?(\d[\d,:-]*)\]?$")
_RANGE = re.compile(r"^\d{1,10}-\d{1,10}(?::\d{1,10})?$")
NODE_NAME = re.compile(r"^[a-z][a-z-]*[0-9]+$")
HINT = "select with 42, 42_7, 42_1-5, 1-10:2, last, all, or with --name, --state, --queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Filter of `--name`, `--state`, `--queue`, `--user`; empty = everything. name: a pattern with * and ?. queue: a queue or a class."""

    name: str = ""
    states: tuple[State, ...] = ()
    queue: str = ""
    user: str = ""

    @property
    def is_set(self) -> bool:
        """Whether any of them was given."""
        return bool(self.name or self.states or self.queue or self.user)

    def admits(self, job: JobView) -> bool:
        """Returns whether `job` passes."""
        return (
            (not self.name or fnmatch.fnmatchcase(job.name, self.name))
            and (not self.states or job.state in self.states)
            and (not self.queue or self.queue in {job.queue, job.route})
            and (not self.user or job.user == self.user)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Parsed words: whole submissions, ranges of them, tasks of some, the last one, all."""

    ids: tuple[int, ...] = ()
    ranges: tuple[Array, ...] = ()
    tasks: tuple[tuple[int, Array], ...] = ()  #: (submission, task numbers that people see)
    last: bool = False
    every: bool = False
    filter: Filter = Filter()

    @property
    def needs_list(self) -> bool:
        """Whether ids alone do not say what is meant, so the user's submissions must be listed."""
        return bool(self.last or self.every or self.ranges or self.filter.is_set)

    @property
    def named(self) -> tuple[int, ...]:
        """Submissions named by number."""
        return tuple(dict.fromkeys((*self.ids, *(number for number, _ in self.tasks))))


    def without(self, numbers: Collection[int]) -> Selection:
        """Returns the selection without submissions that were named by these numbers, and without their tasks."""
        ids = tuple(number for number in self.ids if number not in numbers)
        return replace(self, ids=ids, tasks=tuple(pair for pair in self.tasks if pair[0] not in numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One submission, or some of its tasks (numbers that people see)."""

    submission: int
    tasks: tuple[int, ...] = ()

    @property
    def ids(self) -> list[str]:
        """Returns the ids as people write them."""
        return [f"{self.submission}_{index}" for index in self.tasks] or [str(self.submission)]


def parse(words: Sequence[str], filter_: Filter | None = None) -> Selection:
    """Parses words of the command line.

    Raises: UsageError for a malformed word, or if nothing at all was selected; NotFound for a number that no id can have.
    """
    chosen = filter_ or Filter()
    if not words and not chosen.is_set:
        raise UsageError("nothing is selected", hint=HINT)
    ids: list[int] = []
    ranges: list[Array] = []
    tasks: list[tuple[int, Array]] = []
    for word in words:
        if word in {"last", "all"}:
            continue
        if match := _TASKS.match(word):
            tasks.append((int(match[1]), parse_array(match[2])))
        elif _RANGE.match(word) or ("," in word and "_" not in word):
            ranges.append(parse_array(word))
        else:
            try:
                ids.append(parse_submission(word))
            except UsageError:
                if word.isascii() and word.isdigit():
                    hint = "rmgr jobs -a lists them; ids have ten digits at most"
                    raise NotFound(f"there is no submission {word[:40]}", hint=hint) from None
                if word.startswith("last_"):
                    hint = f"rmgr jobs -a shows it; of job 42 it is 42_{word[5:20]}"
                    raise UsageError(f"{word[:80]!r} selects nothing: tasks need the number of their job", hint=hint) from None
                of_node = f"; of a node: rmgr nodes {word}" if NODE_NAME.match(word) else ""
                raise UsageError(f"{word[:80]!r} selects nothing", hint=HINT + of_node) from None
    return Selection(ids=tuple(ids), ranges=tuple(ranges), tasks=tuple(tasks), last="last" in words, every="all" in words, filter=chosen)


def parse_one(word: str) -> Selection:
    """Parses a selector of a single submission or task, for `show`, `logs`, `explain`. Raises UsageError."""
    selection = parse([word])
    if selection.every or selection.ranges or any(len(array) != 1 for _, array in selection.tasks):
        raise UsageError(f"{word!r} is more than one", hint="name one submission or task: 42, 42_7 or last")
    return selection


def targets_of(selection: Selection) -> list[Target]:
    """Returns what ids alone name (`needs_list` is False), whether it exists or not; whole submissions include their tasks."""
    chosen: dict[int, dict[int, None]] = {number: {} for number in selection.ids}
    whole = frozenset(selection.ids)
    for number, array in selection.tasks:
        if number not in whole:
            chosen.setdefault(number, {}).update(dict.fromkeys(array))
    return [Target(submission=number, tasks=tuple(tasks)) for number, tasks in sorted(chosen.items())]


def resolve(selection: Selection, jobs: Iterable[JobView], *, me: str) -> list[Target]:
    """Returns what is meant, in order of ids, each once; whole submissions include their tasks.

    Args:
        jobs: at least this user's and the named ones, including ended ones. me: the user whose `last` and `all` are meant.
    Raises: NotFound naming the missing id, or saying that nothing matched.
    """
    known = {job.id: job for job in jobs}
    mine = [job for job in known.values() if job.user == me and selection.filter.admits(job)]
    for number in selection.named:
        _require(known, number)
    whole = [*selection.ids]
    for array in selection.ranges:
        whole += [number for number in known if array.position_of(number) is not None]
    if selection.last:
        if not mine:
            raise NotFound("you have no submission yet", hint="rmgr submit -- echo hello   (rmgr history lists older ones)")
        whole.append(max(job.id for job in mine))
    if selection.every or (selection.filter.is_set and not selection.named and not selection.ranges and not selection.last):
        whole += [job.id for job in (known.values() if selection.filter.user else mine)]
    found = targets_of(replace(selection, ids=tuple(whole)))
    if selection.filter.is_set:
        found = [target for target in found if selection.filter.admits(known[target.submission])]
    if not found and not selection.every:
        raise NotFound("nothing matches", hint="rmgr jobs -a lists submissions")
    return found


def _require(known: dict[int, JobView], number: int) -> None:
    if number not in known:
        newest = max(known, default=0)
        message = f"the newest is {newest}; " if 0 < newest < number else ""
        raise NotFound(f"there is no submission {number}", hint=f"{message}rmgr jobs -a lists those in memory, rmgr history the older ones")


@dataclass(slots=True)
class Changes:
    """Result of a command that changes several tasks: `changed` ids, and `unchanged` ones with the reason."""

    changed: list[str] = field(default_factory=list)
    unchanged: list[tuple[str, str]] = field(default_factory=list)

    def add(self, ids: Iterable[str], why: str) -> None:
        """Adds ids that were changed, or that were not, with the reason ("" = they were)."""
        if why:
            self.unchanged += [(id_, why) for id_ in ids]
        else:
            self.changed += ids
