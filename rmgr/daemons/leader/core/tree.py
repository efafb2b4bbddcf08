"""ZooKeeper as a leader has it: reads and fenced commits, whose answers come back into its loop, and the loop's timers.

One thread owns a leader's state; everything here is called on it, and calls back on it through the mailbox. Nothing
blocks. A commit carries the leader fence (`coord.decisions.election.fenced`); the first one refused by it ends the leadership. While
the session is in doubt (`pause`) nothing is sent: commits and reads wait, in their order, until the fence was read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, cast

from rmgr.coord.decisions.liveness import fenced
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Multi, Outcome, Stamped, Stat, Unknown
from rmgr.coord.protocol.ports import Coordinator, MomentReader
from rmgr.daemons.leader.core.doors import Failed, Thunk
from rmgr.daemons.leader.core.term import Term
from rmgr.errors import RequestTooLarge, RmgrError
from rmgr.runtime.mailbox import Mailbox, Timer

T = TypeVar("T")

#: Commits of a leader on the way at once, and how long one may take before its outcome is unknown.
WINDOW = 64
COMMIT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 15.0


class LeaderTree:
    """Reads and commits for one leadership: from TAKE-OVER until the fence is lost.

    Args:
        mailbox: of the loop; its messages are thunks.
        deposed: called once, in the loop, when the leadership has ended by itself.
        may_act: the lease is valid; asked before each commit.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        mailbox: Mailbox[Thunk],
        term: Term,
        *,
        deposed: Callable[[str], None],
        may_act: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self.clock = clock
        self.is_open = True
        self._coordinator = coordinator
        self._mailbox = mailbox
        self._term = term
        self._deposed = deposed
        self._may_act = may_act
        self._paused = False
        self._flying = 0
        self._urgent: deque[tuple[Multi, Callable[[Outcome], None]]] = deque()
        self._waiting: deque[tuple[Multi, Callable[[Outcome], None]]] = deque()
        self._parked: deque[Thunk] = deque()  # reads asked for while paused

    # -- the loop

    def soon(self, what: Thunk) -> None:
        """`what` happens in the loop, after what is there already. From any thread."""
        self._mailbox.put(partial(self._if_open, what))

    def after(self, delay_s: float, what: Thunk) -> Timer:
        """`what` happens in the loop in `delay_s` seconds."""
        return self._mailbox.after(delay_s, partial(self._if_open, what))

    def _if_open(self, what: Thunk) -> None:
        if self.is_open:
            what()

    # -- the leadership

    def pause(self) -> None:
        """The session is in doubt: nothing is sent from now on."""
        self._paused = True

    def resume(self) -> None:
        """The fence was read and is ours: what waited goes out."""
        self._paused = False
        while self._parked and not self._paused:
            self._parked.popleft()()
        self._send()

    def depose(self, why: str) -> None:
        """The fence has moved: the leadership ends."""
        if self.is_open:
            self.close()
            self._deposed(why)

    def close(self) -> None:
        """The leadership is over: nothing is sent, nothing is told any more. Idempotent."""
        self.is_open = False
        self._urgent.clear()
        self._waiting.clear()
        self._parked.clear()

    # -- reads

    def get(self, path: str, then: Callable[[Stamped | None], None], *, watch: Thunk | None = None, failed: Failed | None = None) -> None:
        """Data and stat of a znode, into `then`; `failed` when it could not be read in time."""
        then = partial(self._contained, path, then)
        self._read(lambda: self._coordinator.get(path, watch=self._watch(watch), timeout_s=READ_TIMEOUT_S), then, failed)

    def get_all(self, wanted: Sequence[str], then: Callable[[list[Stamped | None]], None], *, failed: Failed | None = None) -> None:
        """Data and stat of several znodes, into `then` together, in this order; `failed` when not all could be read in time."""
        self._read(lambda: self._coordinator.get_many(wanted, timeout_s=READ_TIMEOUT_S), then, failed)

    def at_one_moment(
        self,
        wanted: Sequence[str],
        lists: Sequence[str],
        then: Callable[[list[Stamped | list[str] | None]], None],
        *,
        failed: Failed | None = None,
    ) -> bool:
        """Data of znodes, then names below others, all as they stood at one moment. False: this coordinator cannot, nothing follows."""
        if not hasattr(self._coordinator, "at_one_moment"):
            return False
        reader = cast("MomentReader", self._coordinator)
        self._read(lambda: reader.at_one_moment(wanted, lists, timeout_s=READ_TIMEOUT_S), then, failed)
        return True

    def stat(self, path: str, then: Callable[[Stat | None], None], *, watch: Thunk | None = None, failed: Failed | None = None) -> None:
        """Stat of a znode."""
        self._read(lambda: self._coordinator.stat(path, watch=self._watch(watch), timeout_s=READ_TIMEOUT_S), then, failed)

    def children(
        self, path: str, then: Callable[[list[str] | None], None], *, watch: Thunk | None = None, failed: Failed | None = None
    ) -> None:
        """Names of the children of a znode."""
        then = partial(self._contained, path, then)
        self._read(lambda: self._coordinator.children(path, watch=self._watch(watch), timeout_s=READ_TIMEOUT_S), then, failed)

    def _contained(self, path: str, then: Callable[[T], None], value: T) -> None:
        """What was read is handled; when that raises, it is this znode's trouble and nobody else's."""
        version = None
        if isinstance(value, Stamped):
            version = value.version
        elif isinstance(value, list):
            self._term.aside.keep(path, value)
        elif value is None:
            self._term.aside.forget(path)
        self._term.aside.run(path, version, partial(then, value))

    def _watch(self, watch: Thunk | None) -> Thunk | None:
        return None if watch is None else partial(self.soon, watch)

    def _read(self, ask: Callable[[], Future[T]], then: Callable[[T], None], failed: Failed | None) -> None:
        if self._paused:
            self._parked.append(partial(self._read, ask, then, failed))
            return
        self._await(ask(), then, failed)

    def _await(self, future: Future[T], then: Callable[[T], None], failed: Failed | None) -> None:
        future.add_done_callback(lambda done: self.soon(partial(self._arrived, done, then, failed)))

    def _arrived(self, future: Future[T], then: Callable[[T], None], failed: Failed | None) -> None:
        try:
            value = future.result()
        except RmgrError as error:
            self._term.log.debug("leader_read_failed", error=error.message)
            if failed is not None:
                failed()
            return
        then(value)

    # -- commits

    def commit(self, multi: Multi, then: Callable[[Outcome], None] | None = None, *, urgent: bool = False) -> None:
        """Commits `multi` under the leader fence; `then` gets its outcome. Urgent ones (liveness) go before all others."""
        (self._urgent if urgent else self._waiting).append((fenced(self._term.epoch_version, multi), then or _ignore))
        self._send()

    @property
    def backlog(self) -> int:
        """Commits that wait or are on the way."""
        return self._flying + len(self._urgent) + len(self._waiting)

    def _send(self) -> None:
        while self.is_open and not self._paused and self._flying < WINDOW and (self._urgent or self._waiting):
            if not self._may_act():  # a process that was stopped wakes up here, before it has heard of anything
                self.depose("the lease is over")
                return
            multi, then = (self._urgent or self._waiting).popleft()
            try:
                future = self._coordinator.commit(multi, timeout_s=COMMIT_TIMEOUT_S)
            except RequestTooLarge as error:
                self._term.log.error("leader_multi_refused", op=multi.name, error=error.message)
                self.soon(partial(then, Unknown(error.message)))
                continue
            self._flying += 1
            future.add_done_callback(partial(self._answered, multi, then))

    def _answered(self, multi: Multi, then: Callable[[Outcome], None], future: Future[Outcome]) -> None:
        self.soon(partial(self._committed, multi, then, future))

    def _committed(self, multi: Multi, then: Callable[[Outcome], None], future: Future[Outcome]) -> None:
        self._flying -= 1
        try:
            outcome = future.result()
        except RmgrError as error:  # not committed; whoever asked reads again, and tries again later
            self._term.log.error("leader_commit_refused", op=multi.name, error=error.message)
            outcome = Unknown(error.message)
        if isinstance(outcome, Conflict) and outcome.path == paths.EPOCH:
            self._term.metrics.fenced_writes.inc()
            self._term.log.warning("leader_write_fenced", op=multi.name, epoch=self._term.epoch)
            self.depose(f"{multi.name} was refused by the leader fence")
            return
        if isinstance(outcome, Unknown):
            self._term.metrics.unknown_commits.inc()
            self._term.log.warning("leader_commit_unknown", op=multi.name, cause=outcome.cause)
        self._term.aside.run(f"commit {multi.name}", None, partial(then, outcome))
        self._send()


def version_of(outcome: Committed) -> int:
    """The version that a fenced multi has given to the znode that its first own operation sets."""
    return outcome.versions[1]


def _ignore(_outcome: Outcome) -> None:
    return
