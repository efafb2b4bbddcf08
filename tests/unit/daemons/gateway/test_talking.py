"""The gateway's side of a stream: it executes or refuses any client's messages, or ends the stream, and harms no other client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Holds, Multi, Set
from rmgr.coord.protocol.ports import SessionState
from rmgr.coord.protocol.records import decode_record, encode_block, encode_fragment, encode_record, join_page
from rmgr.daemons.gateway.talking import ClientTalk, Desk
from rmgr.daemons.gateway.values import GatewayContext
from rmgr.errors import DaemonFailed, InvalidRecord, NotFound, PermissionDenied, RmgrError, Throttled, VersionMismatch
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, Fragment, Outcome
from rmgr.model.identity import Identity, Role
from rmgr.model.queue import UserLimits
from rmgr.model.submission import Command, Paged, Phase, Submission, Tail, Work
from rmgr.submitter import messages as m
from rmgr.submitter.direct import DirectWork, Submitter
from rmgr.submitter.port import Growth, Order, Stored, prepared
from rmgr.submitter.records import read_stored
from rmgr.submitter.thread import SubmitterThread
from tests.harness.client_cluster import Cluster
from tests.harness.memory import MemoryCoordinator
from tests.harness.waiting import eventually

GUID = "0123456789abcdef" * 2


class Told:
    """A stream whose client takes everything at once, or nothing."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.error: RmgrError | None = None
        self.is_full = False

    def say(self, word: bytes) -> None:
        self.heard.append(m.read_gateway(word))

    def end(self, error: RmgrError) -> None:
        self.error = error

    def of(self, kind: type) -> list[Any]:
        return [one for one in self.heard if isinstance(one, kind)]

    def one(self, kind: type) -> Any:
        eventually(lambda: self.of(kind), f"the client is told {kind.__name__}")
        return self.of(kind)[-1]


class Silent:
    """A log."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Gateway:
    """A gateway's desk in memory, beside a Starter that runs what is submitted when it is told to."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.on_call = lambda _key, index: Outcome(index=index)
        self.coordinator = MemoryCoordinator(self.cluster.tree)
        self.thread = SubmitterThread()
        log: Any = Silent()
        submitter = Submitter(self.thread, self.coordinator, self.cluster.store)
        self.answer: Callable[[bytes, Caller, float], bytes] = lambda data, _caller, _left_s: data
        context = GatewayContext(
            coordinator=self.coordinator, store=self.cluster.store, log=log, bounds=Bounds(), owner_of={}.get, operators=("olga",)
        )
        self.desk = Desk(context, submitter, self._answer, None)
        self.thread.start()
        eventually(lambda: self.desk.submitter.session_state is SessionState.CONNECTED, "the gateway is connected")
        self.talks: list[ClientTalk] = []

    def _answer(self, data: bytes, caller: Caller, left_s: float) -> bytes:
        return self.answer(data, caller, left_s)

    @property
    def followed(self) -> int:
        return self.desk.bounds.used("ann").get("followed", 0)

    def client(self, user: str = "ann", *, hello: bool = True, guid: str = GUID, role: Role | None = None) -> tuple[ClientTalk, Told]:
        told = Told()
        who = Identity(name=user, role=role or (Role.OPERATOR if user == "olga" else Role.USER), cluster="c")
        talk = self.desk.talker(Caller(identity=who), told)
        self.talks.append(talk)
        if hello:
            hear(talk, m.encode(m.Hello(m.VERSION, guid, user, "h", 1, 1)))
        return talk, told

    def settle(self) -> None:
        """What was said so far has been carried out."""
        for _ in range(3):
            done = threading.Event()
            self.thread.post(done.set)
            assert done.wait(60)

    def close(self) -> None:
        for talk in self.talks:
            talk.over()
        self.settle()
        self.desk.close()
        self.thread.stop(10.0)
        self.coordinator.close()
        self.cluster.stop()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.close()


def draft(user: str = "ann", **more: Any) -> Submission:
    return Submission(id=0, name="n", user=user, queue="default", work=Work.COMMAND, command=Command(argv=("true",)), **more)


