"""Calls that are run again: their arguments came with their end, or lie in a row of the store that is named by its bytes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_keyed, decode_payloads, encode_keyed
from rmgr.coord.seal.work import row_digest
from rmgr.errors import DataLost, DeadlineExceeded, NotFound, RmgrError
from rmgr.model.base.states import State
from rmgr.model.tasks.outcome import Call, Fragment, Outcome
from rmgr.submitter.questions import CountFragments

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.client.waiting import Deadline

#: Bytes of a row of arguments: what is larger is not read here as a whole.
_MOST_BYTES = 256 * 1024 * 1024


class FailedCalls:
    """A `ports.Listener` that keeps what FAILED calls have left: of the ends that its client believes."""

    def __init__(self) -> None:
        self.calls: dict[int, Call | None] = {}
        self.dead: RmgrError | None = None
        self._news = threading.Event()

    @classmethod
    def read(cls, connection: Connection, number: int, deadline: Deadline) -> dict[int, Call | None]:
        """Of the tasks that have FAILED by now, None where nothing is kept. Raises: DeadlineExceeded, NotFound, CoordinationUnavailable."""
        left_s, reader = deadline.left() or 30.0, cls()
        committed = connection.asks.ask(CountFragments(number=number), timeout_s=left_s)
        handle = connection.submitter.attach(number, reader, own=False, timeout_s=left_s)
        while handle.view.progress.next_fragment < committed and reader.dead is None:
            if deadline.is_over:
                raise DeadlineExceeded(f"the ends of {number} could not be read in time", hint="try again, with a longer timeout=")
            reader._news.wait(0.2)
            reader._news.clear()
        if reader.dead is not None:
            raise reader.dead
        return dict(reader.calls)

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:  # noqa: ARG002 - of all listeners
        """See `ports.Listener`."""
        self.calls.update((outcome.index, outcome.call) for outcome in outcomes if outcome.state is State.FAILED)

    def on_progress(self) -> None:
        """See `ports.Listener`."""
        self._news.set()

    def on_dead(self, error: RmgrError) -> None:
        """See `ports.Listener`."""
        self.dead = error
        self._news.set()


def calls_again(store: Store, number: int, calls: Mapping[int, Call | None]) -> Iterator[Call]:
    """The calls of these tasks with their arguments, one row in memory at a time; output keys are theirs to have again.

    Raises: NotFound where there are none; DataLost naming the first task whose arguments are not kept, before any is given.
    """
    if not calls:
        raise NotFound(f"no task of {number} has failed", hint=f"rmgr tasks {number}")
    missing = next((index for index, call in calls.items() if call is None), None)
    if missing is not None:
        why = f"the arguments of task {number}_{missing} are not kept: only a task that FAILED on a node leaves them"
        raise DataLost(why, hint="submit it again; rerun_failed runs what has failed")
    return _read(store, number, {index: call for index, call in calls.items() if call is not None})


def _read(store: Store, number: int, calls: Mapping[int, Call]) -> Iterator[Call]:
    row = ""
    payloads: tuple[bytes, ...] = ()
    for index, call in calls.items():
        payload = call.payload
        if call.row:
            if call.row != row:
                row, payloads = call.row, _payloads(store, call.row)
            if call.at >= len(payloads):
                raise DataLost(f"the arguments of task {number}_{index} are not in {call.row}", hint="submit it again")
            payload = payloads[call.at]
        if call.keyed:
            payload = encode_keyed(msgspec.structs.replace(decode_keyed(payload), overwrite=True, claims_by="", deeds=()))
        yield msgspec.structs.replace(call, payload=payload, row="", at=0)


def _payloads(store: Store, row: str) -> tuple[bytes, ...]:
    found = store.get_noted_many([row], largest=_MOST_BYTES).get(row)
    data = found[0] if found is not None else None
    if data is None or hashlib.sha256(data).hexdigest() != row_digest(row):
        raise DataLost(f"the arguments {row} are not in the data store as they were, or are too large", hint="submit them again")
    try:
        return decode_payloads(data)
    except msgspec.MsgspecError as error:
        raise DataLost(f"the arguments {row} cannot be read: {error}", hint="submit them again") from None
