"""Checks the limits of a gateway's users before it commits more for them, by what they have in the whole cluster.

The leader counts (its memory has every submission); a gateway asks it every few seconds while anything is submitted, and adds
what it has committed itself since. So a user can be over a limit by what he commits through other gateways, or past all of
them, within those seconds, and by no more. Before anybody is refused the leader is asked again, so that nobody is refused for
what has ended meanwhile.

Arguments that wait in ZooKeeper are not in the leader's memory: the gateway sorts the tasks that it has committed by their
size. Of a user's N unfinished tasks the N largest are taken to be the ones that are left, which is never too few.

`GatewayUse` shows users what they have and may have (`rmgr limits`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.use import UseAnswer, UseClient, UserUse
from rmgr.coord.ops.work import Block
from rmgr.daemons.gateway.routes import ClusterRoutes
from rmgr.daemons.leader.use import wanted
from rmgr.errors import RmgrError, Throttled, Unavailable
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.queue import CORES, JOBS
from rmgr.runtime import machine
from rmgr.submitter.messages import Grow, Place
from rmgr.submitter.port import Growth, Order

#: Between two questions to the leader, and how long after the last submission they go on.
ASK_S, BUSY_S = 3.0, 15.0
#: How long the leader may take to see what was committed; how old an answer may be by which somebody is refused.
SETTLE_S, FRESH_S = 2.0, 0.5
#: What ZooKeeper keeps of a znode beside its data (bytes).
_ZNODE_BYTES = 200
#: Znodes of a submission beside its blocks.
_ZNODES = 6
#: How long the leader may take for an answer.
_LEADER_S = 2.0
#: Answers at once; and how long one takes for who asks too much.
_AT_ONCE, _SLOW_S = 8, 0.2
_CLUSTER = (JOBS, "open_submissions", "unfinished_tasks", "zookeeper_bytes")


@dataclass(frozen=True, slots=True)
class _Added:
    """What a user adds: `sizes` are (tasks, bytes) of blocks, `size` is of everything else."""

    submissions: int
    tasks: int
    size: int
    sizes: tuple[tuple[int, int], ...]


def _sizes_of(blocks: Sequence[Block], written: Sequence[tuple[str, bytes]]) -> tuple[tuple[int, int], ...]:
    """(tasks, bytes) of each; written: as they came."""
    return tuple((key.count, len(data) + _ZNODE_BYTES) for (key, _), (_, data) in zip(blocks, written, strict=True))


class _Ledger:
    """Of one user: what was committed lately, and the sizes of his waiting tasks by powers of two."""

    def __init__(self) -> None:
        self.recent: deque[tuple[float, int, int, int]] = deque()  # when, submissions, tasks, bytes
        self.tasks = [0] * 32
        self.sizes = [0] * 32

    def add(self, now_s: float, new: _Added) -> None:
        self.recent.append((now_s, new.submissions, new.tasks, new.size))
        for count, size in new.sizes:
            at = min(31, (size // max(1, count)).bit_length())
            self.tasks[at] += count
            self.sizes[at] += size

    def settle(self, before_s: float, unfinished: int) -> None:
        """The leader has seen what was committed before; so many tasks are left of it."""
        while self.recent and self.recent[0][0] < before_s:
            self.recent.popleft()
        gone = sum(self.tasks) - unfinished - sum(tasks for _, _, tasks, _ in self.recent)
        for at, count in enumerate(self.tasks):
            if gone <= 0:
                break
            some = min(gone, count)
            if some:
                self.sizes[at] -= self.sizes[at] * some // count
                self.tasks[at] -= some
                gone -= some


class ClusterUse:
    """Args:
    ask: the leader's numbers of everybody (fresh); raises RmgrError. clock: monotonic seconds.

    Thread-safe. A check may ask once when it refuses.
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
        """Asks in the background from now on, while anything is submitted."""
        machine.Thread(target=self._run, name="limits", daemon=True).start()
        return self

    def close(self) -> None:
        """Idempotent."""
        self._ended = True
        self._wake.set()

    def check_order(self, user: str, place: Place, order: Order) -> None:
        """`user` submits this; place: as it came. Raises LimitReached. Cost: 1 us a block."""
        size = len(place.record) + _ZNODES * _ZNODE_BYTES
        self._check(user, _Added(1, order.tasks, size, _sizes_of(order.blocks, place.blocks)))

    def check_growth(self, user: str, grow: Grow, growth: Growth) -> None:
        """`user` adds this; grow: as it came. Raises LimitReached. Cost: as `check_order`."""
        sizes = _sizes_of(growth.blocks, grow.blocks)
        ended = sum(len(data) + _ZNODE_BYTES for data in grow.ended)
        self._check(user, _Added(0, sum(count for count, _ in sizes), ended, sizes))

    def _check(self, user: str, new: _Added) -> None:
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
        """His use of the cluster, by bound."""
        known = self._known.get(user)
        with self._lock:
            ledger = self._ledgers.get(user)
            recent = list(ledger.recent) if ledger is not None else []
            waiting = sum(ledger.sizes) if ledger is not None else 0
        told = dict.fromkeys(_CLUSTER, 0) if known is None else {name: known.used.get(name, 0) for name in _CLUSTER}
        for name in (JOBS, "open_submissions"):
            told[name] += sum(one[1] for one in recent)
        if known is not None and CORES in known.used:
            told[CORES] = known.used[CORES]
        told["unfinished_tasks"] += sum(one[2] for one in recent)
        told["zookeeper_bytes"] += waiting + sum(one[3] for one in recent)
        return told

    def users(self) -> set[str]:
        """Of whom anything is known."""
        with self._lock:
            return {*self._ledgers, *self._known}

    def refresh(self, *, fresh: bool = False) -> None:
        """Asks the leader; without an answer what was known stays, with `problem`."""
        with self._asking:
            began_s = self._clock()
            if began_s - self._asked_s <= (FRESH_S if fresh else ASK_S / 2):
                return  # somebody has asked meanwhile
            try:
                told = self._ask(fresh)
            except RmgrError as error:
                self.problem = f"the leader does not say what is in the cluster: {error.message}"
                self._asked_s = began_s
                return
            self.problem = ""
            with self._lock:
                self._known = dict(told.users)
                for user, ledger in list(self._ledgers.items()):
                    known = self._known.get(user)
                    ledger.settle(began_s - told.age_s - SETTLE_S, known.used.get("unfinished_tasks", 0) if known is not None else 0)
                    if known is None and not ledger.recent:
                        del self._ledgers[user]
            self._asked_s = began_s

    def _exceeded(self, user: str, new: _Added) -> str:
        """The limit beyond which he would be, "" = none."""
        limits = self._bounds.limits
        amounts = (new.submissions, new.submissions, new.tasks, new.size + sum(size for _, size in new.sizes))
        if not any(amounts):
            return ""
        used = self.used(user)
        for name, amount in zip(_CLUSTER, amounts, strict=True):
            limit = limits.of(name, user)
            if limit and amount and used[name] + amount > limit:
                return name
        return ""

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait()
            self._wake.clear()
            while not self._ended and self._clock() - self._added_s < BUSY_S:
                self.refresh()
                if self._wake.wait(ASK_S) and self._ended:
                    return
                self._wake.clear()


