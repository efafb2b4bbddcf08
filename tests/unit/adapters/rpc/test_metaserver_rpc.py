"""What gateways and leader say to each other about servers for calls: every noun survives the wire, errors arrive as themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rmgr.adapters.rpc.convert import from_message, to_message
from rmgr.adapters.rpc.metaserver import CARRIED, MetaserverClient, handler_of
from rmgr.adapters.rpc.server import RpcServer
from rmgr.errors import Unavailable
from rmgr.model.cluster.servers import (
    CallReport,
    Candidate,
    GatewayReport,
    LifeHeard,
    LinkView,
    Pick,
    PickRequest,
    ReportAnswer,
    ServerLoad,
    ServerReport,
    ServersView,
    ServerView,
    TermView,
)

LIFE = 2**64 - 1
ASKED = PickRequest(
    gateway="g:1",
    site="here",
    function="f@1",
    operations=2**63,
    bytes=8,
    user="u",
    servers=(Candidate(name="s1", life=LIFE, bytes_per_s=1.5),),
)
REPORT = GatewayReport(
    gateway="g:1",
    site="here",
    refresh_us=5,
    servers=(
        ServerReport(
            name="s1",
            life=LIFE,
            functions=(b"{}",),
            load=ServerLoad(running=1, other=0.5),
            answered=(CallReport(function="f@1", operations=7),),
        ),
        ServerReport(name="s2", life=1, state="away"),
    ),
)
ANSWER = ReportAnswer(epoch=3, policy="rr", pipeline="{}", lives=(LifeHeard(name="s1", life=LIFE, heard_ago_us=9, over=True),))
LINK = LinkView(site="here", gateway="g:1", bytes_per_s=1.0, round_trip_s=0.5, age_s=2.0)
SHOWN = ServersView(servers=(ServerView(name="s1", state="open", life=LIFE, links=(LINK,), functions=("f@1",)),), policy="rr", epoch=3)
PICK = Pick(server="s1", life=LIFE, why="it", unknown=("s2",), terms=(TermView(server="s1", load=2.5, note="n"),), degraded=True, took_us=4)


class Answers:
    """Tells what it was asked."""

    def report(self, report: GatewayReport) -> ReportAnswer:
        assert report == REPORT
        return ANSWER

    def pick(self, asked: PickRequest) -> Pick:
        assert asked == ASKED
        return PICK

    def servers(self, name: str) -> ServersView:
        if name:
            raise Unavailable("this WatchDog does not lead", hint="ask another")
        return SHOWN


@pytest.fixture
def client() -> Iterator[MetaserverClient]:
    server = RpcServer("127.0.0.1:0")
    server.add_generic(handler_of(Answers()))
    server.start()
    made = MetaserverClient(server.endpoint, credentials=None, timeout_s=60.0)
    yield made
    made.close()
    server.stop()


def test_questions_and_answers_arrive_whole(client: MetaserverClient) -> None:
    assert (client.report(REPORT), client.pick(ASKED), client.servers()) == (ANSWER, PICK, SHOWN)
    with pytest.raises(Unavailable, match="does not lead") as told:
        client.servers("s1")
    assert told.value.hint == "ask another"


@pytest.mark.parametrize("kind", CARRIED)
def test_every_field_has_its_field_in_the_message(kind: type[Any]) -> None:
    fields = {field.name for field in CARRIED[kind].DESCRIPTOR.fields} - {"ask"}  # between gateway and server alone
    assert {field.name for field in msgspec.structs.fields(kind)} == fields


@pytest.mark.parametrize("noun", [REPORT, ANSWER, ASKED, PICK, SHOWN], ids=lambda noun: type(noun).__name__)
def test_a_noun_survives_the_wire(noun: Any) -> None:
    kind = type(noun)
    assert noun == from_message(kind, CARRIED[kind].FromString(to_message(noun).SerializeToString()))
