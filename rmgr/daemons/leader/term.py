"""One term of a leader, which its parts share: reads and commits under the leader fence, blocking calls, a mirror that watches keep fresh.

Every multi carries the fence (`coord.ops.leader.fenced`); the first one that the fence refuses ends the leadership. While the session is
in doubt (`pause`) nothing is sent: commits and reads wait, in order, until the fence was read again.

Stories (`runtime/story.py`) tell what happens over time; they end with the leadership:

    found = yield self._term.get(path)
    outcome = yield self._term.commit(multi)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, TypeVarTuple

from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

from rmgr.adapters.identity.credentials import Credentials
from rmgr.coord.ops.leader import fenced
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Multi, Outcome, Stamped, Stat, Unknown
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.errors import DataLost, PermissionDenied, RequestTooLarge, RmgrError, Unavailable, WrongCluster
from rmgr.model.queue import ClusterSettings
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import Mailbox, Timer, fulfil
from rmgr.runtime.story import Pause, Stories, Story
from rmgr.runtime.zookeeper_clock import ZooKeeperClock

T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
#: The content of a cache.
C = TypeVar("C", Stamped, list[str])
Thunk: TypeAlias = Callable[[], object]

#: Commits in flight at once, and how long one may take before its outcome counts as unknown.
WINDOW = 64
COMMIT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 15.0
_CACHE_RETRY_S = 1.0
#: How long a refused commit is mentioned: whoever asked for it tries again within this time.
_REFUSED_S = 60.0
#: A resync of the mirror reads this many caches at a time, with this pause between.
_AT_ONCE, _APART_S = 50, 0.02
#: Errors of a failed read, not of code that uses its answer.
_NO_ANSWER = (Unavailable, PermissionDenied, DataLost)
_PICK_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0)


class LeaderMetrics:
    """Metrics of one WatchDog process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.leader = Gauge("rmgr_leader", "1 while this WatchDog leads", registry=registry)
        self.epoch = Gauge("rmgr_leader_epoch", "epoch of this WatchDog's leadership, 0 without one", registry=registry)
        self.take_overs = Counter("rmgr_leader_take_overs", "times that this process became the leader", registry=registry)
        self.fenced_writes = Counter("rmgr_leader_fenced_writes", "writes refused because another leader has taken over", registry=registry)
        self.unknown_commits = Counter("rmgr_leader_unknown_commits", "commits whose outcome could not be read back", registry=registry)
        self.fenced_nodes = Counter("rmgr_leader_fenced_nodes", "nodes fenced", registry=registry)
        self.failed_blocks = Counter("rmgr_leader_failed_blocks", "claimed blocks of fenced nodes marked FAILED", registry=registry)
        self.requeued_blocks = Counter("rmgr_leader_requeued_blocks", "failed ranges put back into their queue", registry=registry)
        self.given_up = Counter("rmgr_leader_given_up_tasks", "tasks ended FAILED by the resubmit rule", registry=registry)
        self.swept_blocks = Counter("rmgr_leader_swept_blocks", "waiting blocks set aside, ended or brought back", registry=registry)
        self.closed = Counter("rmgr_leader_closed_submissions", "submissions closed for want of an owner", registry=registry)
        self.collected = Counter("rmgr_leader_collected_submissions", "submissions collected after retention", registry=registry)
        self.pages = Counter("rmgr_leader_pages", "pages of fragments written to the store", registry=registry)
        self.duplicates = Counter(
            "rmgr_leader_duplicate_outcomes", "outcomes of tasks that were final already (always 0)", registry=registry
        )
        self.resync_drift = Counter("rmgr_leader_resync_drift", "differences found by a resync that no watch had told", registry=registry)
        self.mass_loss = Gauge("rmgr_leader_mass_loss", "1 while lost nodes are requeued slowly", registry=registry)
        self.nodes_up = Gauge("rmgr_leader_nodes_up", "nodes whose Starter is alive", registry=registry)
        self.submissions = Gauge("rmgr_leader_submissions", "submissions in memory", registry=registry)
        self.backlog = Gauge("rmgr_leader_commit_backlog", "commits that wait or are on the way", registry=registry)
        self.placed = Counter("rmgr_leader_placed_jobs", "jobs given to nodes", registry=registry)
        self.waiting_jobs = Gauge("rmgr_leader_waiting_jobs", "jobs that wait to be placed", registry=registry)
        self.gang_jobs = Gauge("rmgr_gang_jobs", "jobs that share nodes in time", registry=registry)
        self.gang_max_tqlb = Gauge("rmgr_gang_max_tqlb", "slots at most from one turn of a job to its next", registry=registry)
        where = ["partition", "queue_class"]
        self.class_waiting = Gauge("rmgr_leader_class_waiting_jobs", "jobs that wait in a queue class", where, registry=registry)
        self.class_running = Gauge("rmgr_leader_class_running_jobs", "placed jobs of a queue class", where, registry=registry)
        self.class_promised = Gauge("rmgr_leader_class_promised_cores", "cores promised to its waiting jobs", where, registry=registry)
        self.class_reservations = Gauge(
            "rmgr_leader_class_reservations", "reservations made, by trigger, under any leader", [*where, "trigger"], registry=registry
        )
        self.policy_faults = Counter("rmgr_leader_policy_faults", "decisions of a policy lost to an error of its own", registry=registry)
        self.call_reports = Counter("rmgr_leader_call_reports", "reports of gateways about servers for calls", registry=registry)
        self.call_picks = Counter("rmgr_leader_call_picks", "picks of a server for a call, by outcome", ["outcome"], registry=registry)
        self.call_pick_seconds = Histogram(
            "rmgr_leader_call_pick_seconds", "time of one pick, without its RPC", buckets=_PICK_SECONDS, registry=registry
        )
        self.placing_seconds = Histogram("rmgr_leader_placing_seconds", "time of one scheduling pass", registry=registry)
        self.loop_errors = Counter(
            "rmgr_watchdog_loop_errors", "handlers that raised (always 0); rmgr doctor lists what they handled", registry=registry
        )
        self.pass_seconds = Histogram("rmgr_leader_pass_seconds", "time of one turn of the loop", registry=registry)


