"""Runs work with the data store and with files on a few threads; results arrive as messages of the mailbox, many of them together.

Users take turns with their jobs, and a user with no running job does not wait for long jobs of others: a helper thread comes.
A job may hang (on a file server that does not answer), so one user may hold some of the threads, never all.

While the store is away, every job is tried once (so that it can move what it holds to disk) and then waits. Now and then one of them is
tried again, and when that succeeds all go on. Nothing is dropped; `pending_bytes` tells how much waits. Any other failure
(missing rows, a full disk) is handed to the caller as an exception.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from rmgr.adapters.access.turns import UserTurns
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.home import Home
from rmgr.errors import RmgrError, StoreUnavailable
from rmgr.model.units import format_duration
from rmgr.runtime import machine
from rmgr.runtime.mailbox import fulfil

T = TypeVar("T")
#: Pause between two attempts while the store is away, doubled up to the second value.
FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
#: Helper threads: they start when large outputs wait for a thread, or a user waits for others, and end after so long (s) without work.
#: A disk syncs sixteen files together in little more than the time of one, and each of these jobs only waits for that.
_HELPERS, HELPER_REST_S = 12, 5.0
#: Most threads that one user may hold, and additional helpers for users who hold none: a hanging file server gives no thread back.
_MOST_OF_ONE, _NEWCOMERS = 12, 48
#: How long to wait for the answer to a write begun without a thread; then a thread writes it, and sees what is wrong.
_ANSWER_S = 5.0
#: Jobs of one convoy at once.
_ABREAST = 2


@dataclass(slots=True, eq=False)
class _Job:
    call: Callable[[Store], Any]
    done: Callable[[Any], bool | None]
    user: str
    size: int
    is_read: bool
    is_long: bool
    tells: bool


@dataclass(slots=True, eq=False)
class _Begun:
    """A write that no thread here waits for. until_s: when it is given up (monotonic)."""

    done: Callable[[RmgrError | None], None]
    size: int
    until_s: float


class StoreIO:
    """Runs `job(store)` on a thread and posts `done(result or exception)`.

    Args:
        post: puts a call into the mailbox of the thread that owns the state.
    """

    def __init__(self, store: Store, post: Callable[[Callable[[], None]], None], *, threads: int = 4) -> None:
        self.store = store
        self.home: Home | None = None  #: where jobs make and read files
        self.down_since_s: float | None = None  #: monotonic time since which the store does not answer, None = it does
        self.starved_since_s: float | None = None  #: since when a job that reads waits for the store, None = none does
        self._post = post
        self._jobs: UserTurns[_Job] = UserTurns(_MOST_OF_ONE)
        self._long: UserTurns[_Job] = UserTurns(_MOST_OF_ONE)  #: of jobs that may take seconds each: one thread is left for all others
        self._under_way: Counter[str] = Counter()  #: jobs that run, by user
        self._helped: set[str] = set()  #: users for whom a helper is about to come
        self._long_busy = 0
        self._parked: deque[_Job] = deque()  #: jobs that met a store that was away
        self._retry_s = -math.inf
        self._pause_s = FIRST_PAUSE_S
        self._is_trying = False  #: a parked job is being tried again
        lock = threading.RLock()
        self._arrived = threading.Condition(lock)
        self._helping = threading.Condition(lock)  #: what resting helpers wait for
        self._closing = threading.Event()
        self._pending_bytes = 0
        self._busy = 0
        self._waiting = self._resting = 0  #: idle threads, and idle helpers
        self._helpers: set[threading.Thread] = set()
        self._begun: _Begun | None = None
        self._most_long = max(1, threads - 1)
        self._threads = [machine.Thread(target=self._work, name=f"store-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes of values that are not yet in the store."""
        return self._pending_bytes

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or runs."""
        return not self._jobs and not self._long and not self._parked and not self._busy and self._begun is None

    def run(
        self,
        job: Callable[[Store], T],
        done: Callable[[T | Exception], bool | None],
        *,
        user: str = "",
        size: int = 0,
        is_read: bool = False,
        is_long: bool = False,
        is_synced: bool = False,
        tells: bool = False,
    ) -> None:
        """Runs `job` soon. Any thread may call it. A user's jobs start in order and end in any; one long job at a time, more if no other
        waits.

        Args:
            user: the owner of the job, "" for the Starter's own small ones. size: bytes that wait with it.
            is_read: work cannot start before it. is_long: it may take seconds, so one thread is left for results.
            is_synced: it mostly waits for the disk, so helpers may come.
            tells: `done` returns whether the nodes have to settle; after other jobs they always do.
        """
        with self._arrived:
            self._pending_bytes += size
            waiting = self._long if is_long else self._jobs
            waiting.append(user, _Job(job, done, user, size, is_read, is_long, tells))
            self._arrived.notify()
            if is_synced and len(self._jobs) > self._waiting and self.down_since_s is None:
                self._help()
            elif user or self._busy >= len(self._threads):
                self._help_newcomers()

    def answer(self, job: Callable[[Store], T], *, size: int = 0) -> Future[T]:
        """Runs `job` for a story; the future gets what the job returns or raises."""
        answer: Future[T] = Future()
        done = lambda result: answer.set_exception(result) if isinstance(result, Exception) else answer.set_result(result)  # noqa: E731
        self.run(job, done, size=size)
        return answer

    def begin(
        self,
        put: Callable[[Store, Callable[[RmgrError | None], None]], bool],
        done: Callable[[RmgrError | None], None],
        *,
        size: int,
    ) -> bool:
        """Begins a write without a thread if nothing else is under way; saves two thread switches. Owner's thread, also for `done`.

        put: begins the write, see `Store.put_soon`. done: gets None, or why nothing was stored; then `run` must store it.
        """
        if self._begun is not None or self._jobs or self._busy or self._parked:
            return False
        begun = self._begun = _Begun(done, size, machine.monotonic() + _ANSWER_S)

        def over(error: RmgrError | None) -> None:
            if not self._closing.is_set():
                self._post(lambda: self._end_call(begun, error))

        is_begun = False
        with suppress(Exception):  # a thread will do it instead, and meet the error again
            is_begun = self.store.puts_soon and put(self.store, over)
        if is_begun:
            self.count(size)
        else:
            self._begun = None
        return is_begun

    def settle(self, now_s: float) -> None:
        """Gives up the begun write if its answer is overdue. Owner's thread."""
        if self._begun is not None and now_s >= self._begun.until_s:
            self._end_call(self._begun, StoreUnavailable(f"the data store has not answered for {format_duration(_ANSWER_S)}"))

    def _end_call(self, begun: _Begun, error: RmgrError | None) -> None:
        if self._begun is begun:
            self._begun = None
            self.count(-begun.size)
            begun.done(error)

    def count(self, size: int) -> None:
        """Adds `size` (may be negative) to the bytes that wait for the store without a job of their own. Any thread may call it."""
        with self._arrived:
            self._pending_bytes += size

    def close(self, timeout_s: float = 2.0) -> None:
        """Ends the threads; drops waiting jobs, for which nothing was promised."""
        self._closing.set()
        with self._arrived:
            self._jobs.clear()
            self._long.clear()
            self._parked.clear()
            self._arrived.notify_all()
            self._helping.notify_all()
            threads = [*self._threads, *self._helpers]
        deadline_s = machine.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline_s - machine.monotonic()))

    def _help(self, most: int = _HELPERS) -> None:
        """Lets one more thread take a job: a resting helper, else a new one if the limit allows. Under the lock."""
        self._helping.notify()
        if len(self._jobs) + len(self._long) > self._waiting + self._resting and len(self._helpers) < most:
            helper = machine.Thread(target=self._work, args=(HELPER_REST_S,), name="store-helper", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # the machine has no more threads: the existing ones do it
                return
            self._helpers.add(helper)

    def _work(self, rest_s: float | None = None) -> None:
        while (taken := self._take() if rest_s is None else self._take_to_help(rest_s)) is not None:
            self._do(*taken)
            del taken

    def step(self) -> bool:
        """Does the next job in the caller's thread, if one is ready. For simulations, which start no threads."""
        taken = self._take(waits=False)
        if taken is not None:
            self._do(*taken)
        return taken is not None

    def _do(self, job: _Job, was_parked: bool) -> None:
        try:
            result = self._call(job)
        except StoreUnavailable:
            self._park(job, was_parked=was_parked)
        except Exception as error:  # noqa: BLE001 - loop boundary of the thread: whatever it is, the caller is told
            self._on_job_over(job, error, was_parked=was_parked)
        else:
            self._on_job_over(job, result, was_parked=was_parked)

    def _call(self, job: _Job) -> Any:
        """Calls the job, and once more if directories of this Starter had been removed."""
        if self.home is None:
            return job.call(self.store)
        before = self.home.generation
        if job.is_read:
            self.home.check()  # make no file in whatever stands in place of the root
        try:
            return job.call(self.store)
        except OSError as error:
            if not self.home.retry(error, before):
                raise
        return job.call(self.store)

    def _take(self, *, waits: bool = True) -> tuple[_Job, bool] | None:
        """Returns the next job, and whether it was parked; None at the end, or if none is ready and `waits` is False."""
        with self._arrived:
            while not self._closing.is_set():
                user, long_user = self._jobs.next(self._under_way), self._long.next(self._under_way)
                if long_user is not None and (not self._long_busy or (user is None and self._long_busy < self._most_long)):
                    return self._begun_now(self._long.take(long_user)), False
                if user is not None:
                    return self._begun_now(self._jobs.take(user)), False
                wait_s = self._retries_in_s()
                if wait_s is not None and wait_s <= 0:
                    return self._next_retry(), True
                if not waits:
                    return None
                self._waiting += 1
                self._arrived.wait(wait_s)
                self._waiting -= 1
        return None

    def _take_to_help(self, rest_s: float) -> tuple[_Job, bool] | None:
        """Returns the next job for a helper, a newcomer's or a short one; None ends the helper, after `rest_s` without a job."""
        with self._arrived:
            end_s = machine.monotonic() + rest_s
            while not self._closing.is_set():
                if (found := self._helps()) is not None:
                    waiting, user = found
                    return self._begun_now(waiting.take(user)), False
                wait_s = self._retries_in_s()
                if wait_s is not None and wait_s <= 0:  # all other threads may hang
                    return self._next_retry(), True
                left_s = end_s - machine.monotonic()
                if left_s <= 0:
                    break
                self._resting += 1
                self._helping.wait(left_s if wait_s is None else min(left_s, wait_s))
                self._resting -= 1
            self._helpers.discard(threading.current_thread())
        return None

    def _retries_in_s(self) -> float | None:
        """Returns the seconds until a parked job is tried again; None if none is parked, or one is being tried."""
        return self._retry_s - machine.monotonic() if self._parked and not self._is_trying else None

    def _next_retry(self) -> _Job:
        self._is_trying = True
        return self._begun_now(self._parked.popleft())

    def _helps(self) -> tuple[UserTurns[_Job], str] | None:
        """Returns the job that a helper should take: a newcomer's, else a short one."""
        for waiting in (self._jobs, self._long):
            if (user := waiting.newcomer(self._under_way)) is not None:
                return waiting, user
        user = self._jobs.next(self._under_way)
        return None if user is None else (self._jobs, user)

    def _begun_now(self, job: _Job) -> _Job:
        self._busy += 1
        self._long_busy += job.is_long
        self._under_way[job.user] += 1
        self._helped.discard(job.user)
        self._help_newcomers()
        return job

    def _help_newcomers(self) -> None:
        """Brings a helper for a user with no running job, who would otherwise wait for another user's job."""
        if self.down_since_s is not None or not self._threads:
            return
        user = self._long.newcomer(self._under_way, self._helped) if self._long_busy else None
        if user is None and len(self._jobs) > self._waiting:
            user = self._jobs.newcomer(self._under_way, self._helped)
        if user is not None:
            self._helped.add(user)
            self._help(_HELPERS + _NEWCOMERS)

    def _count_stopped(self, job: _Job) -> None:
        self._busy -= 1
        self._long_busy -= job.is_long
        self._under_way[job.user] -= 1
        if not self._under_way[job.user]:
            del self._under_way[job.user]

    def _park(self, job: _Job, *, was_parked: bool) -> None:
        now_s = machine.monotonic()
        with self._arrived:
            self._count_stopped(job)
            self.down_since_s = now_s if self.down_since_s is None else self.down_since_s
            if job.is_read:
                self.starved_since_s = now_s if self.starved_since_s is None else self.starved_since_s
            if was_parked:
                self._is_trying = False
            self._parked.append(job)
            if was_parked or len(self._parked) == 1:
                self._retry_s = now_s + self._pause_s * machine.uniform(0.7, 1.3)
                self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
            self._arrived.notify()

    def _on_job_over(self, job: _Job, result: Any, *, was_parked: bool) -> None:
        with self._arrived:
            self._count_stopped(job)
            self._pending_bytes -= job.size
            if job.is_long:
                self._arrived.notify()
            if was_parked:  # this job was parked, so the store has answered this time; other jobs may not have asked it
                self._is_trying = False
                for parked in reversed(self._parked):
                    (self._long if parked.is_long else self._jobs).appendleft(parked.user, parked)
                self._parked.clear()
                self._pause_s = FIRST_PAUSE_S
                self.down_since_s = self.starved_since_s = None
                self._arrived.notify_all()
        if not self._closing.is_set():
            self._post(Quietly(lambda: self._tell_owner(job, result) or was_parked))

    def _tell_owner(self, job: _Job, result: Any) -> bool:
        """Tells the owner, on its thread. Returns: whether the nodes have to settle."""
        settles = job.done(result)
        return bool(settles) or not job.tells


def on_thread(job: Callable[[], T], name: str) -> Future[T]:
    """Runs `job` on a thread of its own, for jobs that may wait indefinitely and need no turn."""
    answer: Future[T] = Future()
    machine.Thread(target=fulfil, args=(answer, job), name=name, daemon=True).start()
    return answer


# -- messages after which nothing settles ----------------------------------------------------------------------------------
# Messages to a Starter's loop after which no node has to settle.


class Quietly:
    """A message after which no node has to settle, unless `do` returns True."""

    __slots__ = ("_do", "is_quiet")

    def __init__(self, do: Callable[[], bool | None]) -> None:
        self._do = do
        self.is_quiet = True  #: valid once the message was handled

    def __call__(self) -> None:
        self.is_quiet = False  # stays so if `_do` raises
        self.is_quiet = not self._do()


def was_quiet(message: Callable[[], object]) -> bool:
    """Returns whether no node has to settle after `message`, which was handled."""
    return isinstance(message, Quietly) and message.is_quiet


# -- small items together --------------------------------------------------------------------------------------------------
# Small items that go to the data store together: a job on an IO thread carries all items that have gathered by the time it begins. So a
# single item goes at once, and the busier the store is, the more items share a round trip. A job that meets a store that is away keeps its
# items for its next try, and lets the next job go ahead.


class _Load(Generic[T]):
    """What one job carries, from its first try on."""

    __slots__ = ("has_place", "items", "size")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.size = 0
        self.has_place = True


class Convoy(Generic[T]):
    """Items on their way to the store or from it. `add` from any thread.

    Args:
        carry: stores or reads some items, on an IO thread; repeated with the same items while it raises StoreUnavailable.
        arrived: gets these items and the result or exception of `carry`, on the owner's thread. Returns False if no node has to settle.
        weight: of an item. most: most weight of one job, unless a single item is heavier.
        is_read: work cannot start before it.
    """

    def __init__(
        self,
        io: StoreIO,
        carry: Callable[[Store, list[T]], Any],
        arrived: Callable[[list[T], Any], bool],
        *,
        weight: Callable[[T], int],
        most: int,
        is_read: bool = False,
    ) -> None:
        self._io = io
        self._carry = carry
        self._arrived = arrived
        self._weight = weight
        self._most = most
        self._is_read = is_read
        self._lock = threading.Lock()
        self._waiting: deque[tuple[T, int]] = deque()
        self._under_way = 0

    def add(self, item: T, *, size: int = 0) -> None:
        """Sends `item` with the next job. size: bytes that wait for the store with it."""
        if size:
            self._io.count(size)
        with self._lock:
            self._waiting.append((item, size))
            if self._under_way >= _ABREAST:
                return
            self._under_way += 1
        self._send()

    def _send(self) -> None:
        load: _Load[T] = _Load()
        self._io.run(partial(self._try, load), partial(self._on_load_over, load), is_read=self._is_read, tells=True)

    def _try(self, load: _Load[T], store: Store) -> Any:
        if not load.items:
            self._take(load)
        try:
            return self._carry(store, load.items) if load.items else None
        except StoreUnavailable:
            if self._gave_up_place(load):
                self._send()  # each item is tried once, so that it can move what it holds to disk
            raise

    def _take(self, load: _Load[T]) -> None:
        weight = 0
        with self._lock:
            while self._waiting:
                weight += self._weight(self._waiting[0][0])
                if load.items and weight > self._most:
                    return
                item, size = self._waiting.popleft()
                load.items.append(item)
                load.size += size

    def _gave_up_place(self, load: _Load[T]) -> bool:
        """Gives up the load's place among `_ABREAST` jobs. Returns: whether the place goes to another job, which must be sent now."""
        with self._lock:
            if not load.has_place:
                return False
            load.has_place = False
            if not self._waiting:
                self._under_way -= 1
            return bool(self._waiting)

    def _on_load_over(self, load: _Load[T], result: Any) -> bool:
        if load.size:
            self._io.count(-load.size)
        if self._gave_up_place(load):
            self._send()
        return bool(load.items) and self._arrived(load.items, result)