def block(first: int, count: int, number: int = 0, **more: Any) -> tuple[BlockKey, BlockData]:
    key = BlockKey(priority=0, seq=NO_SEQ, submission=number, first=first, count=count, attempt=1, cores=1, memory_mib=0)
    return replace(key, **more), BlockData(base=first, payloads=(b"",) * count)


def order(user: str = "ann", *, count: int = 3, complete: bool = False, **more: Any) -> Order:
    blocks = [block(0, count)] if count else []
    return prepared(Order(draft=draft(user, **more), blocks=blocks, tasks=count, complete=complete, is_owned=True))


def hear(talk: ClientTalk, word: bytes) -> None:
    """As a stream does it: what may wait comes last."""
    for call in talk.heard([word]):
        call()


def say(talk: ClientTalk, message: Any) -> None:
    hear(talk, m.encode(message))


def submitted(talk: ClientTalk, told: Told, wanted: Order | None = None) -> Any:
    before = len(told.of(m.Placed))
    say(talk, m.place_of(1, wanted or order(), 30.0))
    eventually(lambda: len(told.of(m.Placed)) > before, "the client is told Placed")
    return told.of(m.Placed)[-1]


def grow(number: int, tail: Tail, first: int, count: int, stamp: str, **more: Any) -> m.Grow:
    new = replace(tail, next=first + count, enqueued=stamp)
    return m.grow_of(5, Growth(tail=new, blocks=[block(first, count, number)], **more))


def test_work_is_submitted_grows_and_is_followed_to_its_end(gateway: Gateway) -> None:
    talk, told = gateway.client()
    assert told.one(m.Welcome).version == m.VERSION
    assert told.one(m.State).state == "CONNECTED"
    placed = submitted(talk, told)
    assert placed.created
    say(talk, m.Keep(5, placed.number, 0, True, False, True))
    tail = m.submitted_of(placed).tail
    say(talk, grow(placed.number, tail, 3, 2, "s-1"))
    assert told.one(m.DidGrow).taken
    while gateway.cluster.run_one():
        pass
    eventually(lambda: sum(len(one.fragments) for one in told.of(m.Fragments)) == 2, "both blocks' ends are told")
    assert [one.first for one in told.of(m.Fragments)] == sorted({one.first for one in told.of(m.Fragments)})


def test_an_order_that_is_said_again_is_the_same_submission(gateway: Gateway) -> None:
    wanted = order()
    first, told = gateway.client()
    number = submitted(first, told, wanted).number
    again, heard = gateway.client()
    say(again, msgspec.structs.replace(m.place_of(9, wanted, 30.0), is_repeat=True))
    placed = heard.one(m.Placed)
    assert (placed.id, placed.number, placed.created) == (9, number, False)
    assert len(gateway.cluster.pending()) == 1


def test_a_growth_that_is_said_again_on_another_stream_is_committed_once(gateway: Gateway) -> None:
    first, told = gateway.client()
    placed = submitted(first, told)
    tail = m.submitted_of(placed).tail
    message = grow(placed.number, tail, 3, 2, "s-1")
    say(first, m.Keep(5, placed.number, 0, True, False, True))
    say(first, message)
    assert told.one(m.DidGrow).taken
    again, heard = gateway.client()
    say(again, m.Keep(5, placed.number, 0, True, False, False))
    say(again, message)
    assert heard.one(m.DidGrow).taken
    assert [key.count for key in gateway.cluster.pending()] == [3, 2]


def test_who_comes_from_another_gateway_hears_the_end_of_what_was_closed_meanwhile(gateway: Gateway) -> None:
    first, told = gateway.client()
    placed = submitted(first, told, order(complete=True))
    first.over()
    while gateway.cluster.run_one():
        pass
    number, coordinator = placed.number, gateway.cluster.coordinator
    stored = read_stored(coordinator, number, timeout_s=60)
    _, multi = leader_ops.close(stored.submission, stored.version, now_us=1, gate=True)
    assert isinstance(coordinator.commit(multi).result(60), Committed)
    again, heard = gateway.client()
    say(again, m.Keep(5, number, 0, True, False, False))
    eventually(lambda: sum(len(one.fragments) for one in heard.of(m.Fragments)) == 1, "its end is told")
    assert not heard.of(m.Dead)


