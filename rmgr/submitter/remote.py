"""Asks a gateway what `answers.py` would answer here: for clients that reach neither ZooKeeper nor the data store."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rmgr.adapters.rpc.gateways import WorkClient
from rmgr.errors import CoordinationUnavailable, NotConnected, Throttled, Unavailable
from rmgr.runtime import machine
from rmgr.runtime.backoff import Backoff
from rmgr.submitter.questions import Question
from rmgr.submitter.wire import decode_answer, encode_question

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials

A = TypeVar("A")

#: Pauses between two tries, the first and the longest.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 0.5
#: Where there are several gateways one that stands still is left after so long (s), the next after twice as long, and so on.
_PATIENCE_S = 3.0


class RemoteAnswers:
    """A `questions.Asks` behind `gateways` ("HOST:PORT,..."). Opens nothing until it asks; goes on to the next gateway when one fails.

    Args: credentials: who we are, None in an open cluster. user: the same there.
    """

    def __init__(self, gateways: str, *, credentials: Credentials | None, user: str = "", session_timeout_s: float = 10.0) -> None:
        self._client = WorkClient(gateways, credentials, user)
        self._session_timeout_s = session_timeout_s

    @property
    def hosts(self) -> str:
        """The gateways, as they were named."""
        return self._client.hosts

    @property
    def endpoint(self) -> str:
        """The gateway that is asked now."""
        return self._client.endpoint

    @property
    def session_timeout_s(self) -> float:
        """See `Asks`."""
        return self._session_timeout_s

    def ask(self, question: Question[A], *, timeout_s: float) -> A:
        """See `Asks`. Tried again, on other gateways too, until `timeout_s` is over.

        Raises: Unavailable when none answers; NotConnected at once when this was closed, or is used after a fork.
        """
        data = encode_question(question)
        end_s, pauses = machine.monotonic() + timeout_s, Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        patience_s = _PATIENCE_S if question.repeats and self._client.has_others else timeout_s
        while True:
            endpoint = self._client.endpoint
            try:
                answer = self._client.ask(data, timeout_s=max(0.1, min(patience_s, end_s - machine.monotonic())))
            except NotConnected:  # closed, or of the parent process
                raise
            except (Unavailable, Throttled) as error:
                is_answer = isinstance(error, CoordinationUnavailable)  # of the gateway: it does not reach ZooKeeper
                if not isinstance(error, Throttled):
                    self._client.failed(endpoint)
                    if not question.repeats and not is_answer:
                        told = f"it is not known whether {type(question).__name__} was carried out: {error.message}"
                        raise CoordinationUnavailable(told, hint="look, before you try again") from error
                left_s = end_s - machine.monotonic()
                if left_s <= 0:
                    raise
                patience_s *= 2
                machine.sleep(min(left_s, pauses.next_s()))
            else:
                return decode_answer(question, answer)

    def close(self) -> None:
        """Ends the channels. Idempotent."""
        self._client.close()
