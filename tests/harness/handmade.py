"""A hand-made client of a gateway, which can send any message (`rmgr.v1.Work/Talk`) and any question.

    with Handmade(endpoint, credentials, cluster_id) as mine:
        made = mine.submit(draft, blocks, tasks=1)
        kept = mine.keep(made.number, is_owned=True)
        mine.say(b"nonsense")

It neither checks nor corrects what it sends. It never reconnects: `error` says why its stream has ended.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import grpc

from rmgr.adapters.access.auth import open_channel, rebuild
from rmgr.adapters.gateway.talk import Outbox
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.client.identity import Signer
from rmgr.coord.ops.work import Block
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.errors import NotConnected, RmgrError, Throttled, Unavailable
from rmgr.model.identity import Role
from rmgr.model.submission import Submission, Tail
from rmgr.submitter import messages as m
from rmgr.submitter.port import Growth, Submitted
from rmgr.submitter.questions import Question
from rmgr.submitter.remote import RemoteAnswers
from rmgr.v1 import work_pb2_grpc

A = TypeVar("A")
#: Options that give each client its own connection.
OWN = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
DEADLINE_S = 60.0


class Handmade:
    """Args: guid: owner of the client's submissions, "" = a new one. hello: whether to greet the gateway and wait until that can work.

    Raises: the gateway's refusal of the client. Thread-safe.
    """

    def __init__(
        self,
        endpoint: str,
        credentials: Credentials,
        cluster_id: str,
        *,
        guid: str = "",
        hello: bool = True,
        connect_timeout_s: float = 30.0,
    ) -> None:
        self.endpoint = endpoint
        self.credentials = credentials
        self.name = credentials.identity.name
        self.guid = guid or uuid.uuid4().hex
        self.signer = Signer(credentials, cluster_id, ttl_s=600.0)
        self.asks = RemoteAnswers(endpoint, credentials=credentials)
        self._ids = itertools.count(1)
        self._channel = open_channel(endpoint, credentials, Role.SUBMITTER, OWN)
        end_s = time.monotonic() + connect_timeout_s
        while True:
            self._begin()
            try:
                if hello:
                    self._hello(max(0.1, end_s - time.monotonic()))
                return
            except (Throttled, Unavailable):
                if time.monotonic() > end_s:
                    self.close()
                    raise
                time.sleep(0.2)
            except BaseException:
                self.close()
                raise

    def _begin(self) -> None:
        self.heard: list[Any] = []
        self.error: RmgrError | None = None
        self._is_over = False
        self._changed = threading.Condition()
        self._outbox = Outbox()
        self._call = work_pb2_grpc.WorkStub(self._channel).Talk(self._outbox.messages(time.monotonic))
        self._reader = threading.Thread(target=self._read, name="handmade", daemon=True)
        self._reader.start()

    def _hello(self, timeout_s: float) -> None:
        self.say(m.Hello(m.VERSION, self.guid, self.name, socket.gethostname(), os.getpid(), 1))
        self.wait(m.State, timeout_s=timeout_s, where=lambda one: one.state == "CONNECTED")

    def _read(self) -> None:
        error: RmgrError | None = None
        try:
            for message in self._call:
                with self._changed:
                    self.heard += [m.read_gateway(word) for word in message.words]
                    self._changed.notify_all()
        except grpc.RpcError as failed:
            error = rebuild(failed, self.endpoint)
        except ValueError:
            pass  # closed
        with self._changed:
            self._is_over, self.error = True, error
            self._changed.notify_all()

    # -- words

    def say(self, *words: m.FromClient | bytes) -> None:
        """Sends messages or any bytes, without waiting."""
        for word in words:
            self._outbox.say(word if isinstance(word, bytes) else m.encode(word))

    def of(self, *kinds: type, kept: int | None = None) -> list[Any]:
        """Returns the messages received so far of these kinds, of one order or kept submission if given."""
        with self._changed:
            return [one for one in self.heard if isinstance(one, kinds) and kept in (None, getattr(one, "id", None))]

    def wait(self, *kinds: type, kept: int | None = None, timeout_s: float = DEADLINE_S, where: Any = lambda _: True) -> Any:
        """Waits for the first message of these kinds. Raises: the reason if the stream has ended; TimeoutError."""

        def found() -> list[Any]:
            return [one for one in self.of(*kinds, kept=kept) if where(one)]

        with self._changed:
            if not self._changed.wait_for(lambda: found() or self._is_over, timeout_s):
                raise TimeoutError(f"{self.name} is not told {kinds}: {self.heard[-5:]}")
            if told := found():
                return told[0]
        raise self.error or NotConnected("the stream has ended without a word")

    def ended(self, timeout_s: float = DEADLINE_S) -> RmgrError | None:
        """Waits for the end of the stream; returns the reason. Raises: TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_over, timeout_s):
                raise TimeoutError("the stream goes on")
        return self.error

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended."""
        return self._is_over

    # -- work

    def publish(self) -> None:
        """Publishes the client's certificate for verifiers."""
        self.signer.publish(self.asks, timeout_s=DEADLINE_S)

    def place(
        self,
        record: Submission,
        blocks: Sequence[Block] = (),
        *,
        tasks: int | None = None,
        complete: bool = True,
        signs: bool = True,
        **more: Any,
    ) -> m.Place:
        """Returns an order. signs: whether to sign the record and its blocks as they are. more: other fields of `Place`."""
        record = replace(record, nonce=record.nonce or uuid.uuid4().hex, signed_s=record.signed_s or int(time.time()))
        sealed: Sequence[Block] = blocks
        if signs:
            self.publish()
            record = self.signer.signed(record)
            sealed = self.signer.sealer(record)(blocks) if blocks else ()
        count = sum(key.count for key, _ in blocks) if tasks is None else tasks
        data = encode_record(replace(record, id=m.UNNUMBERED))
        told = {"complete": complete, "held": None, "is_owned": False, "timeout_ms": 30_000}
        named = m.blocks_to([(replace(key, submission=m.UNNUMBERED), one) for key, one in sealed])
        return m.Place(next(self._ids), data, named, count, **(told | more))

    def order(self, place: m.Place, *, timeout_s: float = DEADLINE_S) -> m.Placed:
        """Sends an order and returns the answer. Raises the refusal."""
        self.say(place)
        answer = self.wait(m.Placed, m.Refused, kept=place.id, timeout_s=timeout_s)
        if isinstance(answer, m.Refused):
            raise answer.fault.error()
        return answer

    def submit(self, record: Submission, blocks: Sequence[Block] = (), *, timeout_s: float = DEADLINE_S, **more: Any) -> Submitted:
        """Makes an order and sends it, as `place` and `order` do."""
        return m.submitted_of(self.order(self.place(record, blocks, **more), timeout_s=timeout_s))

    def keep(self, number: int, *, is_owned: bool = False, wants_ownership: bool = False, is_fresh: bool = False, fragment: int = 0) -> int:
        """Follows a submission from a fragment on, or owns it. Returns the client's id for it."""
        kept = next(self._ids)
        self.say(m.Keep(kept, number, fragment, is_owned, wants_ownership, is_fresh))
        return kept

    def grow(self, kept: int, tail: Tail, blocks: Sequence[Block] = (), **more: Any) -> Tail:
        """Sends a growth of a submission; returns the new tail. Raises the refusal."""
        self.say(m.grow_of(kept, Growth(tail=tail, blocks=blocks, **more)))
        answer = self.wait(m.DidGrow, m.Dead, kept=kept, where=lambda one: isinstance(one, m.Dead) or one.stamp == tail.enqueued)
        if isinstance(answer, m.Dead):
            raise answer.fault.error()
        return decode_record(answer.tail, Tail)

    # -- questions

    def ask(self, question: Question[A], *, timeout_s: float = DEADLINE_S) -> A:
        """Returns the answer to a question. Raises the refusal."""
        return self.asks.ask(question, timeout_s=timeout_s)

    # -- the end

    def bye(self) -> None:
        """Says goodbye and ends the stream; the leader owns the client's submissions at once."""
        self.say(m.Bye())
        self._outbox.end()
        self.ended()

    def close(self) -> None:
        """Ends the stream without a goodbye. Idempotent."""
        self._outbox.end()
        self._call.cancel()
        self._reader.join(60)
        self._channel.close()
        self.asks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