def test_a_client_that_reads_nothing_is_told_nothing_more_until_it_does(gateway: Gateway) -> None:
    talk, told = gateway.client()
    placed = submitted(talk, told, order(count=1))
    say(talk, m.Keep(5, placed.number, 0, True, False, True))
    gateway.settle()
    told.is_full = True
    for at in range(20):
        tail = told.of(m.DidGrow)[-1].tail if told.of(m.DidGrow) else placed.tail
        say(talk, grow(placed.number, decode_record(tail, Tail), at + 1, 1, f"s-{at}"))
        eventually(lambda at=at: len(told.of(m.DidGrow)) == at + 1, "it has grown")
    while gateway.cluster.run_one():
        pass
    gateway.settle()
    time.sleep(0.1)
    gateway.settle()
    some = sum(len(one.fragments) for one in told.of(m.Fragments))
    assert some < 21
    told.is_full = False
    talk.taken()
    eventually(lambda: sum(len(one.fragments) for one in told.of(m.Fragments)) == 21, "and everything afterwards")


def paged(gateway: Gateway, number: int, pages: int) -> None:
    """The leader has put the outcomes of a submission into so many pages, of one fragment each."""
    for at in range(pages):
        data = encode_fragment(Fragment(attempt=1, outcomes=(Outcome(index=at),)))
        gateway.cluster.store.put(keys.page(number, at), join_page([data]))
    done = encode_record(Paged(base=pages))
    gateway.coordinator.commit(Multi(name="T", ops=(Set(paths.done(number), done, 0),), proof=Holds(paths.done(number), done))).result(60)


def test_a_client_that_reads_nothing_is_told_one_page_of_thousands(gateway: Gateway) -> None:
    first, heard = gateway.client()
    numbers = [submitted(first, heard, order(count=20)).number for _ in range(5)]
    for number in numbers:
        paged(gateway, number, 20)
    talk, told = gateway.client()
    told.is_full = True
    for at, number in enumerate(numbers):
        say(talk, m.Keep(at, number, 0, False, False, False))
    eventually(lambda: told.of(m.Fragments), "the first page is told")
    gateway.settle()
    time.sleep(0.2)
    gateway.settle()
    assert len(told.of(m.Fragments)) <= 2  # not 100; two were perhaps read at once
    told.is_full = False
    talk.taken()
    eventually(lambda: sum(len(one.fragments) for one in told.of(m.Fragments)) == 100, "and everything afterwards")


def test_a_submission_is_kept_once_zookeeper_answers_again(gateway: Gateway) -> None:
    """A client comes to a gateway whose own session was lost, or whose link is down."""
    first, told = gateway.client()
    placed = submitted(first, told)
    gateway.coordinator.pause()
    again, heard = gateway.client()
    say(again, m.Keep(5, placed.number, 0, True, False, False))
    say(again, grow(placed.number, m.submitted_of(placed).tail, 3, 2, "s-1"))
    time.sleep(0.3)
    gateway.coordinator.expire()
    gateway.coordinator.resume()
    assert heard.one(m.DidGrow).taken
    assert not heard.of(m.Dead)


