"""What a client of a gateway may submit, and how a submission may grow: the form of new work, and the limits of its user.

The one place for every rule, for any client. Records and blocks were checked field by field when they were decoded (`coord/validity`).
The first half of this file checks them together: a new submission belongs to its sender, its tasks follow one another without a gap, its
blocks request what the submission requests, and contain nothing that only a Starter or the leader writes. Pure.
"""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.rpc.services import UseAnswer, UserUse
from rmgr.coord.decisions.rights import Person
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol import paths
from rmgr.daemons.gateway.values import GatewayContext
from rmgr.daemons.leader.use import wanted
from rmgr.errors import InvalidRecord, PermissionDenied, RmgrError, Throttled
from rmgr.model.base import MIB
from rmgr.model.block import MAX_TASKS, BlockData, Fragment, Outcome
from rmgr.model.queue import CORES, JOBS
from rmgr.model.states import Reason, State
from rmgr.model.submission import Phase, Submission, Tail, as_signed
from rmgr.runtime import machine
from rmgr.submitter.messages import Grow, Place
from rmgr.submitter.port import Growth, Order

#: Most characters of the stamp that makes a tail unique.
_STAMP = 64
_ROW = re.compile(r"args/(\d{10})/\d{10}/[0-9a-f]{64}", re.ASCII)
_OUTCOME_ENDS = {(State.CANCELLED, Reason.USER_CANCEL), (State.FAILED, Reason.OUTPUT_EXISTS)}
_FRAGMENT = Fragment(attempt=0)
_WHY_CHARACTERS = 300
#: Fields of a block that its user decides; the others have their defaults until a Starter or the leader has handled the block.
_OF_USER = frozenset({"function", "resubmit", "retries", "base", "payloads", "row", "keyed", "serial", "seal"})
_UNTOUCHED = tuple(
    (name, default)
    for name, default in zip(BlockData.__struct_fields__, BlockData.__struct_defaults__, strict=True)
    if name not in _OF_USER
)
#: Interval of questions to the leader, and how long they go on after the last submission.
ASK_S, BUSY_S = 3.0, 15.0
#: Time until the leader has seen a commit; greatest age of an answer on which a refusal is based.
SETTLE_S, FRESH_S = 2.0, 0.5
#: A user's commits of so many seconds are remembered as one.
_TOGETHER_S = 0.1
#: Estimate of ZooKeeper's memory for a znode besides its data, in bytes.
_ZNODE_BYTES = 200
#: Znodes of a submission besides its blocks.
_ZNODES = 6
#: Answers in parallel; delay of an answer to a user who asks too often.
_AT_ONCE, _SLOW_S = 8, 0.2
_CLUSTER = (JOBS, "open_submissions", "unfinished_tasks", "zookeeper_bytes")


def check_order(order: Order, person: Person) -> None:
    """Checks a new submission. Raises: PermissionDenied for another user's name; InvalidRecord with the fault. Cost: 5 us, 2 us a block."""
    record = order.draft
    if not person.is_open and record.user != person.name:
        raise PermissionDenied(f"{person.name} cannot submit for {record.user}", hint="work belongs to whoever submits it")
    _require(bool(record.nonce), "a nonce is drawn for each submission")
    fresh = not (record.closed_us or record.reason_detail or record.by or record.by_us or record.changes or record.was or record.owner)
    match record.phase, record.reason:
        case (Phase.OPEN, ""):
            fresh = fresh and not record.after
        case (Phase.HELD, Reason.USER_HOLD):
            pass
        case (Phase.HELD, Reason.DEPENDENCY):
            fresh = fresh and bool(record.after)
        case _:
            fresh = False
    _require(fresh, "a new submission is open, held, or waits for others")
    held = record.phase is not Phase.OPEN or bool(record.max_running)
    _require(order.held in (None, held), "tasks of what is held, or has a cap, wait aside, others in the queue")
    _check_blocks(order.blocks, 0, record)
    _check_indices(0, order.tasks if order.blocks else 0, order.blocks, ())


