"""Asks a gateway what `answers.py` would answer here: for clients that reach neither ZooKeeper nor the data store.

Questions are messages on the one stream that a process has, to one gateway at a time (`messages.py`); its submissions, if it has any,
share the stream (`talking.py`). If the gateway dies or is silent, the next one is asked all unanswered questions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rmgr.adapters.access.auth import check_not_forked
from rmgr.adapters.access.server_threads import Silence
from rmgr.adapters.gateway.talk import LOOK_S, Outbox, TalkLink
from rmgr.adapters.rpc.channels import Gateways
from rmgr.errors import CoordinationUnavailable, LimitReached, NotConnected, QueueFull, RmgrError, Throttled, Unavailable
from rmgr.runtime import machine
from rmgr.runtime.machine import Backoff
from rmgr.submitter import messages
from rmgr.submitter.questions import MAX_ANSWER_BYTES, Question, decode_answer, encode_question

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials

_LOG = logging.getLogger("rmgr.submitter")
A = TypeVar("A")

#: Pauses between two tries, the first and the longest (s).
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 0.5
#: How long the answer to an expected question counts as new, and may take (s).
_EXPECTED_S = 5.0
#: Shortest time limit of a question, and time limit of closing a stream that carried submissions (s).
_SHORTEST_S, _END_S = 0.1, 2.0


@dataclass(slots=True)
class _PendingQuestion:
    """A question without an answer. was_said: sent on some stream, so its order may have been carried out."""

    question: Question[Any]
    data: bytes
    end_s: float
    done: Future[bytes] = field(default_factory=Future)
    pieces: list[bytes] = field(default_factory=list)
    was_said: bool = False

    def fail(self, error: RmgrError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(frozen=True, slots=True)
class Beside:
    """The other user of the stream. On the stream's thread, hears of its start, of messages that answer no question, and of its end."""

    up: Callable[[Outbox], None]
    heard: Callable[[list[messages.FromGateway]], None]
    down: Callable[[], None]