def test_whatever_a_reading_meets_a_submission_is_kept_or_its_client_is_told(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    first, told = gateway.client()
    number = submitted(first, told).number
    read, errors = DirectWork.read, [TimeoutError(), ValueError("odd")]

    def failing(work: DirectWork, number: int, *, timeout_s: float) -> Stored:
        if errors:
            raise errors.pop(0)
        return read(work, number, timeout_s=timeout_s)

    monkeypatch.setattr(DirectWork, "read", failing)
    again, heard = gateway.client()
    say(again, m.Keep(5, number, 0, False, False, False))
    fault = heard.one(m.Dead).fault.error()
    assert (type(fault), gateway.followed) == (DaemonFailed, 0)
    errors.append(TimeoutError())  # a process that stood still has not read the answer that is there
    say(again, m.Keep(6, number, 0, False, False, False))
    eventually(lambda: heard.of(m.TailIs), "it is followed")
    assert {one.id for one in heard.of(m.Dead)} == {5}


def test_what_this_stream_has_made_is_kept_without_a_reading_and_nothing_else_is(gateway: Gateway) -> None:
    talk, told = gateway.client()
    mine, others = submitted(talk, told), submitted(*gateway.client("ben", guid=GUID[::-1]), order("ben"))
    gateway.coordinator.pause()
    say(talk, m.Keep(6, others.number, 0, True, False, True))
    say(talk, m.Keep(5, mine.number, 0, True, False, True))
    say(talk, m.Keep(7, mine.number, 0, True, False, True))
    complete = replace(m.submitted_of(mine).tail, next=9)  # of tasks that are in no block
    for kept_id in (5, 6, 7):
        say(talk, m.Grow(kept_id, encode_record(complete), [], [], False, False))
    assert told.one(m.Dead).id == 5, "it is looked after, and what is wrong is seen at once"
    gateway.settle()
    assert len(told.of(m.Dead)) == 1
    gateway.coordinator.resume()
    eventually(lambda: {one.id for one in told.of(m.Dead)} == {5, 6, 7}, "the others are read, and refused")
    refused = {one.id: type(one.fault.error()) for one in told.of(m.Dead)}
    assert refused == {5: InvalidRecord, 6: PermissionDenied, 7: InvalidRecord}


def test_what_is_said_of_a_submission_before_its_record_is_read_is_bounded(gateway: Gateway) -> None:
    first, told = gateway.client()
    placed = submitted(first, told)
    gateway.coordinator.pause()
    again, heard = gateway.client()
    say(again, m.Keep(5, placed.number, 0, True, False, False))
    for at in range(100):
        say(again, grow(placed.number, m.submitted_of(placed).tail, 3, 2, f"s-{at}"))
    assert "wait already" in heard.one(m.Dead).fault.message
    gateway.coordinator.resume()
    gateway.settle()
    assert gateway.followed == 0
    assert not heard.of(m.DidGrow)


def test_an_owner_that_goes_without_a_word_is_taken_to_live_for_a_while(gateway: Gateway) -> None:
    entries = lambda: gateway.cluster.coordinator.children(paths.SUBMITTERS).result(60) or []  # noqa: E731
    for words, is_there in ((m.Bye(), False), (None, True)):
        talk, told = gateway.client()
        submitted(talk, told)
        eventually(entries, "its entry is there")
        if words is not None:
            say(talk, words)
        talk.over()
        gateway.settle()
        if is_there:
            assert entries()
        else:
            eventually(lambda: not entries(), "its entry has gone")


def test_questions_need_no_hello_and_are_answered_under_their_ids(gateway: Gateway) -> None:
    talk, told = gateway.client(hello=False)
    long = b"x" * (m.FRAGMENT_BYTES + 1)
    for at, question in enumerate((b"one", b"", long), 1):
        say(talk, m.Ask(at, question, 60_000))
    eventually(lambda: sum(one.is_last for one in told.of(m.Answer)) == 3, "all are answered")
    pieces = {at: [one.piece for one in told.of(m.Answer) if one.id == at] for at in (1, 2, 3)}
    assert pieces == {1: [b"one"], 2: [b""], 3: [long[:-1], b"x"]}


def test_a_question_that_fails_is_told_so_and_one_for_which_nobody_waits_is_not_carried_out(gateway: Gateway) -> None:
    asked: list[bytes] = []

    def answer(data: bytes, _caller: Caller, _left_s: float) -> bytes:
        asked.append(data)
        raise NotFound("nothing there") if data == b"one" else ZeroDivisionError

    gateway.answer = answer
    talk, told = gateway.client()
    for at, (data, timeout_ms) in enumerate(((b"late", 0), (b"one", 60_000), (b"two", 60_000)), 1):
        say(talk, m.Ask(at, data, timeout_ms))
    eventually(lambda: len(told.of(m.Answer)) == 2, "both are answered")
    told_of = {one.id: one.fault.error() for one in told.of(m.Answer)}
    assert isinstance(told_of[2], NotFound)
    assert "the gateway failed: ZeroDivisionError" in told_of[3].message
    talk.over()
    gateway.settle()
    say(talk, m.Ask(4, b"gone", 60_000))
    assert sorted(asked) == [b"one", b"two"]


def test_whose_answers_wait_to_be_taken_gets_no_more(gateway: Gateway) -> None:
    talk, told = gateway.client()
    told.is_full = True
    say(talk, m.Ask(1, b"one", 60_000))
    assert isinstance(told.one(m.Answer).fault.error(), Throttled)


def test_who_is_done_with_submissions_may_ask_still(gateway: Gateway) -> None:
    talk, told = gateway.client()
    number = submitted(talk, told).number
    say(talk, m.Bye())
    say(talk, m.Keep(1, number, 0, False, False, False))
    say(talk, m.Ask(1, b"one", 60_000))
    assert told.one(m.Answer).piece == b"one"
    gateway.settle()
    assert (gateway.followed, told.of(m.Dead)) == (0, [])


def test_what_was_left_is_not_read(gateway: Gateway) -> None:
    talk, told = gateway.client()
    number = submitted(talk, told).number
    calls = [call for word in (m.Keep(1, number, 0, False, False, False), m.Leave(1)) for call in talk.heard([m.encode(word)])]
    gateway.coordinator.pause()  # whoever reads now waits
    for call in calls:
        call()
    say(talk, m.Ask(1, b"one", 60_000))
    assert told.one(m.Answer).piece == b"one"
    gateway.coordinator.resume()
    gateway.settle()
    assert not told.of(m.TailIs)


def held_answers(gateway: Gateway) -> tuple[threading.Event, list[str]]:
    """Answers are given once the event is set; whose, in their order."""
    held, order = threading.Event(), list[str]()

    def answer(data: bytes, caller: Caller, _left_s: float) -> bytes:
        held.wait(60)
        order.append(caller.user)
        return data

    gateway.answer = answer
    return held, order


def test_who_asks_one_thing_after_another_goes_before_who_asks_many_at_once(gateway: Gateway) -> None:
    held, order_ = held_answers(gateway)
    had = gateway.desk.bounds.had
    mallory, _ = gateway.client("mallory", hello=False)
    ben, _ = gateway.client("ben", hello=False)
    ann, heard = gateway.client("ann", hello=False)
    olga, _ = gateway.client("olga", hello=False)
    for at in range(3):  # all threads are taken
        say((mallory, mallory, ben)[at], m.Ask(at, b"", 60_000))
    for at in range(10, 90):
        say(mallory, m.Ask(at, b"", 60_000))
    for name, seconds in (("mallory", 1.0), ("ann", 10.0), ("olga", 100.0)):
        had.add(name, seconds)
    for talk in (ann, olga):
        say(talk, m.Ask(1, b"", 60_000))
    held.set()
    heard.one(m.Answer)
    assert order_.index("ann") < 8, "he has had a tenth, and eighty of his wait"
    assert order_.index("olga") < 6, "operators go first"


def test_who_asked_as_an_operator_once_waits_his_turn_with_another_certificate(gateway: Gateway) -> None:
    operator, heard = gateway.client("olga", hello=False)
    say(operator, m.Ask(1, b"", 60_000))
    heard.one(m.Answer)
    held, order_ = held_answers(gateway)
    ben, _ = gateway.client("ben", hello=False)
    mallory, _ = gateway.client("mallory", hello=False)
    for talk in (ben, ben, mallory):  # all threads are taken
        say(talk, m.Ask(1, b"", 60_000))
    olga, late = gateway.client("olga", hello=False, role=Role.USER)
    ann, _ = gateway.client("ann", hello=False)
    gateway.desk.bounds.had.add("olga", 100.0)
    for talk in (olga, ann):
        say(talk, m.Ask(2, b"", 60_000))
    held.set()
    late.one(m.Answer)
    assert order_.index("ann") < order_.index("olga")


def test_a_user_with_too_many_questions_is_read_no_further_and_goes_on_when_there_is_room(gateway: Gateway) -> None:
    held, _ = held_answers(gateway)
    talk, told = gateway.client(hello=False)
    said: list[int] = []

    def asks() -> None:
        for at in range(200):
            say(talk, m.Ask(at, b"", 60_000))
            said.append(at)

    asking = threading.Thread(target=asks)
    asking.start()
    eventually(lambda: len(said) >= 128, "128 wait")
    others, heard = gateway.client("ben", hello=False)
    say(others, m.Ask(1, b"", 60_000))
    assert len(said) <= 130
    held.set()
    assert heard.one(m.Answer).is_last
    asking.join(60)
    eventually(lambda: len(told.of(m.Answer)) == 200, "all are answered")


def test_who_asks_too_much_may_still_submit_and_is_told_of_it(gateway: Gateway) -> None:
    held, kept, begun, said = threading.Event(), threading.Event(), list[bytes](), list[int]()

    def answer(data: bytes, _caller: Caller, _left_s: float) -> bytes:
        begun.append(data)
        held.wait(60)
        return data

    gateway.answer = answer
    talk, told = gateway.client()
    placed = submitted(talk, told)
    asks, heard = gateway.client(hello=False)

    def ask() -> None:
        for at in range(2, 200):
            say(asks, m.Ask(at, b"", 60_000))
            said.append(at)

    def keep() -> None:
        say(talk, m.Keep(5, placed.number, 0, True, False, True))
        kept.set()

    for at in range(2):
        say(asks, m.Ask(at, b"", 60_000))
    eventually(lambda: len(begun) == 2, "no more are answered at once")
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        eventually(lambda: len(said) == 128, "128 wait")
        threading.Thread(target=keep, daemon=True).start()
        assert kept.wait(10), "what this stream has made need not be read"
        say(talk, grow(placed.number, m.submitted_of(placed).tail, 3, 2, "s-1"))
        assert told.one(m.DidGrow).taken
        assert not heard.of(m.Answer)
    finally:
        held.set()
        asking.join(60)


def test_the_first_word_is_a_hello_of_this_version(gateway: Gateway) -> None:
    talk, _ = gateway.client(hello=False)
    with pytest.raises(InvalidRecord, match="hello"):
        say(talk, m.Bye())
    with pytest.raises(VersionMismatch, match="upgrade"):
        say(talk, m.Hello(m.VERSION + 1, GUID, "ann", "h", 1, 1))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"user": "ben"}, "cannot submit for ben"),
        ({"phase": Phase.CANCELLED}, "open, held, or waits"),
        ({"phase": Phase.HELD, "reason": "OPERATOR_HOLD"}, "open, held, or waits"),
        ({"by": "olga"}, "open, held, or waits"),
        ({"queue": "nowhere"}, "no queue 'nowhere'"),
    ],
)
def test_a_record_that_is_no_new_one_of_his_is_refused(gateway: Gateway, what: dict[str, Any], why: str) -> None:
    talk, told = gateway.client()
    wanted = order()
    say(talk, m.place_of(1, replace(wanted, draft=replace(wanted.draft, **what)), 30.0))
    assert why in told.one(m.Refused).fault.message
    assert gateway.cluster.pending() == []


