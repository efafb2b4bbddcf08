"""Listings of a cluster: gangs as a tree, empty lists that name the search, the health check of containers."""

from __future__ import annotations

import getpass
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.cli import health
from rmgr.cli import session as cli_session
from rmgr.cli.display.render import Layout
from rmgr.cli.listing import cluster, work
from rmgr.cli.listing.cluster import draw_tree, tree_shape
from rmgr.cli.main import run
from rmgr.cli.session import tables
from rmgr.cli.words.selectors import Filter
from rmgr.client.queries import GangView
from rmgr.errors import CoordinationUnavailable, NotFound, StoreUnavailable, WrongCluster
from rmgr.model.block import job_id
from rmgr.model.node import GangClock, GangRecord
from rmgr.model.states import State
from rmgr.model.units import spanned
from rmgr.model.views import JobView
from rmgr.procedures.history import history_rows

WIDE, PAIR, LEFT, RIGHT = (job_id(number, 0) for number in (42, 43, 44, 45))


def view(slot: int | None = 12) -> GangView:
    """One job on all four cores, one on the first two, one each on the third and the fourth."""
    record = GangRecord(
        policy="dqt", slot_us=500_000, origin_us=0, slot=10, width=2, leaves=(("n1", 2), ("n2", 1), ("n3", 1)),
        clock=GangClock(node="n2", incarnation=3, offset_us=17),
        queues=((0, ((WIDE, 1),)), (1, ((PAIR, 1),)), (5, ((LEFT, 1),)), (6, ((RIGHT, 2),))),
        attempts=((WIDE, 1, 4), (PAIR, 1, 0), (LEFT, 2, 0), (RIGHT, 1, 0)),
    )
    return GangView(partition="default", generation=57, record=record, slot=slot)


def drawn(found: GangView, slots: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    draw_tree(found, Layout(), slots)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_tree_and_its_slots_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert drawn(view(), 4, capsys) == [
        "default: dqt, quantum 500ms, generation 57, slot 12, rounds of 3, reference n2",
        "NODE  LEAVES  QUEUE  TQLB  STATE     RUNS",
        "0     n1-n3   42        1  Rounded",
        "1     n1      43        2  Rounding  43",
        "5     n2      44        2  Rounding  44",
        "6     n3      45        3  Rounding  45",
        "",
        "SLOT  n1/0  n1/1  n2/0  n3/0",
        "12    43    43    44    45",
        "13    42    42    42    42",
        "14    43    43    44    45",
        "15    43    43    44    45",
    ]


def test_without_a_clock_the_record_is_drawn_and_nobody_is_said_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    lines = drawn(view(slot=None), 0, capsys)
    assert "no clock can be read" in lines[0]
    assert all(line.split()[-1] in {"Ready", "Rounding", "Rounded", "Idle"} for line in lines[2:])


def test_a_reader_of_its_json_can_compute_every_later_slot() -> None:
    told = tree_shape(view(), 2)
    assert told["slot"] == 12
    assert told["queues"][3] == {"node": 6, "jobs": [{"id": "45", "weight": 2}]}
    assert told["attempts"][0] == {"id": "42", "attempt": 1, "served_slots": 4}
    assert told["matrix"] == [{"slot": 12, "cores": ["43", "43", "44", "45"]}, {"slot": 13, "cores": ["42"] * 4}]
    assert {"policy", "width", "leaves", "front", "newcomers", "next_round", "origin_us", "first_slot", "clock"} <= told.keys()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3"], "n1-n3"),
        (["n2", "n1", "n3"], "n1-n3"),
        (["n1", "n3"], "n1,n3"),
        (["n9", "n10"], "n9-n10"),
        (["a1", "b2"], "a1,b2"),
        (["far", "near"], "far,near"),
    ],
)
def test_names_that_are_numbered_are_a_span(names: list[str], told: str) -> None:
    assert spanned(names) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--matrix", "8"], "rmgr queues --tree --matrix 8"),
        (["--tree", "batch"], "takes no names of queues"),
        (["--tree", "--matrix", "0"], "1<=x<=1000"),
        (["--tree", "--matrix", "1001"], "1<=x<=1000"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_what_to_type(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert run(["queues", *words]) == 2
    assert told in capsys.readouterr().err


def test_where_nothing_shares_nodes_in_time_there_is_no_tree(capsys: pytest.CaptureFixture[str]) -> None:
    session: Any = Session()
    with pytest.raises(NotFound, match="no partition shares its nodes in time") as caught:
        cluster.draw_trees(session, Layout(), 8)
    assert "rmgr policy set dqt" in caught.value.hint
    session.json = True
    cluster.draw_trees(session, Layout(), 8)
    assert '"trees": []' in capsys.readouterr().out


class Session:
    """Of a cluster without gangs."""

    json = False

    def query(self) -> Session:
        return self

    def gangs(self) -> list[GangView]:
        return []


ENDED = JobView(
    id=1, user="ann", name="j1", queue="default", state=State.COMPLETED, submitted_us=1_000_000, started_us=2_000_000, ended_us=3_000_000,
    tasks=1, counts={"COMPLETED": 1},
)


def test_a_filter_that_no_job_passes_is_named() -> None:
    of_ann = Filter(name="x*", user="ann")
    assert work.nothing_listed(Filter(), ended=False, everyone=False) == (
        "nothing waits or runs; -a shows what has ended; -A shows everyone's"
    )
    assert work.nothing_listed(of_ann, ended=False, everyone=False) == "nothing waits or runs that matches; -a shows what has ended"
    assert work.nothing_listed(of_ann, ended=True, everyone=False) == (
        "nothing is in memory that matches; rmgr history lists what ended earlier"
    )
    assert work.nothing_listed(Filter(), ended=True, everyone=True) == "nothing is in memory; rmgr history lists what ended earlier"


@pytest.fixture
def history(bare_home: Path) -> Path:
    """A store with two submissions of ann and one of whoever runs this, which have ended; nothing else is configured."""
    path = bare_home / "store.db"
    with SqliteStore(path) as store:
        for number, user in ((1, "ann"), (5, "ann"), (3, getpass.getuser())):
            store.put_many(history_rows(msgspec.structs.replace(ENDED, id=number, user=user)))
    return path


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["5", "1"], ["5", "1"]),
        (["1-9"], ["5", "3", "1"]),
        (["last"], ["3"]),
        (["1-5", "--limit", "1"], ["5"]),
        (["1-500", "-u", "ann"], ["5", "1"]),
    ],
)
def test_what_is_named_is_listed(words: list[str], ids: list[str], history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", *words, "--json", "--store", f"sqlite:{history}"]) == 0
    assert [job["id"] for job in json.loads(capsys.readouterr().out)["history"]] == ids


def test_what_is_named_and_not_there_is_said(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "5", "4", "--store", f"sqlite:{history}"]) == 3
    assert "4 is not in the history" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--state", "failed"), ("--since", "1s"), ("-u", "zoe")])