def _nothing() -> None: ...


class Term:
    """One term, from TAKE-OVER until the fence is lost: ZooKeeper and the data store under its fence, its log, metrics and settings.

    Args:
        io: threads for calls that block. mailbox: of the loop; its messages are thunks.
        epoch: the number shown to users. epoch_version: E, checked by every commit.
        deposed: called once, in the loop, when the leadership ends by itself.
        may_act: whether the lease is valid; asked before each commit.
        clock: monotonic seconds. wall: ZooKeeper's clock, so that retention and the scheduler's times are the same whoever leads.
        credentials: of this WatchDog, None in an open cluster.
    Attributes:
        log: with the epoch. aside: errors that handlers raised. settings: the cluster's current ones.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        io: Executor,
        mailbox: Mailbox[Thunk],
        *,
        epoch: int,
        epoch_version: int,
        log: Log,
        metrics: LeaderMetrics,
        deposed: Callable[[str], None],
        may_act: Callable[[], bool],
        clock: Callable[[], float] | None = None,
        wall: ZooKeeperClock | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.epoch, self.epoch_version = epoch, epoch_version
        self.log = log.bind(epoch=epoch)
        self.metrics = metrics
        self.aside = Aside(self.log, metrics.loop_errors.inc)
        self.settings = ClusterSettings()
        self.credentials = credentials
        self.coordinator = coordinator
        self.clock = clock or machine.monotonic
        self.wall = wall or ZooKeeperClock()
        self.wall_us = self.wall.wall_us
        self.is_open = True
        self.stories = Stories(self)
        self.mirror = Mirror(self)
        self._store = store
        self._io = io
        self._mailbox = mailbox
        self._deposed = deposed
        self._may_act = may_act
        self._paused = False
        self._flying = 0
        self._urgent: deque[tuple[Multi, Future[Outcome]]] = deque()
        self._waiting: deque[tuple[Multi, Future[Outcome]]] = deque()
        self._parked: deque[Thunk] = deque()  # reads requested while paused
        self._refused_s, self._refusal = -math.inf, ""

    # -- the loop

    def soon(self, what: Callable[[*Ts], object], *given: *Ts) -> None:
        """Calls `what` with the given arguments in the loop, after what is already queued. From any thread."""
        self._mailbox.put(lambda: self._if_open(what, *given))

    post = soon  # the name that stories use

    def after(self, delay_s: float, what: Callable[[*Ts], object], *given: *Ts) -> Timer:
        """Calls `what` in the loop after `delay_s` seconds."""
        return self._mailbox.after(delay_s, lambda: self._if_open(what, *given))

    def others_first(self) -> Future[None]:
        """Returns an answer on which a long story waits: the loop first does what is already queued."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def tell(self, story: Story[None], about: str, *, key: Hashable = None) -> bool:
        """Begins a story of this leadership, at most one per key (default: `about`). Returns False if one with this key is still running.

        A read that fails ends the story quietly; any other error sets its subject aside.
        """
        return self.stories.begin(self._isolate(story, about), key=about if key is None else key)

    def every(self, seconds: float, do: Callable[[], Story[None]], about: str) -> None:
        """Begins a story again and again, about every `seconds`; the first time somewhat sooner."""
        self.stories.begin(self._rounds(seconds, do, about))

    def _rounds(self, seconds: float, do: Callable[[], Story[None]], about: str) -> Story[None]:
        yield Pause(machine.uniform(0.5, 1.0) * seconds)
        while True:
            self.tell(do(), about)
            yield Pause(machine.uniform(0.8, 1.2) * seconds)

    def _isolate(self, story: Story[None], about: str) -> Story[None]:
        try:
            yield from story
        except Exception as error:  # noqa: BLE001 - the boundary of a story: whatever it is, it is this subject's alone
            if isinstance(error, _NO_ANSWER) and not isinstance(error, WrongCluster):
                self.log.debug("leader_read_failed", error=error.message)
            else:
                self.aside.add(about, None, error)
        else:
            self.aside.forget(about)

    def _if_open(self, what: Callable[[*Ts], object], *given: *Ts) -> None:
        if self.is_open:
            what(*given)

    # -- the leadership

    def pause(self) -> None:
        """Sends nothing from now on: the session is in doubt."""
        self._paused = True

    def resume(self) -> None:
        """Sends what waited: the fence was read and still belongs to this leader."""
        self._paused = False
        while self._parked and not self._paused:
            self._parked.popleft()()
        self._send()

    def depose(self, why: str) -> None:
        """Ends the leadership: the fence has moved, or the lease is over."""
        if self.is_open:
            self.close()
            self._deposed(why)

    def close(self) -> None:
        """Ends the leadership: sends nothing and calls nothing any more. Idempotent."""
        self.is_open = False
        self.stories.stop()
        self._urgent.clear()
        self._waiting.clear()
        self._parked.clear()

    # -- reads: answers come in the order of the questions

    def get(self, path: str, *, watch: Thunk | None = None) -> Future[Stamped | None]:
        """Reads data and stat of a znode."""
        return self._read(lambda: self.coordinator.get(path, watch=self._watch(watch), timeout_s=READ_TIMEOUT_S))

    def get_all(self, wanted: Sequence[str]) -> Future[list[Stamped | None]]:
        """Reads data and stat of several znodes, in this order."""
        return self._read(lambda: self.coordinator.get_many(wanted, timeout_s=READ_TIMEOUT_S))

    def at_one_moment(self, wanted: Sequence[str], lists: Sequence[str]) -> Future[list[Stamped | list[str] | None]]:
        """Reads the data of `wanted`, then the children of `lists`, all as of one moment."""
        return self._read(lambda: self.coordinator.at_one_moment(wanted, lists, timeout_s=READ_TIMEOUT_S))

    def stat(self, path: str, *, watch: Thunk | None = None) -> Future[Stat | None]:
        """Reads the stat of a znode."""
        return self._read(lambda: self.coordinator.stat(path, watch=self._watch(watch), timeout_s=READ_TIMEOUT_S))

    def children(self, path: str, *, watch: Thunk | None = None) -> Future[list[str] | None]:
        """Reads the names of the children of a znode."""
        return self._read(lambda: self.coordinator.children(path, watch=self._watch(watch), timeout_s=READ_TIMEOUT_S))

    def heard(self, answer: Future[T], then: Callable[[T], None], failed: Thunk = _nothing, *, about: str) -> None:
        """Passes an answer to `then`, for caches, which are not stories. An error of `then` sets aside only `about`.
        Calls `failed` if no answer comes in time.
        """
        answer.add_done_callback(lambda done: self.soon(self._arrived, done, then, failed, about))

    def _watch(self, watch: Thunk | None) -> Callable[[], None] | None:
        return None if watch is None else lambda: self.soon(watch)

    def _read(self, ask: Callable[[], Future[T]]) -> Future[T]:
        if not self._paused:
            return ask()
        answer: Future[T] = Future()
        self._parked.append(lambda: ask().add_done_callback(lambda done: fulfil(answer, done.result)))
        return answer

    def _arrived(self, answer: Future[T], then: Callable[[T], None], failed: Thunk, about: str) -> None:
        try:
            value = answer.result()
        except RmgrError as error:
            self.log.debug("leader_read_failed", error=error.message)
            failed()
            return
        version = None
        if isinstance(value, Stamped):
            version = value.version
        elif isinstance(value, list):
            self.aside.keep(about, value)
        elif value is None:
            self.aside.forget(about)
        self.aside.run(about, version, then, value)

    # -- commits

    def commit(self, multi: Multi, *, urgent: bool = False) -> Future[Outcome]:
        """Commits `multi` under the leader fence. Urgent multis (liveness) overtake all others."""
        answer: Future[Outcome] = Future()
        (self._urgent if urgent else self._waiting).append((fenced(self.epoch_version, multi), answer))
        self._send()
        return answer

    @property
    def backlog(self) -> int:
        """Number of commits that wait or are in flight."""
        return self._flying + len(self._urgent) + len(self._waiting)

    @property
    def refusal(self) -> str:
        """Why ZooKeeper has refused commits in the last minute (a quota is used up), "" if it has refused none. From any thread."""
        return self._refusal if self.clock() - self._refused_s < _REFUSED_S else ""

    def _send(self) -> None:
        while self.is_open and not self._paused and self._flying < WINDOW and (self._urgent or self._waiting):
            if not self._may_act():  # a process that was stopped wakes up here, before it has heard of anything
                self.depose("the lease is over")
                return
            multi, answer = (self._urgent or self._waiting).popleft()
            try:
                future = self.coordinator.commit(multi, timeout_s=COMMIT_TIMEOUT_S)
            except RequestTooLarge as error:
                self.log.error("leader_multi_refused", op=multi.name, error=error.message)
                answer.set_result(Unknown(error.message))
                continue
            self._flying += 1
            future.add_done_callback(partial(self._on_outcome, multi, answer))

    def _on_outcome(self, multi: Multi, answer: Future[Outcome], future: Future[Outcome]) -> None:
        """Runs on a thread of the adapter. The loop sees outcomes in this order, in sequence with answers to reads."""
        try:
            outcome, error = future.result(), ""
        except RmgrError as refused:  # not committed; the caller reads again and tries later
            outcome, error = Unknown(refused.message), refused.message
        self.soon(self._account, multi, outcome, error)
        if not _is_fenced(outcome):
            answer.set_result(outcome)

    def _account(self, multi: Multi, outcome: Outcome, error: str) -> None:
        self._flying -= 1
        if error:
            self._refused_s, self._refusal = self.clock(), error
            self.log.error("leader_commit_refused", op=multi.name, error=error)
        if _is_fenced(outcome):
            self.metrics.fenced_writes.inc()
            self.log.warning("leader_write_fenced", op=multi.name)
            self.depose(f"{multi.name} was refused by the leader fence")
            return
        if isinstance(outcome, Unknown) and not error:
            self.metrics.unknown_commits.inc()
            self.log.warning("leader_commit_unknown", op=multi.name, cause=outcome.cause)
        self._send()

    # -- calls that block, on other threads

    def in_store(self, call: Callable[Concatenate[Store, P], T], *given: P.args, **named: P.kwargs) -> Future[T]:
        """Calls `call` on the data store with the given arguments. The answer raises only RmgrError; errors are logged."""
        return self._io.submit(self._run_call, lambda store: call(store, *given, **named), self._store)

    def in_zookeeper(self, call: Callable[[Coordinator], T]) -> Future[T]:
        """Calls `call` on ZooKeeper, for operations that block. Its commits carry no leader fence."""
        return self._io.submit(self._run_call, call, self.coordinator)

    def _run_call(self, call: Callable[[A], T], port: A) -> T:
        try:
            return call(port)
        except RmgrError as error:
            self.log.warning("leader_store_failed", error=error.message)
            raise
        except Exception as error:
            self.log.exception("leader_store_raised")
            raise RmgrError(f"{type(error).__name__}: {error}") from error