@pytest.mark.parametrize(
    ("blocks", "tasks", "why"),
    [
        ([block(0, 2), block(3, 1)], 4, "task 2 is the next"),
        ([block(0, 2)], 5, "its tasks end at 2"),
        ([block(0, 2, cores=2)], 2, "cores"),
        ([block(0, 2, priority=9)], 2, "priority"),
        ([block(0, 2, attempt=2)], 2, "attempt"),
        ([block(0, 2, user="qqqqqq")], 2, "tag of another"),
        ([(block(0, 1)[0], BlockData(done=1, payloads=(b"",)))], 1, "done is said by the leader"),
        ([(block(0, 1)[0], BlockData(row="args/0000000009/0000000000/" + "0" * 64))], 1, "no row of its submission"),
    ],
)
def test_blocks_that_its_submission_does_not_ask_for_are_refused(gateway: Gateway, blocks: Any, tasks: int, why: str) -> None:
    talk, told = gateway.client()
    wanted = order()
    say(talk, m.place_of(1, replace(wanted, blocks=blocks, tasks=tasks), 30.0))
    assert why in told.one(m.Refused).fault.message
    placed = submitted(talk, told, replace(wanted, draft=replace(wanted.draft, nonce="ab" * 16)))
    say(talk, m.Keep(5, placed.number, 0, True, False, True))
    tail = m.submitted_of(placed).tail
    mine = [(replace(key, submission=placed.number, first=key.first + 3), data) for key, data in blocks]
    new = replace(tail, next=3 + tasks, enqueued="s-1")
    say(talk, m.grow_of(5, Growth(tail=new, blocks=mine)))
    told.one(m.Dead)
    assert [key.count for key in gateway.cluster.pending()] == [3]