def check_growth(growth: Growth, submission: Submission, tail: Tail) -> None:
    """Checks the growth of a kept submission. tail: the current one. Raises InvalidRecord. Cost: as `check_order`."""
    new = growth.tail
    if new == tail:
        return
    _require(len(new.enqueued) <= _STAMP, "its stamp is too long")
    _require(not tail.complete, f"submission {submission.id} is complete")
    _require(new == replace(tail, next=new.next, complete=new.complete, enqueued=new.enqueued), "the tail says whose it is")
    _check_blocks(growth.blocks, submission.id, submission)
    for fragment in growth.ended:
        _check_ended(fragment)
    _check_indices(tail.next, new.next, growth.blocks, growth.ended)


def _check_blocks(blocks: Sequence[Block], number: int, record: Submission) -> None:
    """Checks new, unclaimed blocks against their submission. Their names say what the user signed; only the leader renames blocks."""
    record = as_signed(record)
    expected = (record.priority, record.request.cores, -(-record.request.memory_bytes // MIB), 1)
    most = 1 if record.rigid is not None else MAX_TASKS
    for key, data in blocks:
        _require(key.submission == number, "it is a block of another submission")
        in_name = (key.priority, key.cores, key.memory_mib, key.attempt)
        _require(key.user in ("", paths.user_tag(record.user)), "its name has the tag of another user")
        _require(in_name == expected, f"(priority, cores, MiB, attempt) are {in_name}, its submission says {expected}")
        _require(1 <= key.count <= most, f"{key.count} is no number of tasks in a block")
        for name, untouched in _UNTOUCHED:
            _require(getattr(data, name) == untouched, f"{name} is said by the leader and by Starters alone, and of a new block not yet")
        if data.payloads:
            _require(not data.row and data.base == key.first and len(data.payloads) == key.count, "an argument for each task")
        else:
            _require(0 <= data.base <= key.first, "it begins before its tasks")
        if data.row:
            match = _ROW.fullmatch(data.row)
            _require(match is not None and int(match[1]) == number, "its arguments are in no row of its submission")


def _check_ended(fragment: Fragment) -> None:
    """Checks outcomes that a client decides: of tasks that never ran, cancelled or refused."""
    is_bare = msgspec.structs.replace(fragment, outcomes=()) == _FRAGMENT and bool(fragment.outcomes)
    _require(is_bare, "only a node tells what became of tasks that ran")
    for outcome in fragment.outcomes:
        _require((outcome.state, outcome.reason) in _OUTCOME_ENDS, "only tasks that were cancelled, or refused, end unsent")
        plain = Outcome(index=outcome.index, state=outcome.state, reason=outcome.reason, error=outcome.error)
        _require(outcome == plain and len(outcome.error) <= _WHY_CHARACTERS, "they never ran")


def _check_indices(start: int, end: int, blocks: Sequence[Block], ended: Sequence[Fragment]) -> None:
    """Checks that each task from `start` to `end` is in one block, or has one outcome."""
    spans = [(key.first, key.end) for key, _ in blocks]
    spans += [(outcome.index, outcome.index + 1) for fragment in ended for outcome in fragment.outcomes]
    due = start
    for first, stop in sorted(spans) if ended else spans:
        _require(first == due, f"task {due} is the next")
        due = stop
    _require(due == end, f"the tail says {end}, its tasks end at {due}")


def _require(is_so: bool, why: str) -> None:
    if not is_so:
        raise InvalidRecord(f"a gateway takes no such work: {why}", hint="is the client of the cluster's release? rmgr version")


# -- limits of users -------------------------------------------------------------------------------------------------------
# Checks the limits of a gateway's users before it commits more work for them, by their use of the whole cluster. The leader counts (its
# memory has every submission); a gateway asks it every few seconds while work is submitted, and adds what it has committed itself since.
# So a user can exceed a limit only by what the user commits within those seconds through other gateways, or past all of them. Before a
# refusal the leader is asked again, so that no user is refused because of work that has ended meanwhile. The leader's memory does not
# contain arguments in ZooKeeper, so the gateway sorts the tasks that it has committed by size. The N largest tasks of a user with N
# unfinished tasks are assumed to be left, which never counts too few bytes. `GatewayUse` shows users their use and limits (`rmgr limits`).


@dataclass(frozen=True, slots=True)
class _Addition:
    """What a user adds: `sizes` are (tasks, bytes) of blocks, `size` is the bytes of everything else."""

    submissions: int
    tasks: int
    size: int
    sizes: tuple[tuple[int, int], ...]


def _sizes_of(blocks: Sequence[Block], written: Sequence[tuple[str, bytes]]) -> tuple[tuple[int, int], ...]:
    """Returns (tasks, bytes) of each block; written: the encoded blocks."""
    return tuple((key.count, len(data) + _ZNODE_BYTES) for (key, _), (_, data) in zip(blocks, written, strict=True))


class _Ledger:
    """Recent commits of one user, and bytes of the user's waiting tasks by powers of two."""

    def __init__(self) -> None:
        self.recent: deque[tuple[float, tuple[int, int, int]]] = deque()  # when at the latest; submissions, tasks, bytes until then
        self.sums = (0, 0, 0)  #: of all of `recent`
        self.tasks = [0] * 32
        self.sizes = [0] * 32

    def add(self, now_s: float, new: _Addition) -> None:
        added = new.submissions, new.tasks, new.size
        # Together, or a user who commits a thousand times a second while nobody leads has millions of them.
        if self.recent and now_s <= self.recent[-1][0]:
            self.recent[-1] = self.recent[-1][0], _sum(self.recent[-1][1], added)
        else:
            self.recent.append((now_s + _TOGETHER_S, added))
        self.sums = _sum(self.sums, added)
        for count, size in new.sizes:
            at = min(31, (size // max(1, count)).bit_length())
            self.tasks[at] += count
            self.sizes[at] += size

    def settle(self, before_s: float, unfinished: int) -> None:
        """Drops commits that the leader has seen; `unfinished` tasks are left of them."""
        while self.recent and self.recent[0][0] < before_s:
            self.sums = _sum(self.sums, self.recent.popleft()[1], -1)
        gone = sum(self.tasks) - unfinished - self.sums[1]
        for at, count in enumerate(self.tasks):
            if gone <= 0:
                break
            some = min(gone, count)
            if some:
                self.sizes[at] -= self.sizes[at] * some // count
                self.tasks[at] -= some
                gone -= some


def _sum(some: tuple[int, int, int], more: tuple[int, int, int], sign: int = 1) -> tuple[int, int, int]:
    return some[0] + sign * more[0], some[1] + sign * more[1], some[2] + sign * more[2]


class ClusterUse:
    """The use of the whole cluster by each user, as far as this gateway knows. Thread-safe.

    Args:
        ask: returns the leader's numbers of all users (fresh); raises RmgrError. clock: monotonic seconds.
    A check may ask the leader once before it refuses.
    """

    def __init__(self, bounds: Bounds, ask: Callable[[bool], UseAnswer], *, clock: Callable[[], float] | None = None) -> None:
        self._bounds = bounds
        self._ask = ask
        self._clock = clock or machine.monotonic
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._ledgers: dict[str, _Ledger] = {}
        self._known: dict[str, UserUse] = {}
        self._asked_s = -math.inf
        self._added_s = -math.inf
        self._wake = threading.Event()
        self._ended = False
        self.problem = ""

    def start(self) -> ClusterUse:
        """Starts asking in the background, while work is submitted."""
        machine.Thread(target=self._run, name="limits", daemon=True).start()
        return self

    def close(self) -> None:
        """Ends the asking. Idempotent."""
        self._ended = True
        self._wake.set()

    def check_order(self, user: str, place: Place, order: Order) -> None:
        """Checks a user's submission. place: the encoded message. Raises LimitReached. Cost: 1 us a block."""
        size = len(place.record) + _ZNODES * _ZNODE_BYTES
        self._check(user, _Addition(1, order.tasks, size, _sizes_of(order.blocks, place.blocks)))

    def check_growth(self, user: str, grow: Grow, growth: Growth) -> None:
        """Checks a user's growth. grow: the encoded message. Raises LimitReached. Cost: as `check_order`."""
        sizes = _sizes_of(growth.blocks, grow.blocks)
        ended = sum(len(data) + _ZNODE_BYTES for data in grow.ended)
        self._check(user, _Addition(0, sum(count for count, _ in sizes), ended, sizes))

    def _check(self, user: str, new: _Addition) -> None:
        name = self._exceeded(user, new)
        if name and self._clock() - self._asked_s > FRESH_S:
            self.refresh(fresh=True)
            name = self._exceeded(user, new)
        if name:
            raise self._bounds.refuse(name, user, self._bounds.limits.of(name, user))
        now_s = self._clock()
        with self._lock:
            self._ledgers.setdefault(user, _Ledger()).add(now_s, new)
        if now_s - self._added_s > ASK_S:
            self._added_s = now_s
            self._wake.set()

    def used(self, user: str) -> dict[str, int]:
        """Returns the user's use of the cluster, by bound."""
        known = self._known.get(user)
        with self._lock:
            ledger = self._ledgers.get(user)
            submissions, tasks, size = ledger.sums if ledger is not None else (0, 0, 0)
            waiting = sum(ledger.sizes) if ledger is not None else 0
        used = dict.fromkeys(_CLUSTER, 0) if known is None else {name: known.used.get(name, 0) for name in _CLUSTER}
        for name in (JOBS, "open_submissions"):
            used[name] += submissions
        if known is not None and CORES in known.used:
            used[CORES] = known.used[CORES]
        used["unfinished_tasks"] += tasks
        used["zookeeper_bytes"] += waiting + size
        return used

    def users(self) -> set[str]:
        """Returns all users of whom anything is known."""
        with self._lock:
            return {*self._ledgers, *self._known}

    def refresh(self, *, fresh: bool = False) -> None:
        """Asks the leader; without an answer the last numbers stay, and `problem` says why."""
        with self._asking:
            began_s = self._clock()
            if began_s - self._asked_s <= (FRESH_S if fresh else ASK_S / 2):
                return  # another thread has asked meanwhile
            try:
                use_answer = self._ask(fresh)
            except RmgrError as error:
                self.problem = f"the leader does not say what is in the cluster: {error.message}"
                self._asked_s = began_s
                return
            self.problem = ""
            with self._lock:
                self._known = dict(use_answer.users)
                for user, ledger in list(self._ledgers.items()):
                    known = self._known.get(user)
                    ledger.settle(began_s - use_answer.age_s - SETTLE_S, known.used.get("unfinished_tasks", 0) if known is not None else 0)
                    if known is None and not ledger.recent:
                        del self._ledgers[user]
            self._asked_s = began_s

    def _exceeded(self, user: str, new: _Addition) -> str:
        """Returns the limit that the user would exceed, "" if none."""
        amounts = (new.submissions, new.submissions, new.tasks, new.size + sum(size for _, size in new.sizes))
        bounded = [
            (name, amount, limit)
            for name, amount in zip(_CLUSTER, amounts, strict=True)
            if amount and (limit := self._bounds.limits.of(name, user))
        ]
        used = self.used(user) if bounded else {}
        return next((name for name, amount, limit in bounded if used[name] + amount > limit), "")

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait()
            self._wake.clear()
            while not self._ended and self._clock() - self._added_s < BUSY_S:
                self.refresh()
                if self._wake.wait(ASK_S) and self._ended:
                    return
                self._wake.clear()


class GatewayUse:
    """Implements `UseAnswers` in a gateway: its own numbers and, through `cluster`, the leader's."""

    def __init__(self, context: GatewayContext, cluster: ClusterUse) -> None:
        self._bounds = context.bounds
        self._cluster = cluster
        self._operators = context.operators
        self._room = threading.BoundedSemaphore(_AT_ONCE)

    def use(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        with self._room:
            try:
                self._bounds.spend(caller.user)
            except Throttled:  # a refused user may still see why, slowly
                machine.sleep(_SLOW_S)
            return self._answer(users, fresh=fresh, caller=caller)

    def _answer(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        names = wanted(users, caller, self._operators, lambda: sorted({*self._cluster.users(), *self._bounds.users()}))
        self._cluster.refresh(fresh=fresh)
        uses = {
            user: UserUse(used={**self._bounds.used(user), **self._cluster.used(user)}, refused=self._bounds.refused(user))
            for user in names
        }
        return UseAnswer(users=uses, limits=self._bounds.limits, problem=self._cluster.problem)
