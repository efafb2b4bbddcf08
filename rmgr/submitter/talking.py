"""`WorkPort` through a gateway: messages (`messages.py`) on the stream that also has the questions (`remote.py`).

A stream begins with a hello. Then everything under way is repeated: orders, kept submissions with their next fragment, growths. So
nothing is lost with a gateway, and nothing is done twice (see `messages.py`). Lives on the Submitter's thread, except calls that wait.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from rmgr.adapters.access.server_threads import Silence
from rmgr.adapters.gateway.talk import LOOK_S, Outbox
from rmgr.coord import validity
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import read_fragment
from rmgr.errors import CoordinationUnavailable, InvalidRecord, NotConnected, RmgrError, Throttled, UsageError
from rmgr.model.line import ClaimStage
from rmgr.model.node import NodeRecord, SubmitterEntry
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Tail
from rmgr.model.units import format_duration
from rmgr.runtime import machine
from rmgr.submitter import messages
from rmgr.submitter.port import Growing, Grown, Growth, KeptListener, NotTaken, Order, Read, Stored, Submitted
from rmgr.submitter.questions import ReadNodes, ReadRecord, ReadSettings
from rmgr.submitter.records import Lately
from rmgr.submitter.remote import Beside, RemoteAnswers
from rmgr.submitter.submitting import submit_unknown
from rmgr.submitter.thread import SubmitterThread

_LOG = logging.getLogger("rmgr.submitter")
#: Orders under way at once.
_WINDOW = 100
_POLL_S = 0.05


@dataclass(slots=True)
class _Placing:
    """An order without an answer. was_said: sent on some stream, so it may have been carried out."""

    place: messages.Place
    done: Future[Submitted]
    was_said: bool = False


class RemoteWork:
    """`port.WorkPort` on the stream of `asks`. Connects in the background; `wait_ready` waits for that.

    Args: entry: of the owner of submissions. asks: answers questions, and closes the stream.
    """

    def __init__(self, loop: SubmitterThread, asks: RemoteAnswers, entry: SubmitterEntry) -> None:
        self.guid = entry.guid
        self.session_state = SessionState.LOST
        self.session_timeout_s = 10.0
        self._loop = loop
        self._entry = entry
        self._asks = asks
        self._link = asks.link
        self._settings = Lately(lambda timeout_s: asks.ask(ReadSettings(), timeout_s=timeout_s).settings)
        self._nodes = Lately(lambda timeout_s: [*asks.ask(ReadNodes(), timeout_s=timeout_s)])
        self._outbox: Outbox | None = None  #: of the current stream
        self._last_id = 0
        self._placing: dict[int, _Placing] = {}
        self._kept: dict[int, RemoteKept] = {}
        self._is_closed = False
        asks.join(
            Beside(
                up=lambda outbox: loop.post(lambda: self._on_up(outbox)),
                heard=lambda words: loop.post(lambda: self._on_messages(words)),
                down=lambda: loop.post(self._on_down),
            )
        )
        loop.post(self._look)

    def wait_ready(self, timeout_s: float) -> None:
        """Waits until a gateway reports that ZooKeeper answers.

        Raises: NotConnected if no gateway answers; CoordinationUnavailable if one answers but ZooKeeper does not; the error with which a
            gateway refused this client (PermissionDenied, ...).
        """
        left_s = timeout_s
        while self.session_state is not SessionState.CONNECTED:
            refusal = self._link.refusal
            if refusal is not None and (not isinstance(refusal, Throttled) or left_s <= 0):
                raise refusal
            if left_s <= 0:
                raise self._no_answer_error(timeout_s)
            machine.sleep(min(_POLL_S, left_s))
            left_s -= _POLL_S  # not what the clock says: a process that stood still has not heard yet what was said meanwhile

    def _no_answer_error(self, timeout_s: float) -> NotConnected | CoordinationUnavailable:
        if self.session_state is SessionState.SUSPENDED:
            return CoordinationUnavailable(
                f"the gateway at {self.endpoint} answers, but ZooKeeper gave it no session within {format_duration(timeout_s)}",
                hint="is ZooKeeper up? ask who runs the gateway; its log says more",
            )
        why = f": {self._link.last_error}" if self._link.last_error else ""
        hint = "is it running? start one with: rmgr submitter --listen HOST:PORT   (or name another: --gateway, RMGR_GATEWAY)"
        if "does not talk to us" in why:
            hint = "a secured one hangs up on who has no credentials: set RMGR_SECURITY_DIR to your bundle (rmgr admin add-user)"
        return NotConnected(f"no gateway answers at {self._asks.hosts} within {format_duration(timeout_s)}{why}", hint=hint)

    @property
    def endpoint(self) -> str:
        """The gateway that has the stream; without a stream, one to try."""
        return self._asks.endpoint

    # -- port.WorkPort

    def settings(self, *, timeout_s: float = 10.0) -> ClusterSettings:
        return self._settings(timeout_s=timeout_s)

    def nodes(self, *, timeout_s: float = 10.0) -> list[NodeRecord]:
        return self._nodes(timeout_s=timeout_s)

    def read(self, number: int, *, timeout_s: float) -> Stored:
        """See `port.WorkPort`. Only the gateway knows versions."""
        found = self._asks.ask(ReadRecord(number=number), timeout_s=timeout_s)
        return Stored(submission=found.record, version=0, tail=found.tail, tail_version=0)

    def submit(self, order: Order, *, timeout_s: float) -> Submitted:
        return self.submit_many([order], timeout_s=timeout_s)[0]

    def submit_many(self, orders: Sequence[Order], *, timeout_s: float) -> list[Submitted]:
        waited = Silence(LOOK_S, machine.monotonic)  # not by the clock: a process that stood still has not heard yet what was answered
        made: list[Submitted] = []
        for start in range(0, len(orders), _WINDOW):
            placing = [self._place(order, timeout_s - waited.look()) for order in orders[start : start + _WINDOW]]
            made += [self._wait_placed(one, waited, timeout_s) for one in placing]
        return made

    def keep(
        self, stored: Stored, listener: KeptListener, *, is_owned: bool, wants_ownership: bool = False, is_fresh: bool = False
    ) -> RemoteKept:
        self._last_id += 1
        made = RemoteKept(
            self, self._last_id, stored.submission.id, listener, is_owned=is_owned, wants_ownership=wants_ownership, is_fresh=is_fresh
        )  # fmt: skip
        self._kept[made.id] = made
        made.begin()
        return made

    def close(self, *, timeout_s: float) -> None:  # noqa: ARG002 - the stream is not its own
        """See `port.WorkPort`. On the Submitter's thread, or after it has ended."""
        for kept in list(self._kept.values()):
            kept.leave()
        self._is_closed = True
        self.say(messages.Bye())

    # -- for kept sessions

    def say(self, message: messages.FromClient) -> None:
        """Sends a message if there is a stream; a later stream repeats all that is under way."""
        if self._outbox is not None:
            self._outbox.say(messages.encode(message))

    def forget(self, kept: RemoteKept) -> None:
        """Forgets a submission that is over."""
        self._kept.pop(kept.id, None)

    # -- orders

    def _place(self, order: Order, left_s: float) -> _Placing:
        place = messages.place_of(0, order, max(0.1, left_s))
        if (size := len(messages.encode(place))) > messages.MAX_BYTES:
            raise UsageError(f"a submission of {size:,} bytes is larger than {messages.MAX_BYTES:,}", hint="put its data into the store")
        made = _Placing(place, Future())
        self._loop.post(lambda: self._send(made))
        return made

    def _send(self, placing: _Placing) -> None:
        self._last_id += 1
        placing.place = replace(placing.place, id=self._last_id)
        self._placing[self._last_id] = placing
        self._say_order(placing)

    def _say_order(self, placing: _Placing) -> None:
        if self._outbox is not None:
            self.say(replace(placing.place, is_repeat=True) if placing.was_said else placing.place)
            placing.was_said = True

    def _wait_placed(self, placing: _Placing, waited: Silence, timeout_s: float) -> Submitted:
        while not placing.done.done() and (left_s := timeout_s + 0.5 - waited.look()) > 0:
            with suppress(TimeoutError):
                machine.result(placing.done, min(LOOK_S, left_s))
        if placing.done.done():
            return placing.done.result()
        self._loop.post(lambda: self._placing.pop(placing.place.id, None))
        if not placing.was_said:
            raise self._no_answer_error(timeout_s)
        token = validity.submission(placing.place.record, messages.UNNUMBERED).token
        raise submit_unknown("the gateway went away meanwhile", token)

    # -- the stream

    def _look(self) -> None:
        if not self._is_closed:
            self._link.check()
            self._loop.after(LOOK_S, self._look)

    def _on_up(self, outbox: Outbox) -> None:
        self._outbox = outbox
        entry = self._entry
        self.say(messages.Hello(messages.VERSION, self.guid, self._asks.user, entry.host, entry.pid, entry.since_us))
        for placing in self._placing.values():
            self._say_order(placing)
        for kept in self._kept.values():
            kept.begin()

    def _on_down(self) -> None:
        self._outbox = None
        self.session_state = SessionState.LOST
        for kept in self._kept.values():
            kept.most_left = 0

    def _on_messages(self, words: list[messages.FromGateway]) -> None:
        for message in words:
            try:
                if isinstance(message, messages.Welcome):
                    self.session_timeout_s = message.session_timeout_ms / 1000
                elif isinstance(message, messages.State):
                    self.session_state = SessionState(message.state)
                elif isinstance(message, messages.Placed):
                    self._answer(message.id, messages.submitted_of(message))
                elif isinstance(message, messages.Refused):
                    self._answer(message.id, message.fault.error())
                elif not isinstance(message, messages.Answer) and (kept := self._kept.get(message.id)) is not None:
                    self._pass_on(kept, message)
            except (RmgrError, ValueError):
                _LOG.warning("gateway_not_understood", extra={"gateway": self.endpoint}, exc_info=True)

    def _pass_on(self, kept: RemoteKept, message: messages.FromGateway) -> None:
        try:
            kept.heard(message)
        except (InvalidRecord, ValueError) as error:  # only this submission cannot be followed
            kept.die(InvalidRecord(f"what the gateway at {self.endpoint} says cannot be read: {error}", hint="rmgr version"))

    def _answer(self, number: int, answer: Submitted | RmgrError) -> None:
        placing = self._placing.pop(number, None)
        if placing is None:
            return
        if isinstance(answer, RmgrError):
            placing.done.set_exception(answer)
        else:
            placing.done.set_result(answer)