def test_work_of_others_is_neither_followed_nor_extended_nor_taken_over(gateway: Gateway) -> None:
    anns, told = gateway.client()
    placed = submitted(anns, told)
    tail = m.submitted_of(placed).tail
    bens, heard = gateway.client("ben", guid="f" * 32)
    for at, (owned, wants) in enumerate(((False, False), (True, False), (False, True)), 10):
        say(bens, m.Keep(at, placed.number, 0, owned, wants, False))
        say(bens, m.grow_of(at, Growth(tail=replace(tail, next=5, enqueued="s-1"), blocks=[block(3, 2, placed.number)])))
        eventually(lambda at=at: any(one.id == at for one in heard.of(m.Dead)), "he is told")
    assert all("belongs to ann" in one.fault.message for one in heard.of(m.Dead))
    operators, seen = gateway.client("olga", guid="e" * 32)
    say(operators, m.Keep(1, placed.number, 0, False, False, False))
    say(operators, m.grow_of(1, Growth(tail=replace(tail, next=5, enqueued="s-1"), blocks=[block(3, 2, placed.number)])))
    assert "not looked after by this client" in seen.one(m.Dead).fault.message
    assert [key.count for key in gateway.cluster.pending()] == [3]


def test_outcomes_that_only_a_node_tells_are_refused(gateway: Gateway) -> None:
    talk, told = gateway.client()
    placed = submitted(talk, told)
    tail = m.submitted_of(placed).tail
    say(talk, m.Keep(5, placed.number, 0, True, False, True))
    ended = Fragment(attempt=0, outcomes=(Outcome(index=3, value=b"forged"),))
    say(talk, m.grow_of(5, Growth(tail=replace(tail, next=4, enqueued="s-1"), ended=[ended])))
    assert "end unsent" in told.one(m.Dead).fault.message


