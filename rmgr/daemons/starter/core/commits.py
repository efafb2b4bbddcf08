"""Commits of a Starter: fenced, pipelined, and never guessed: an unknown outcome is read back until it is known.

Everything belongs to one registration. After the session or a fence is lost, answers of the old registration reach
nobody: what it left is read from the tree when the Starter registers again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Committed, Conflict, ConflictKind, Multi, Outcome, Stamped, Unknown
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.protocol.readback import Verdict, judge, proof_paths, resolved
from rmgr.errors import CoordinationUnavailable, QuotaReached
from rmgr.runtime.logger import Log

#: How long a commit may wait for the coordination service before it is looked after from here.
_TIMEOUT_S = 30.0
#: Pause between two attempts to read back.
_PAUSE_S = 0.5
#: Pause before what ZooKeeper's quota has refused is sent again: what ended is not forgotten because somebody has filled the tree.
_FULL_PAUSE_S = 2.0


@dataclass(slots=True)
class IdleMark:
    """`/idle/<node>` as far as it is known. changing: a multi that creates or deletes it is in flight."""

    present: bool = False
    changing: bool = False


class Committer:
    """Commits on behalf of the nodes of one Starter.

    Args:
        post: puts a call into the owner's mailbox. after: the same, later.
        on_fenced: tells the node whose fence has moved; nothing of the commit is answered then.
        count: counts an event by name (fenced_writes, ambiguous_commits).
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        post: Callable[[Callable[[], None]], None],
        after: Callable[[float, Callable[[], None]], object],
        on_fenced: Callable[[str], None],
        count: Callable[[str], None],
        log: Log,
    ) -> None:
        self._coordinator = coordinator
        self._post = post
        self._after = after
        self._on_fenced = on_fenced
        self._count = count
        self._log = log
        self._fences: dict[str, int] = {}
        self._registration = 0
        self.in_flight = 0
        self.is_paused = False  #: the lease is over: nothing may be committed until it is valid again

    @property
    def may_commit(self) -> bool:
        """The Starter is registered and its lease is valid."""
        return self.is_registered and not self.is_paused

    @property
    def is_registered(self) -> bool:
        """A registration stands."""
        return bool(self._fences)

    def fence(self, node: str) -> int:
        """Version of the node's record under which everything is committed. Raises KeyError when not registered."""
        return self._fences[node]

    def start(self, fences: Mapping[str, int]) -> None:
        """A new registration."""
        self._registration += 1
        self._fences = dict(fences)
        self.in_flight = 0

    def stop(self) -> None:
        """The registration is over; nothing of it is answered any more."""
        self._registration += 1
        self._fences = {}
        self.in_flight = 0

    def commit(self, multi: Multi, done: Callable[[Outcome], None], *, early: Callable[[Committed], None] | None = None) -> None:
        """Commits; `done` gets Committed, or a Conflict that is not the fence's, in the mailbox of the owner.

        early: is told first when the first sending was committed, on the thread that brings the answer.
        """
        self.in_flight += 1
        self._send(self._registration, multi, done, early)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _send(
        self, registration: int, multi: Multi, done: Callable[[Outcome], None], early: Callable[[Committed], None] | None = None
    ) -> None:
        future = self._coordinator.commit(multi, timeout_s=_TIMEOUT_S)
        if early is not None:
            future.add_done_callback(partial(_tell_early, early))
        future.add_done_callback(lambda answer: self._post(partial(self._answered, registration, multi, done, answer)))

    def _answered(self, registration: int, multi: Multi, done: Callable[[Outcome], None], answer: Future[Outcome]) -> None:
        if registration != self._registration:
            return
        try:
            outcome = answer.result()
        except QuotaReached as full:
            self._log.warning("commit_over_quota", op=multi.name, detail=full.message)
            self._after(_FULL_PAUSE_S, partial(self._resend, registration, multi, done))
            return
        if isinstance(outcome, Unknown):
            self._count("ambiguous_commits")
            self._log.warning("commit_unknown", op=multi.name, detail=outcome.cause)
            self._read_back(registration, multi, done)
            return
        if isinstance(outcome, Committed) and outcome.resolved:
            self._count("ambiguous_commits")
        self._finish(multi, done, outcome)

    def _resend(self, registration: int, multi: Multi, done: Callable[[Outcome], None]) -> None:
        if registration == self._registration:
            self._send(registration, multi, done)

    def _finish(self, multi: Multi, done: Callable[[Outcome], None], outcome: Outcome) -> None:
        guard = multi.guard
        if isinstance(outcome, Conflict) and guard is not None and outcome.path == guard.path:
            self._count("fenced_writes")
            self._on_fenced(node_of(guard))
            return
        self.in_flight -= 1
        done(outcome)

    def _read_back(self, registration: int, multi: Multi, done: Callable[[Outcome], None]) -> None:
        """The same connection answers in order: after `sync`, what is read is what became of the multi."""
        if registration != self._registration:
            return
        reads: list[Future[Any]] = [self._coordinator.sync(), *(self._coordinator.get(path) for path in proof_paths(multi))]
        left = [len(reads)]

        def arrived(_: Future[Any]) -> None:
            left[0] -= 1
            if not left[0]:
                self._judge(registration, multi, done, reads)

        for read in reads:
            read.add_done_callback(lambda future: self._post(partial(arrived, future)))

    def _judge(self, registration: int, multi: Multi, done: Callable[[Outcome], None], reads: list[Future[Any]]) -> None:
        if registration != self._registration:
            return
        try:
            reads[0].result()
            seen: list[Stamped | None] = [read.result() for read in reads[1:]]
        except CoordinationUnavailable:
            self._after(_PAUSE_S, partial(self._read_back, registration, multi, done))
            return
        verdict = judge(multi, seen)
        self._log.info("commit_read_back", op=multi.name, outcome=verdict.value)
        match verdict:
            case Verdict.PROVEN:
                self._finish(multi, done, resolved(multi))
            case Verdict.NOT_PROVEN:
                self._send(registration, multi, done)
            case Verdict.GUARD_FELL:
                guard = multi.guard
                assert guard is not None
                self._finish(multi, done, Conflict(0, guard.path, ConflictKind.BAD_VERSION))


def _tell_early(early: Callable[[Committed], None], answer: Future[Outcome]) -> None:
    if answer.exception() is None and isinstance(outcome := answer.result(), Committed):
        early(outcome)


def node_of(guard: Check) -> str:
    """The node whose fence a check is."""
    return guard.path.removeprefix(paths.node(""))
