"""The relay of calls between real gRPC ends: outcomes of a client's attempts, with a server played by the test."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest

from rmgr.adapters.access.auth import rebuild
from rmgr.adapters.calls import asking, relay
from rmgr.adapters.calls.asking import CallsClient
from rmgr.adapters.calls.links import VERSION, ServerLink
from rmgr.adapters.calls.relay import Relay, Wanted
from rmgr.adapters.rpc.server import RpcServer
from rmgr.client.calls import Caller
from rmgr.config import load
from rmgr.errors import CallFailed, LimitReached, NotFound, RmgrError, StateConflict, Unavailable, UsageError
from rmgr.model.arrays import PIECE_BYTES
from rmgr.model.interface import encode_interface, interface_of
from rmgr.model.queue import UserLimits
from rmgr.v1 import calls_pb2 as pb
from tests.harness.played_server import PlayedServer, echoed
from tests.harness.waiting import eventually, stand_still


class Chosen:
    """Picks the first server by name."""

    def __init__(self) -> None:
        self.ends: list[Any] = []
        self.offered: list[bytes] = []  #: interfaces, for clients that look them up

    def understood(self, caller: Any, ask: Any) -> Wanted | None:
        wanted = Wanted(f"{ask.function}@1", 1, ask.bytes)
        return wanted if self.offering(wanted) else None

    def offering(self, wanted: Wanted) -> Sequence[ServerLink]:
        return [link for link in self.links() if wanted.function.partition("@")[0].encode() in link.functions]

    def pick(self, wanted: Wanted, user: str, links: Sequence[ServerLink]) -> tuple[Any, Sequence[Any]]:
        return pb.PickReply(server=links[0].name, life=links[0].life), (pb.TraceStep(step=1, name="monitor"),)

    def forwarding(self, count: int) -> None:
        pass

    def ended(self, wanted: Wanted, link: ServerLink, outcome: Any, took_s: float, out_s: float, pick: Any) -> None:
        self.ends.append((link.name, outcome.kind))

    def functions(self, request: Any) -> Any:
        return pb.FunctionsReply(functions=[pb.FunctionView(interface=interface, servers=["s1"]) for interface in self.offered])

    def servers(self, request: Any) -> Any:
        return pb.ServersReply()

    def explain(self, caller: Any, request: Any) -> Any:
        return pb.PickReply()

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        pass


class World:
    def __init__(self, threads: int = 64) -> None:
        self.chosen = Chosen()
        self.relay = Relay(self.chosen)
        self.chosen.links = self.relay.links.all
        self.server = RpcServer("127.0.0.1:0", threads=threads)
        self.server.add_generic(self.relay.handler)
        self.server.start()
        self.guid = os.urandom(16)
        self.number = 0
        self._open: list[Any] = []

    def played(self, name: str, **options: Any) -> PlayedServer:
        made = PlayedServer(self.server.endpoint, name, **options)
        self._open.append(made)
        eventually(lambda: any(link.life == made.life for link in self.relay.links.all()), f"{name} known")
        return made

    def client(self, user: str = "alice") -> CallsClient:
        """It is connected: on a busy machine the first attempt may take more than its second."""
        made = CallsClient(self.server.endpoint, user=user)
        self._open.append(made)

        def answers() -> bool:
            with contextlib.suppress(Unavailable):
                made.functions()
                return True
            return False

        eventually(answers)
        return made

    def caller(self) -> Caller:
        """Of the function `echo`, as programs call it."""
        interface = interface_of({"name": "echo", "arguments": ["in x bytes", "out y bytes"]}, "the test")
        self.chosen.offered = [encode_interface(interface)]
        made = Caller(load({"cluster": {"gateway": self.server.endpoint}}, env={"HOME": "/"}))
        self._open.append(made)
        return made

    def ask(self, size: int, *, number: int = 0, **fields: Any) -> Any:
        self.number += not number
        fields = {"function": "echo", "left_ms": 60_000, "lowest": 1, "attempt": 1, **fields}
        return pb.CallAsk(version=VERSION, guid=self.guid, number=number or self.number, bytes=size, sizes="{}", **fields)

    def called(self, data: bytes, *, piece: int = PIECE_BYTES, **fields: Any) -> tuple[list[str], bytes]:
        """One try to its end: what came, and the answer."""
        attempt = self.client().attempt(self.ask(len(data), **fields), lambda: pieces(data, piece))
        kinds: list[str] = []
        answer, size = b"", 0
        for message in attempt.messages():
            kind = message.WhichOneof("what")
            kinds.append(kind)
            size = message.outcome.bytes if kind == "outcome" else size
            answer += message.data
            if "outcome" in kinds and len(answer) == size:
                attempt.acknowledge()
        return kinds, answer

    def close(self) -> None:
        for one in self._open:
            one.close()
        self.server.stop()


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize("room", [0, 1 << 30])
@pytest.mark.parametrize("size", [8, PIECE_BYTES, 5 * PIECE_BYTES + 17])
def test_arguments_reach_the_server_and_its_answer_the_client(world: World, size: int, room: int) -> None:
    server = world.played("s1", said_bytes=room)
    data = os.urandom(size)
    kinds, answer = world.called(data)
    assert kinds[:2] == ["named", "outcome"]
    assert answer == data == server.taken[0]
    eventually(lambda: server.gave == [True], "the server hears that its answer was taken")
    closed = eventually(lambda: [message.closed for message in server.heard if message.WhichOneof("what") == "closed"], "acknowledged")
    assert (closed[0].user, closed[0].guid, list(closed[0].numbers)) == ("alice", world.guid, [1])
    assert world.chosen.ends == [("s1", pb.CallOutcome.OK)]


def test_a_full_server_is_passed_over_and_no_attempt_is_offered_to_it_twice(world: World) -> None:
    first, second = world.played("s1"), world.played("s2")
    first.verdicts = [pb.Verdict.REFUSED]
    kinds, _ = world.called(b"x")
    assert (kinds[-1], len(first.offers), len(second.taken)) == ("data", 1, 1)
    first.verdicts, second.verdicts = [pb.Verdict.REFUSED], [pb.Verdict.REFUSED]
    [message] = world.client().attempt(world.ask(1), lambda: [b"y"]).messages()
    assert message.none.kind == pb.NoneNow.FULL
    assert world.called(b"y", number=2, attempt=2)[1] == b"y"
    assert [offer.attempt for offer in first.offers] == [1, 1, 2]


def test_a_gateway_that_stood_still_takes_the_verdict_that_came_meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "VERDICT_S", 4.0)  # a look counts 2 s at most
    server = world.played("s1")
    server.verdicts = [-1]
    messages = world.client().attempt(world.ask(1), lambda: [b"x"]).messages()
    [offer] = eventually(lambda: server.offers, "offered")
    stand_still(5)
    server.say(verdict=pb.Verdict(key=offer.key, kind=pb.Verdict.ACCEPTED))
    assert next(messages).WhichOneof("what") == "named"


def test_a_life_that_refuses_a_call_that_is_bound_to_it_is_told_to_the_client(world: World) -> None:
    server, other = world.played("s1"), world.played("s2")
    server.verdicts = [pb.Verdict.BARRED]
    [message] = world.client().attempt(world.ask(1, bound_server="s1", bound_life=server.life), lambda: [b"x"]).messages()
    assert (message.verdict.kind, message.verdict.life) == (pb.Verdict.BARRED, server.life)
    assert world.called(b"x", number=1, attempt=2, without=[server.life])[1] == b"x"
    assert (len(server.taken), len(other.taken)) == (0, 1)


def test_a_call_that_every_server_bars_is_refused_with_their_reason_and_waits_where_one_may_take_it(world: World) -> None:
    first, second = world.played("s1"), world.played("s2")
    first.verdicts = second.verdicts = [pb.Verdict.BARRED, pb.Verdict.BARRED]
    with pytest.raises(UsageError, match="no server takes this call of echo@1: as the test wants it"):
        list(world.client().attempt(world.ask(1), lambda: [b"x"]).messages())
    assert (len(first.taken), len(second.taken)) == (0, 0)
    first.verdicts, second.verdicts = [pb.Verdict.BARRED], [pb.Verdict.REFUSED]
    [message] = world.client().attempt(world.ask(1), lambda: [b"x"]).messages()
    assert message.none.kind == pb.NoneNow.FULL


@pytest.mark.parametrize("says", [False, True])
@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"12345", "more bytes than the 3 of"),
        (bytes(PIECE_BYTES + 1), "more bytes than the 3 of"),
        (b"1", "fewer bytes than the 3 of its answer: 1"),
    ],
)
def test_an_answer_of_other_bytes_than_were_announced_is_a_failure_of_its_server_at_once(
    world: World, sent: bytes, words: str, says: bool
) -> None:
    server = world.played("s1", work=lambda *_: (pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=3), sent), in_one_piece=True, says=says)
    with pytest.raises(CallFailed, match=f"server s1 sends {words}"):
        world.caller().call("echo", b"x", timeout=20)
    eventually(lambda: [message for message in server.heard if message.WhichOneof("what") == "closed"], "it may forget the answer")
    assert len(server.offers) == 1
    assert world.chosen.ends == [("s1", pb.CallOutcome.FAILED)]


def test_a_small_answer_may_come_in_the_stream_of_its_server_and_counts_once(world: World) -> None:
    def twice(offer: Any, arguments: bytes) -> tuple[Any, bytes]:
        server.say(answer=pb.GivePart(key=offer.key, outcome=pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=1), data=b"1"))
        return pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=1), b"2"

    server = world.played("s1", work=twice, says=True)
    assert [world.called(b"x") for _ in range(2)] == [(["named", "outcome", "data"], b"1")] * 2
    assert all(offer.said_bytes for offer in server.offers)
    eventually(lambda: len([m for m in server.heard if m.WhichOneof("what") == "closed"]) == 2, "acknowledged")
    assert world.chosen.ends == [("s1", pb.CallOutcome.OK)] * 2


def test_an_answer_that_breaks_off_is_asked_for_again(world: World) -> None:
    def breaks_off(offer: Any, arguments: bytes) -> tuple[Any, bytes]:
        outcome = pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=len(arguments))
        if len(server.offers) > 1:
            return outcome, arguments
        under_way, over = threading.Event(), threading.Event()

        def half() -> Iterator[Any]:
            yield pb.GivePart(key=offer.key, outcome=outcome, data=arguments[:3])
            under_way.set()
            over.wait(60)

        given = server.stub.Give.future(half())
        assert under_way.wait(60)
        time.sleep(0.1)  # its part has arrived
        given.cancel()
        over.set()
        raise ValueError("broken off")

    server = world.played("s1", work=breaks_off)
    assert world.caller().call("echo", b"12345", timeout=20) == b"12345"
    assert len(server.offers) == 2


def test_a_call_that_is_bound_goes_to_its_life_or_hears_what_became_of_it(world: World) -> None:
    one, two = world.played("s1"), world.played("s2")
    world.called(b"x", bound_server="s2", bound_life=two.life)
    assert (len(one.taken), len(two.taken)) == (0, 1)
    two.close()
    eventually(lambda: len(world.relay.links) == 1, "its stream is gone")
    [message] = world.client().attempt(world.ask(1, bound_server="s2", bound_life=two.life), lambda: [b"x"]).messages()
    assert (message.over.kind, message.over.life) == (pb.Over.ELSEWHERE, two.life)
    successor = world.played("s2")
    [message] = world.client().attempt(world.ask(1, bound_server="s2", bound_life=two.life), lambda: [b"x"]).messages()
    assert message.over.kind == pb.Over.ENDED
    [message] = world.client().attempt(world.ask(1, bound_server="s2", bound_life=77), lambda: [b"x"]).messages()
    assert message.over.kind == pb.Over.ELSEWHERE
    assert successor.offers == []
    for server in (one, successor):
        server.close()
    eventually(lambda: len(world.relay.links) == 0, "nobody offers it")
    [message] = world.client().attempt(world.ask(1, bound_server="s2", bound_life=two.life), lambda: [b"x"]).messages()
    assert message.over.kind == pb.Over.ENDED


def test_a_server_that_dies_with_a_call_is_told_at_once_and_one_whose_client_goes_hears_of_it(world: World) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(offer: Any, arguments: bytes) -> tuple[Any, bytes]:
        running.set()
        go_on.wait(60)
        return pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=1), b"1"

    server = world.played("s1", work=slow)
    attempt = world.client().attempt(world.ask(1), lambda: [b"x"])
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(message.WhichOneof("what") for message in attempt.messages()))
    reader.start()
    assert running.wait(60)
    other = world.client().attempt(world.ask(1), lambda: [b"x"])
    heard = other.messages()
    assert next(heard).WhichOneof("what") == "named"
    eventually(lambda: len(server.taken) == 2, "it is there")
    other.close()
    orphan = eventually(lambda: [message.orphan for message in server.heard if message.WhichOneof("what") == "orphan"], "told of it")
    assert orphan[0].number == 2
    server.close()
    reader.join(60)
    assert (seen[0], seen[-1]) == ("named", "over")
    go_on.set()


def test_who_waits_for_a_function_that_nobody_offers_gets_the_first_server_that_does(world: World) -> None:
    came: list[PlayedServer] = []
    late = threading.Timer(0.5, lambda: came.append(world.played("s9", functions=(b"other",))))
    late.start()
    assert world.called(b"x", function="other")[1] == b"x"
    late.join()
    assert came[0].taken == [b"x"]


def test_cancelling_and_acknowledging_reach_every_server(world: World) -> None:
    one, two = world.played("s1"), world.played("s2")
    assert world.client().end(world.guid, 3, acknowledged=[1], cancelled=[2]) == 2
    for server in (one, two):
        cancelled = eventually(lambda: [m.cancel for m in server.heard if m.WhichOneof("what") == "cancel"], "cancelled")  # noqa: B023
        assert (cancelled[0].user, cancelled[0].number) == ("alice", 2)


def test_a_message_that_ends_calls_tells_each_once_and_may_name_no_million(world: World) -> None:
    server = world.played("s1")
    with pytest.raises(UsageError, match="1,001 calls are ended at once: 1,000 are the most"):
        world.client().end(world.guid, 1, cancelled=range(1001))
    assert world.client().end(world.guid, 1, cancelled=[7] * 5000) == 1
    assert world.client().end(world.guid, 1, cancelled=[8]) == 1

    def cancelled() -> list[int]:
        return [message.cancel.number for message in server.heard if message.WhichOneof("what") == "cancel"]

    eventually(lambda: 8 in cancelled(), "the last is told")
    assert cancelled() == [7, 8]


def test_who_sends_what_cannot_be_read_is_told_so_and_fills_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    server = world.played("s1")
    hello = pb.FromServer(hello=pb.ServerHello(version=VERSION, name="s2", life=7, slots=1, mops=1.0)).SerializeToString()
    ask = pb.FromCaller(ask=world.ask(PIECE_BYTES)).SerializeToString()
    clear, rubbish = grpc.StatusCode.INVALID_ARGUMENT, b"\xff\xff\xff"
    with grpc.insecure_channel(world.server.endpoint) as channel:
        for method, sent, codes in (
            ("Serve", [rubbish], {clear}),
            ("Serve", [hello, rubbish], {clear, grpc.StatusCode.CANCELLED}),  # a server's stream is cut when it cannot be read on
            ("Call", [rubbish], {clear}),
            ("Call", [ask, rubbish], {clear}),
            ("Give", [rubbish], {clear}),
        ):
            with pytest.raises(grpc.RpcError) as failed:
                list(channel.stream_stream(f"/rmgr.v1.Calls/{method}")(iter(sent), timeout=60))
            assert failed.value.code() in codes, (method, sent)  # type: ignore[attr-defined]
    eventually(lambda: [link.name for link in world.relay.links.all()] == ["s1"], "the server that cannot be read is gone")
    assert world.called(b"x")[1] == b"x"
    assert server.taken == [b"x"]
    assert not [record for record in caplog.records if record.name.startswith("grpc")]


def test_a_link_is_measured_by_probes_and_by_what_passes(world: World) -> None:
    server = world.played("s1", work=lambda _offer, data: (pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=len(data)), data))
    link = world.relay.links.all()[0]
    eventually(lambda: link.link.bytes_per_s > 0, "the probe of its hello")
    assert link.link.round_trip_s > 0
    before = link.link

    def measured() -> bool:
        """A transfer during which the client alone was waited for says nothing of the link."""
        world.called(os.urandom(2 * PIECE_BYTES))
        return link.link.at_s > before.at_s

    eventually(measured, "measured by a call")
    assert server.taken


def refusal(call: Callable[[], object]) -> RmgrError:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    return rebuild(failed.value, "gateway")


def test_keys_that_are_nobodys_or_were_used_are_errors_and_take_nothing(world: World) -> None:
    keys: list[bytes] = []
    again: list[RmgrError] = []

    def work(offer: Any, arguments: bytes) -> tuple[Any, bytes]:
        keys.append(offer.key)
        again.append(refusal(lambda: server.take(offer.key)))
        return echoed(offer, arguments)

    server = world.played("s1", work=work)
    assert isinstance(refusal(lambda: server.take(b"k" * 16)), NotFound)
    assert not server.give(b"k" * 16, pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=1), b"1")
    assert world.called(b"x")[1] == b"x"
    assert isinstance(again[0], StateConflict), "once: the pieces are gone"
    assert isinstance(refusal(lambda: server.take(keys[0])), NotFound), "its call has ended"
    assert not server.give(keys[0], pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=1), b"1")


def test_an_answer_that_overtakes_the_word_that_its_server_has_the_call_is_not_lost(world: World) -> None:
    server = world.played("s1")
    server.verdicts = [-1]  # none
    given = threading.Thread(
        target=lambda: server.give(
            eventually(lambda: server.offers, "offered")[0].key, pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=1), b"1"
        )
    )
    given.start()
    kinds, answer = world.called(b"x" * 10 * PIECE_BYTES, bound_server="s1", bound_life=server.life)
    given.join(60)
    assert (kinds, answer) == (["named", "outcome", "data"], b"1")
    eventually(lambda: any(m.WhichOneof("what") == "closed" for m in server.heard), "acknowledged, without arguments that nobody wants")


def test_arguments_that_break_off_before_the_word_that_a_server_has_the_call_end_it(world: World) -> None:
    server = world.played("s1")
    server.verdicts = [-1]  # none yet
    sent = [pb.FromCaller(ask=world.ask(PIECE_BYTES)).SerializeToString(), b"\xff\xff\xff"]
    with grpc.insecure_channel(world.server.endpoint) as channel:
        attempt = channel.stream_stream("/rmgr.v1.Calls/Call")(iter(sent), timeout=60)
        key = eventually(lambda: server.offers, "offered")[0].key
        assert isinstance(refusal(lambda: server.take(key)), UsageError)
        server.say(verdict=pb.Verdict(key=key, kind=pb.Verdict.ACCEPTED))
        with pytest.raises(grpc.RpcError) as failed:
            list(attempt)
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("announced", "sent"),
    [(10, [b"x" * 11]), (10, [b"x" * 9]), (10, [b"x" * 5, b"", b"x" * 5]), (3 << 20, [b"x" * (3 << 20)])],
    ids=["too many", "too few", "an empty piece", "a large piece"],
)
def test_arguments_that_are_not_as_announced_reach_no_function(world: World, announced: int, sent: list[bytes]) -> None:
    server = world.played("s1")
    stub = world.client()._stub
    named = threading.Event()

    def says() -> Iterator[Any]:
        yield pb.FromCaller(ask=world.ask(announced))
        named.wait(60)
        yield from (pb.FromCaller(data=data) for data in sent)

    kinds: list[str] = []
    for message in stub.Call(says()):
        kinds.append(message.WhichOneof("what"))
        named.set()
    assert (kinds[0], kinds[-1]) == ("named", "over")
    eventually(lambda: len(world.relay) == 0, "its place is free")
    assert server.taken == []
    assert world.called(b"x")[1] == b"x"


def test_arguments_that_come_byte_by_byte_are_as_good(world: World) -> None:
    server = world.played("s1")
    _, answer = world.called(b"x" * 300, piece=1)
    assert answer == b"x" * 300
    assert server.taken == [b"x" * 300]


def test_a_piece_of_an_answer_may_take_longer_than_the_silence_that_ends_a_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SILENT_S", 3.0)

    def slow(offer: Any, arguments: bytes) -> tuple[Any, bytes]:
        def parts() -> Iterator[Any]:
            yield pb.GivePart(key=offer.key, outcome=pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=len(arguments)))
            threading.Event().wait(4.0)
            yield pb.GivePart(data=arguments)

        server.stub.Give(parts())
        return pb.CallOutcome(), b""

    server = world.played("s1", work=slow)
    assert world.called(b"x")[1] == b"x"


def test_a_user_who_opens_300_calls_leaves_room_to_others() -> None:
    world, go_on = World(threads=400), threading.Event()

    def slow(offer: Any, arguments: bytes) -> tuple[Any, bytes]:
        go_on.wait(60)
        return echoed(offer, arguments)

    try:
        world.played("s1", work=slow)
        client = world.client()
        opened = [client.attempt(world.ask(1), lambda: [b"x"]).messages() for _ in range(300)]
        refused = 0
        for messages in opened:
            try:
                assert next(messages).WhichOneof("what") == "named"
            except LimitReached:
                refused += 1
        assert refused == 300 - UserLimits().remote_calls
        other = world.client("bob")
        assert next(other.attempt(world.ask(1), lambda: [b"x"]).messages()).WhichOneof("what") == "named"
    finally:
        go_on.set()
        world.close()


def test_a_second_server_of_a_name_is_refused_while_the_first_is_heard(world: World) -> None:
    world.played("s1")
    second = PlayedServer(world.server.endpoint, "s1")
    welcome = next(message.welcome for message in second.heard if message.WhichOneof("what") == "welcome")
    assert "another server s1 is here" in welcome.refused
    second.close()