def test_so_many_submissions_are_followed_and_all_are_given_back(gateway: Gateway) -> None:
    gateway.desk.bounds.limits = UserLimits(followed=3)
    talk, told = gateway.client()
    number = submitted(talk, told).number
    for at in range(5):
        say(talk, m.Keep(at, number, 0, False, False, False))
    eventually(lambda: len(told.of(m.Dead)) == 2, "it is told of both that were too many")
    assert all("followed = 3" in one.fault.message for one in told.of(m.Dead))
    say(talk, m.Leave(0))
    say(talk, m.Leave(0))
    gateway.settle()
    assert gateway.followed == 2
    say(talk, m.Keep(9, number + 77, 0, False, False, False))  # there is none
    eventually(lambda: len(told.of(m.Dead)) == 3, "it is told")
    assert gateway.followed == 2
    talk.over()
    gateway.settle()
    assert gateway.followed == 0


_IDS = st.integers(0, 8) | st.integers(0, (1 << 62) - 1)
_BYTES = st.binary(max_size=40) | st.sampled_from(
    [
        encode_record(Tail(next=9, complete=True, enqueued="x")),
        encode_record(replace(draft(), id=1)),
        encode_record(replace(draft("ben"), id=1, owner=GUID)),
        encode_block(BlockData()),
        encode_block(BlockData(done=1 << 255, incarnation=9)),
    ]
)
_PREFIXES = [paths.block_prefix(key) for key, _ in (block(0, 2, 1), block(250, 6, 2))]
_NAMES = st.text(max_size=20) | st.sampled_from([*_PREFIXES, "../../meta"])
_BLOCKS = st.lists(st.tuples(_NAMES, _BYTES), max_size=3)
_WORDS = st.one_of(
    st.builds(m.Hello, st.integers(-1, 3), st.sampled_from([GUID, "f" * 32]), _NAMES, _NAMES, _IDS, _IDS),
    st.builds(
        m.Place, _IDS, _BYTES, _BLOCKS, _IDS, st.booleans(), st.none() | st.booleans(), st.booleans(), st.integers(0, 500), st.booleans()
    ),
    st.builds(m.Keep, _IDS, _IDS, _IDS, st.booleans(), st.booleans(), st.booleans()),
    st.builds(m.Grow, _IDS, _BYTES, _BLOCKS, st.lists(_BYTES, max_size=3), st.booleans(), st.booleans(), st.booleans()),
    st.builds(m.Claiming, _IDS, st.sampled_from(list(m.ClaimStage))),
    st.builds(m.AskTail, _IDS, _IDS),
    st.builds(m.Leave, _IDS),
    st.builds(m.Bye),
    st.builds(m.Ask, _IDS, _BYTES, st.integers(0, 500)),
)