def version_of(outcome: Committed) -> int:
    """Returns the version that a fenced multi gave to the znode of its first operation after the fence."""
    return outcome.versions[1]


def _is_fenced(outcome: Outcome) -> bool:
    return isinstance(outcome, Conflict) and outcome.path == paths.EPOCH


class WatchedCache(Generic[C]):
    """Cached content of `path`: `value` (None if the znode is absent), valid once `is_known`.

    A watch is only a hint: it fires once, misses changes in between, and none arrives while the link is down (then all fire at once). So a
    cache always reads the current state, at most once per `pace_s`, and never counts events.

    Args:
        ask: `term.get` (data and stat of a znode) or `term.children` (names of its children).
        changed: called with `about` after the first read, after each read with another value, and after the next read if it raised.
    Attributes: pace_s: least time between two reads. is_watched: False sets no more watches.
    asked_s: when the read of `value` was sent.
    is_chatty: calls `changed` after every read, because a child that came and went between two reads leaves no difference.
    """

    __slots__ = (
        "_about",
        "_armed",
        "_ask",
        "_changed",
        "_is_owed",
        "_read_s",
        "_reading",
        "_stale",
        "_term",
        "_timer",
        "asked_s",
        "is_chatty",
        "is_known",
        "is_watched",
        "pace_s",
        "path",
        "value",
    )

    def __init__(
        self, term: Term, ask: Callable[..., Future[C | None]], path: str, changed: Callable[[*Ts], object], *about: *Ts
    ) -> None:
        self.path = path
        self.value: C | None = None
        self.is_known = False
        self._term = term
        self._ask: Callable[..., Future[C | None]] = ask
        self._changed: Callable[..., object] | None = changed
        self._about = about
        self.is_chatty = False
        self.is_watched = True
        self.pace_s = 0.0
        self._read_s = self.asked_s = float("-inf")
        self._reading = False
        self._stale = False  # another refresh was asked for during a read
        self._armed = False  # a watch of this cache is set on the server
        self._is_owed = False  # `changed` has not taken the value yet
        self._timer: Timer | None = None

    def refresh(self) -> None:
        """Reads now; a read already in flight is followed by another."""
        if self._changed is None:
            return
        if self._reading:
            self._stale = True
            return
        self._cancel_timer()
        self._reading = True
        self._read_s = self._term.clock()
        watch = self._fired if self.is_watched and not self._armed else None
        self._armed = self._armed or watch is not None
        self._term.heard(self._ask(self.path, watch=watch), self._arrived, self._failed, about=self.path)

    def hurry(self) -> bool:
        """Sends a read that the pace put off. Returns whether a read is in flight."""
        if self._timer is not None:
            self.refresh()
        return self._reading

    @property
    def is_stopped(self) -> bool:
        """Whether the cache was stopped."""
        return self._changed is None

    def stop(self) -> None:
        """Stops the cache; no callback follows."""
        self._changed = None
        self._cancel_timer()

    def _fired(self) -> None:
        self._armed = False
        if self._changed is None:
            return
        wait_s = self._read_s + self.pace_s - self._term.clock()
        if wait_s <= 0 or self._reading:
            self.refresh()
        elif self._timer is None:
            self._timer = self._term.after(wait_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self.refresh()

    def _arrived(self, value: C | None) -> None:
        self._reading = False
        if self._changed is None:
            return
        self._is_owed |= self.is_chatty or not self.is_known or not _is_same(self.value, value)
        self.value, self.is_known, self.asked_s = value, True, self._read_s
        if self._stale:
            self._stale = False
            self.refresh()
        if self._is_owed:
            self._changed(*self._about)
            self._is_owed = False

    def _failed(self) -> None:
        self._reading = False
        self._stale = False
        self._armed = False  # the watch may have been set after all; a second one costs nothing
        if self._changed is not None and self._timer is None:
            self._timer = self._term.after(_CACHE_RETRY_S * machine.uniform(0.5, 1.5), self._due)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WatchedChildren:
    """Cached data of all children of `path`, by name. Calls `changed` with the name of each child that came, changed or went."""

    def __init__(self, mirror: Mirror, path: str) -> None:
        self.values: dict[str, Stamped] = {}
        self.changed: list[Callable[[str], object]] = []
        self._mirror = mirror
        self._path = path
        self._children: dict[str, WatchedCache[Stamped]] = {}
        self._names = mirror.names(path, self._on_names)
        self._names.is_chatty = True

    @property
    def names(self) -> list[str]:
        """Names of the existing children; the data of some may not be read yet."""
        return self._names.value or []

    def refresh(self) -> None:
        """Reads the list of children again."""
        self._names.refresh()

    def _on_names(self) -> None:
        there = set(self.names)
        for name in sorted(self._children.keys() - there):
            self._children.pop(name).stop()
            if self.values.pop(name, None) is not None:
                self._tell(name)
        for name in sorted(there):
            cache = self._children.get(name)
            if cache is None:
                cache = self._children[name] = self._mirror.data(f"{self._path}/{name}", self._take, name)
                cache.refresh()
            elif cache.is_known and cache.value is None:  # created again between two reads of the list
                cache.refresh()

    def _take(self, name: str) -> None:
        found = self._children[name].value
        if found is None:
            self.values.pop(name, None)
        else:
            self.values[name] = found
        self._tell(name)

    def _tell(self, name: str) -> None:
        for changed in self.changed:
            changed(name)


class Mirror:
    """Subtrees that watches keep fresh for one leadership. Submissions (`submissions/follow.py`) and lists of jobs
    (`placement/arrivals.py`) are not in it: they are read at their own pace.
    """

    def __init__(self, term: Term) -> None:
        self._term = term
        self._caches: list[WatchedCache[Any]] = []
        self._below: dict[str, WatchedChildren] = {}

    def data(self, path: str, changed: Callable[[*Ts], object], *about: *Ts) -> WatchedCache[Stamped]:
        """Adds the data of a znode; the first `refresh` reads it."""
        return self._register(WatchedCache(self._term, self._term.get, path, changed, *about))

    def names(self, path: str, changed: Callable[[*Ts], object], *about: *Ts) -> WatchedCache[list[str]]:
        """Adds the names of the children of a znode; the first `refresh` reads them."""
        return self._register(WatchedCache(self._term, self._term.children, path, changed, *about))

    def below(self, path: str, changed: Callable[[str], object]) -> WatchedChildren:
        """Adds all children of a znode, with their data; the first `refresh` reads them. Several parts may share them."""
        found = self._below.get(path)
        if found is None:
            found = self._below[path] = WatchedChildren(self, path)
        found.changed.append(changed)
        return found

    def until_gone(self, path: str) -> Story[None]:
        """Waits until the znode is absent."""
        gone: Future[None] = Future()
        cache: WatchedCache[Stamped] = self.data(path, lambda: None if cache.value or gone.done() else gone.set_result(None))
        cache.refresh()
        try:
            yield gone
        finally:
            cache.stop()

    def hurry(self) -> bool:
        """Sends reads that a pace put off. Returns whether nothing is being read."""
        reading = [cache.hurry() for cache in self._caches]
        return not any(reading)

    def current(self) -> list[WatchedCache[Any]]:
        """Returns all copies that are still kept."""
        self._caches = [cache for cache in self._caches if not cache.is_stopped]
        return list(self._caches)

    def _register(self, cache: WatchedCache[C]) -> WatchedCache[C]:
        self._caches.append(cache)
        return cache


def read_again(caches: Iterable[WatchedCache[Any]]) -> Story[None]:
    """Reads copies again, watched or not, in portions: the loop has other things to do."""
    for at, cache in enumerate(caches, start=1):
        cache.refresh()
        if at % _AT_ONCE == 0:
            yield Pause(_APART_S)


def _is_same(old: C | None, new: C | None) -> bool:
    if isinstance(old, Stamped) and isinstance(new, Stamped):
        return old.stat == new.stat
    return old is new or (isinstance(old, list) and isinstance(new, list) and sorted(old) == sorted(new))