class RemoteKept:
    """`port.Kept` of one submission, through a gateway. id: the client's name for it on its streams."""

    def __init__(
        self, work: RemoteWork, kept_id: int, number: int, listener: KeptListener, *, is_owned: bool, wants_ownership: bool, is_fresh: bool
    ) -> None:
        self.id = kept_id
        self.number = number
        self.most_left = 0
        self._work = work
        self._listener = listener
        self._next = 0
        self._is_owned = is_owned
        self._wants_ownership = wants_ownership
        self._is_fresh = is_fresh
        self._growth: tuple[Growth, Growing] | None = None
        self._tails: dict[int, Future[Tail]] = {}
        self._last_serial = 0
        self._is_over = False

    # -- port.Kept

    def grow(self, growth: Growth) -> Growing:
        done: Growing = Future()
        self._growth = growth, done
        self._work.say(messages.grow_of(self.id, growth))
        return done

    def announce(self, growth: Growth) -> None:
        if growth.is_alone and self.most_left:
            self._work.say(messages.grow_of(self.id, growth, is_announced=True))

    def claimed(self, stage: ClaimStage) -> None:
        self._work.say(messages.Claiming(self.id, stage))

    def read_tail(self) -> Future[Tail]:
        self._last_serial += 1
        self._tails[self._last_serial] = asked = Future[Tail]()
        self._work.say(messages.AskTail(self.id, self._last_serial))
        return asked

    def nudge(self) -> None:
        """See `port.Kept`: does nothing, the gateway looks by itself."""

    def leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._work.say(messages.Leave(self.id))
            self._work.forget(self)

    # -- from the stream

    def begin(self) -> None:
        """Has the submission kept on a new stream from the next fragment on, and repeats requests under way."""
        if self._is_over:
            return
        self._work.say(messages.Keep(self.id, self.number, self._next, self._is_owned, self._wants_ownership, self._is_fresh))
        self._is_fresh = False
        if self._growth is not None:
            self._work.say(messages.grow_of(self.id, self._growth[0]))
        for serial in self._tails:
            self._work.say(messages.AskTail(self.id, serial))

    def heard(self, message: messages.FromGateway) -> None:
        """Takes a message of the gateway about this submission."""
        listener = self._listener
        match message:
            case messages.Fragments(first=first, fragments=found):
                reads = [Read(at, read_fragment(data), zxid, data) for at, (zxid, data) in enumerate(found, first) if at >= self._next]
                if reads and reads[0].number == self._next:
                    self._next += len(reads)
                    listener.on_fragments(reads)
            case messages.DidGrow(stamp=stamp, taken=taken, tail=data):
                if self._growth is not None and self._growth[0].tail.enqueued == stamp:
                    (_, done), self._growth = self._growth, None
                    done.set_result(Grown(validity.decode(data, Tail, "the tail")) if taken else NotTaken())
            case messages.TailIs(serial=0, tail=data):
                listener.on_tail(validity.decode(data, Tail, "the tail"))
            case messages.TailIs(serial=serial, tail=data, fault=fault):
                asked = self._tails.pop(serial, None)
                if asked is not None and fault is not None:
                    asked.set_exception(fault.error())
                elif asked is not None:
                    asked.set_result(validity.decode(data, Tail, "the tail"))
            case messages.RecordIs(record=data, version=version):
                listener.on_record(validity.submission(data, self.number) if data else None, version)
            case messages.Owned():
                self._is_owned, self._wants_ownership = True, False
                listener.on_owned(messages.stored_of(message, self.number))
            case messages.Full(most=most):
                listener.on_full(most)
            case messages.Trouble(fault=fault):
                listener.on_trouble(fault.error())
            case messages.Leaves(most=most):
                self.most_left = most
            case messages.Dead(fault=fault):
                self.die(fault.error())

    def die(self, error: RmgrError) -> None:
        """Ends the submission here with `error`: nothing more will come."""
        if not self._is_over:
            self.leave()
            self._listener.on_dead(error)