def test_every_word_of_a_client_is_in_the_fuzz() -> None:
    assert set(m.FromClient.__args__) == {m.Hello, m.Place, m.Keep, m.Grow, m.Claiming, m.AskTail, m.Leave, m.Bye, m.Ask}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(_WORDS | st.binary(max_size=60), max_size=12), numbers=st.lists(st.integers(0, 7), max_size=4))
def test_whatever_a_client_says_work_of_others_is_as_it_was(words: list[Any], numbers: list[int]) -> None:
    gateway = _world()
    before = _state(gateway)
    talk, _ = gateway.client("mallory", guid="d" * 32)
    for word in words:
        data = word if isinstance(word, bytes) else m.encode(word)
        for at in numbers:
            data = data[:at] + bytes([(data[at] + 1) % 256]) + data[at + 1 :] if at < len(data) else data
        with suppress(RmgrError):
            hear(talk, data)
    gateway.settle()
    talk.over()
    gateway.settle()
    assert _state(gateway) == before
    anns, told = gateway.client()
    say(anns, m.Keep(1, 1, 0, False, False, False))
    eventually(lambda: told.of(m.Fragments) or told.of(m.Dead), "who is honest is served")
    assert not told.of(m.Dead)


_made: list[Gateway] = []


def _world() -> Gateway:
    """One for all examples: ann's submission 1 has one end, and a block that waits."""
    if not _made:
        gateway = Gateway()
        talk, told = gateway.client()
        assert submitted(talk, told, order(count=1)).number == 1
        assert gateway.cluster.run_one()
        _made.append(gateway)
    return _made[0]


def _state(gateway: Gateway) -> Any:
    coordinator = gateway.cluster.coordinator
    names = [paths.sub(1), paths.tail(1), paths.done(1), paths.CONFIG, paths.node("n1")]
    found = [(item.data, item.version) if item is not None else None for item in (coordinator.get(path).result(60) for path in names)]
    return found, sorted(coordinator.children(paths.done(1)).result(60) or []), coordinator.children(paths.running_node("n1")).result(60)


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()