class LeaderAsk:
    """Asks whoever leads, on one channel while it is the same. Thread-safe."""

    def __init__(self, routes: ClusterRoutes, credentials: Credentials | None) -> None:
        self._routes = routes
        self._credentials = credentials
        self._lock = threading.Lock()
        self._client: UseClient | None = None

    def __call__(self, fresh: bool) -> UseAnswer:
        """Of everybody. Raises Unavailable, PermissionDenied."""
        with self._lock:
            endpoint = self._routes.leader("")
            if self._client is None or self._client.endpoint != endpoint:
                self._drop()
                self._client = UseClient(endpoint, role=Role.WATCHDOG, credentials=self._credentials, timeout_s=_LEADER_S)
            try:
                return self._client.use(fresh=fresh)
            except Unavailable:
                self._routes.lost(endpoint)
                self._drop()
                raise

    def close(self) -> None:
        """Ends the channel. Idempotent."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class GatewayUse:
    """`UseAnswers` of a gateway: its own numbers and, through `cluster`, the leader's."""

    def __init__(self, bounds: Bounds, cluster: ClusterUse, operators: Sequence[str] = ()) -> None:
        self._bounds = bounds
        self._cluster = cluster
        self._operators = tuple(operators)
        self._room = threading.BoundedSemaphore(_AT_ONCE)

    def use(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        """See `UseAnswers`."""
        with self._room:
            try:
                self._bounds.spend(caller.user)
            except Throttled:  # whoever is refused may see why, slowly
                machine.sleep(_SLOW_S)
            return self._told(users, fresh=fresh, caller=caller)

    def _told(self, users: Sequence[str], *, fresh: bool, caller: Caller) -> UseAnswer:
        names = wanted(users, caller, self._operators, lambda: sorted({*self._cluster.users(), *self._bounds.users()}))
        self._cluster.refresh(fresh=fresh)
        told = {
            user: UserUse(used={**self._bounds.used(user), **self._cluster.used(user)}, refused=self._bounds.refused(user))
            for user in names
        }
        return UseAnswer(users=told, limits=self._bounds.limits, problem=self._cluster.problem)