def test_a_filter_that_nothing_in_the_history_passes_is_no_empty_history(
    words: tuple[str, ...], history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everyone = () if "-u" in words else ("-A",)
    assert run(["history", *everyone, *words, "--store", f"sqlite:{history}"]) == 0
    told = capsys.readouterr().err
    assert "nothing that matches has ended" in told
    assert "yet" not in told
    assert "-A" not in told


def test_the_exit_code_is_what_the_daemon_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", 1.0)
    server = RpcServer("127.0.0.1:0", threads=2)
    server.start()
    try:
        assert health.main([server.endpoint]) == 0
        assert capsys.readouterr().out == f"{server.endpoint}: serving\n"
        server.set_healthy(False)
        assert health.main([server.endpoint]) == 1
        assert capsys.readouterr().out == f"{server.endpoint}: not serving\n"
    finally:
        server.stop(0.0)
    assert health.main([server.endpoint]) == 1


@pytest.mark.parametrize("words", [[], ["--help"], ["127.0.0.1:1", "/nowhere", "more"]])
def test_wrong_use_is_told_apart(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(words) == 2
    assert "usage" in capsys.readouterr().err


def test_credentials_that_are_not_there_are_named(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main(["127.0.0.1:1", f"{tmp_path}/none"]) == 1
    assert f"{tmp_path}/none" in capsys.readouterr().err


def test_who_watches_goes_on_while_parts_are_away_but_not_with_what_never_was_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def watched(*ends: BaseException | None) -> None:
        left = list(ends)

        def once() -> None:
            if (end := left.pop(0)) is not None:
                raise end

        tables.draw(cli_session.Session(), once, watch=True)
        assert not left

    watched(None, CoordinationUnavailable("ZooKeeper: the session was lost"), StoreUnavailable("no store"), None, KeyboardInterrupt())
    assert capsys.readouterr().err == "rmgr: ZooKeeper: the session was lost\nrmgr: no store\n"
    with pytest.raises(CoordinationUnavailable):
        watched(CoordinationUnavailable("no ZooKeeper"))
    with pytest.raises(WrongCluster):
        watched(None, WrongCluster("another cluster"))
