"""Certificates and revocations, asked of whoever answers: `adapters.identity.trust.Keys` for those who do not reach ZooKeeper."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Container
from concurrent.futures import Future
from typing import TYPE_CHECKING

from rmgr.adapters.identity.trust import RevokedKey
from rmgr.errors import RmgrError
from rmgr.runtime import machine
from rmgr.submitter.questions import Asks, PublishCertificate, ReadCertificate, ReadRevoked

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials

#: How long one question may take.
_ASK_S = 10.0


class AskedKeys:
    """A `Keys`. Thread-safe. Nobody tells it of a revocation: it is asked for often."""

    resync_s = 5.0

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def certificate(self, key_id: str) -> Future[bytes | None]:
        """See `Keys`."""
        answer: Future[bytes | None] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._asks.ask(ReadCertificate(key_id=key_id), timeout_s=_ASK_S))
            except RmgrError as error:
                answer.set_exception(error)

        self._soon(ask)
        return answer

    def revocations(
        self,
        known: Container[str],
        changed: Callable[[], None],  # noqa: ARG002 - of whoever is told
        take: Callable[[dict[str, RevokedKey | None] | None], None],
    ) -> None:
        """See `Keys`."""

        def ask() -> None:
            try:
                found = self._asks.ask(ReadRevoked(), timeout_s=_ASK_S)
            except RmgrError:
                take(None)
                return
            take({one.key_id: None if one.key_id in known else RevokedKey(one.record, one.zxid, one.since_zxid) for one in found})

        self._soon(ask)

    def _soon(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        with self._lock:
            if self._thread is None:
                self._thread = machine.Thread(target=self._work, name="keys", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class Publishing:
    """Makes the certificate of one's own key known: once, when it is first called; returns the credentials that sign."""

    def __init__(self, asks: Asks, credentials: Credentials) -> None:
        self._asks = asks
        self._credentials = credentials
        self._is_done = False

    def __call__(self) -> Credentials:
        if not self._is_done:
            self._asks.ask(PublishCertificate(pem=self._credentials.certificate_pem), timeout_s=_ASK_S)
            self._is_done = True
        return self._credentials
