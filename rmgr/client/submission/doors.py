"""Protocols of the Submitter's thread and of one submission, for the parts that live on that thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from rmgr.coord.protocol.ports import Coordinator, Store


class SubmitterHost(Protocol):
    """The Submitter's thread, ZooKeeper and the store."""

    @property
    def coordinator(self) -> Coordinator: ...

    @property
    def store(self) -> Store: ...

    def post(self, job: Callable[[], None]) -> None:
        """Runs `job` on the Submitter's thread, soon."""
        ...

    def after(self, delay_s: float, job: Callable[[], None]) -> Any:
        """Runs `job` on the Submitter's thread later; the answer has `cancel()`."""
        ...

    def io(self, job: Callable[[], Any]) -> Future[Any]:
        """Runs `job` on a thread that may wait."""
        ...

    def jitter(self, seconds: float) -> float:
        """`seconds`, more or less."""
        ...


class SubmitterLoop(SubmitterHost, Protocol):
    """The same of an owner of submissions. guid: its name as one."""

    guid: str
