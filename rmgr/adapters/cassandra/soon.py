"""Small writes that no thread waits for: each answer, on the driver's thread, sends what comes next.

Only what is usual is done here. A key that exists, the claim of another writer, an answer that is lost or late: all of them end the
write with an error. Then its caller takes the long way, `CassandraStore.put_many`, which waits, looks closer and tries again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from rmgr.adapters.cassandra.calls import Calls, Rows
from rmgr.adapters.cassandra.layout import WriteClock, scope_of
from rmgr.adapters.cassandra.link import CassandraSession, Lost
from rmgr.adapters.cassandra.once import FRESH_S, TOGETHER, KeyClaim
from rmgr.adapters.cassandra.rows import ValueManifest, requests_at_once
from rmgr.adapters.cassandra.statements import StatementRequest
from rmgr.adapters.cassandra.sweep import Register
from rmgr.adapters.store_rules import key_exists
from rmgr.errors import RmgrError, StoreUnavailable

#: Hears how a write ended, on the driver's thread: None, or why it is not known to be there.
Done = Callable[[RmgrError | None], None]


class SoonWrites:
    """Begins such writes for one store; from any thread."""

    def __init__(self, calls: Calls, clock: WriteClock, register: Register, *, request_timeout_s: float) -> None:
        self._calls = calls
        self._clock = clock
        self._register = register
        self._timeout_s = request_timeout_s

    @property
    def are_taken(self) -> bool:
        """The cluster serves."""
        return self._calls.ready is not None

    def put(self, manifests: Mapping[str, ValueManifest], done: Done) -> bool:
        """Writes values and their entries in the index in one round trip. Of keys whose every writer writes the same, found unlisted."""
        session = self._session(manifests)
        if session is not None:
            self._publish(session, manifests, {key: self._clock.next_us() for key in manifests}, _once(done))
        return session is not None

    def create(self, manifests: Mapping[str, ValueManifest], done: Done, decided: Callable[[], None] | None) -> bool:
        """Writes values under up to 32 keys that nobody has: in three round trips, and `decided` is called after two of them."""
        session = self._session(manifests) if len(manifests) <= TOGETHER else None
        if session is None:
            return False
        claim, begun_s = KeyClaim(self._calls, self._clock, tuple(manifests)), time.monotonic()

        @_once
        def over(error: RmgrError | None) -> None:
            claim.withdraw()
            done(error)

        def raised(_: list[Rows]) -> None:
            self._send(session, claim.questions(), told, over)

        def told(answers: list[Rows]) -> None:
            others, seen = claim.read(answers)
            if taken := [key for key, (manifest, _) in seen.items() if manifest is not None and manifest.is_live]:
                over(key_exists(sorted(taken)))
            elif any(others.values()) or time.monotonic() - begun_s > FRESH_S:
                over(StoreUnavailable(f"others are creating {next(iter(manifests))!r} at the same time, or the cluster is slow"))
            else:
                if decided is not None:
                    decided()
                stamps = {key: self._clock.next_us(seen_us) for key, (_, seen_us) in seen.items()}
                self._publish(session, manifests, stamps, over)

        self._send(session, claim.flags(), raised, over)
        return True

    def _session(self, keys: Iterable[str]) -> CassandraSession | None:
        """None where these have to go the long way: the cluster is in trouble, or their scopes are to be registered first."""
        return self._calls.ready if not self._register.requests({scope_of(key) for key in keys}, time.monotonic()) else None

    def _publish(
        self, session: CassandraSession, manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], done: Done
    ) -> None:
        self._send(session, requests_at_once(manifests, stamps, ttl_s=0), lambda _: done(None), done)

    def _send(
        self, session: CassandraSession, requests: Iterable[StatementRequest], then: Callable[[list[Rows]], None], failed: Done
    ) -> None:
        """Calls one of the two, with all answers or with what went wrong."""

        def arrived(result: list[Rows] | BaseException) -> None:
            try:
                if isinstance(result, BaseException):
                    failed(_explained(result))
                else:
                    then(result)
            except Exception as error:  # noqa: BLE001 - on a thread of the driver, where nobody would hear of it
                failed(_explained(error))

        _Answers([session.send(request, self._timeout_s) for request in requests], arrived).await_all()


@dataclass(slots=True)
class _Answers:
    """Those of some requests, which arrive one by one on threads of the driver. arrived: called with all of them, or with an error."""

    futures: Sequence[Future[Rows]]
    arrived: Callable[[list[Rows] | BaseException], None]
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def await_all(self) -> None:
        self.left = len(self.futures)
        for future in self.futures:
            future.add_done_callback(self._one)

    def _one(self, _: Future[Rows]) -> None:
        with self.lock:
            self.left -= 1
            if self.left:
                return
        failure = next((error for future in self.futures if (error := future.exception()) is not None), None)
        self.arrived([future.result() for future in self.futures] if failure is None else failure)


def _once(done: Done) -> Done:
    """Nobody hears of an end twice. Who is told may have ended: the driver's thread goes on."""
    ends: list[RmgrError | None] = []

    def end(error: RmgrError | None) -> None:
        if not ends:
            ends.append(error)
            with suppress(Exception):
                done(error)

    return end


def _explained(error: BaseException) -> RmgrError:
    if isinstance(error, RmgrError):
        return error
    told = str(error) if isinstance(error, Lost) else f"{type(error).__name__}: {error}"
    return StoreUnavailable(f"cannot write to Cassandra: {told}", hint="it is tried again")