class RemoteAnswers:
    """A `questions.Asks` behind `gateways` ("HOST:PORT,..."). Connects at the first question; changes the gateway if one fails.

    Args: credentials: of the user, None in an open cluster. user: the user's name in an open cluster.
    """

    def __init__(self, gateways: str, *, credentials: Credentials | None, user: str = "", session_timeout_s: float = 10.0) -> None:
        self.user = user
        self._gateways = Gateways(gateways, credentials)
        self._session_timeout_s = session_timeout_s
        self._lock = threading.Lock()  # guards the following
        self._last_id = 0
        self._asked: dict[int, _PendingQuestion] = {}
        self._expected: dict[bytes, int] = {}  #: question, encoded -> its number in `_asked`
        self._beside: Beside | None = None
        self._outbox: Outbox | None = None  #: of the current stream
        self._is_begun = self._is_closed = False
        self.link = TalkLink(self._gateways, user=user, up=self._on_up, heard=self._on_messages, down=self._on_down)

    @property
    def hosts(self) -> str:
        """The gateways, as configured."""
        return str(self._gateways)

    @property
    def endpoint(self) -> str:
        """The gateway that is asked now."""
        return self.link.endpoint or self._gateways.current

    @property
    def session_timeout_s(self) -> float:
        return self._session_timeout_s

    def expect(self, *questions: Question[Any]) -> None:
        """Sends questions that will be asked within 5 s, so that all take one round trip together. Never waits."""
        check_not_forked()
        with self._lock:
            for question in () if self._is_closed else questions:
                asked = _PendingQuestion(question, encode_question(question), machine.monotonic() + _EXPECTED_S)
                self._expected[asked.data] = self._add(asked)

    def ask(self, question: Question[A], *, timeout_s: float) -> A:
        """See `Asks`. Repeats the question, also to other gateways, until `timeout_s` is over; time in which this process stood still
        does not count.

        Raises: Unavailable if none answers; NotConnected at once if this was closed, or is used after a fork.
        """
        data = encode_question(question)
        waited, pauses = Silence(LOOK_S, machine.monotonic), Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        left_s = timeout_s
        while True:
            limit_s = max(left_s, _SHORTEST_S)
            asked = _PendingQuestion(question, data, machine.monotonic() + limit_s)
            try:
                answer = self._answer(asked, limit_s, waited)
            except NotConnected:  # closed, or made by the parent process
                raise
            except (Unavailable, Throttled) as error:
                if isinstance(error, CoordinationUnavailable):  # the gateway does not reach ZooKeeper
                    self.link.leave(error.message)
                elif not isinstance(error, Throttled) and asked.was_said and not question.repeats:
                    message = f"it is not known whether {type(question).__name__} was carried out: {error.message}"
                    raise CoordinationUnavailable(message, hint="look, before you try again") from error
                left_s = timeout_s - waited.look()
                if left_s <= 0:
                    raise
                machine.sleep(min(left_s, pauses.next_s()))
            else:
                return decode_answer(question, answer)

    def join(self, beside: Beside) -> None:
        """Adds the other user of the stream; opens a stream if there is none."""
        with self._lock:
            self._beside = beside
            if self._outbox is not None:
                beside.up(self._outbox)
            self._begin()

    def close(self) -> None:
        """Ends the stream, after sending waiting messages if the stream has another user. Idempotent."""
        with self._lock:
            self._is_closed = True
            for asked in self._asked.values():
                asked.fail(_closed_error())
        if self._is_begun:
            self.link.close(_END_S if self._beside is not None else 0.0)
        self._gateways.close()

    # -- one question

    def _answer(self, asked: _PendingQuestion, limit_s: float, waited: Silence) -> bytes:
        """Returns the whole answer. Also raises the error with which a gateway refused this client."""
        begun_s = waited.look()
        check_not_forked()
        with self._lock:
            if self._is_closed:
                raise _closed_error()
            number = self._expected.pop(asked.data, 0)
            if not number or self._asked[number].end_s < machine.monotonic():
                self._asked.pop(number, None)
                number = self._add(asked)
            done = self._asked[number].done
        try:
            while True:
                left_s = limit_s - (waited.look() - begun_s)
                try:
                    return machine.result(done, max(0.0, min(LOOK_S, left_s)))
                except TimeoutError:
                    if done.done():  # with an error of that kind, or just now
                        return machine.result(done, 0.0)
                    self.link.check()
                    if left_s <= 0:
                        raise self.link.refusal or self._silence_error() from None
        finally:
            with self._lock:
                self._asked.pop(number, None)

    def _add(self, asked: _PendingQuestion) -> int:
        self._last_id += 1
        self._asked[self._last_id] = asked
        self._begin()
        self._say(self._last_id, asked)
        return self._last_id

    def _silence_error(self) -> Unavailable:
        failure = self.link.failure
        if failure is not None:
            return Unavailable(failure.message, hint=failure.hint)
        return Unavailable(f"{self.endpoint} did not answer in time", hint="rmgr doctor")

    def _say(self, number: int, asked: _PendingQuestion) -> None:
        if self._outbox is not None:
            asked.was_said = True
            left_s = max(_SHORTEST_S, asked.end_s - machine.monotonic())
            self._outbox.say(messages.encode(messages.Ask(number, asked.data, round(left_s * 1000))))

    # -- the stream

    def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            self.link.start()

    def _on_up(self, outbox: Outbox) -> None:
        with self._lock:
            self._outbox = outbox
            if self._beside is not None:
                self._beside.up(outbox)
            for number, asked in self._asked.items():
                self._say(number, asked)

    def _on_down(self) -> None:
        with self._lock:
            self._outbox = None
            refusal = self.link.refusal
            for asked in self._asked.values():
                asked.pieces.clear()
                if refusal is not None and not isinstance(refusal, QueueFull | LimitReached):
                    asked.fail(refusal)
                elif asked.was_said and not asked.question.repeats:
                    asked.fail(self._silence_error())
            if self._beside is not None:
                self._beside.down()

    def _on_messages(self, words: list[bytes]) -> None:
        others: list[messages.FromGateway] = []
        for word in words:
            try:
                message = messages.read_gateway(word)
            except RmgrError:
                _LOG.warning("gateway_not_understood", extra={"gateway": self.endpoint}, exc_info=True)
                continue
            if isinstance(message, messages.Answer):
                self._take_answer(message)
            else:
                others.append(message)
        if others and self._beside is not None:
            self._beside.heard(others)

    def _take_answer(self, answer: messages.Answer) -> None:
        with self._lock:
            asked = self._asked.get(answer.id)
            if asked is None or asked.done.done():
                return
            asked.pieces.append(answer.piece)
            if answer.fault is not None:
                asked.fail(answer.fault.error())
            elif sum(map(len, asked.pieces)) > MAX_ANSWER_BYTES:
                asked.fail(Unavailable(f"the answer of {self.endpoint} does not end", hint="rmgr version, here and where the gateway runs"))
            elif answer.is_last:
                asked.done.set_result(b"".join(asked.pieces))


def _closed_error() -> NotConnected:
    return NotConnected("this connection was closed", hint="call rmgr.connect() again")
