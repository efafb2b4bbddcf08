"""The metaserver on a clock of the test: which reports and picks count, which server it picks, and a log that replays to the same picks."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import pytest

from rmgr.daemons.service.metaserver import BENCH_US, FRESH_US, KEPT_US, UNMEASURED, Metaserver
from rmgr.model.interface import encode_interface, interface_of
from rmgr.model.queue import PipelineSpec
from rmgr.model.servers import CALLS, CallReport, Candidate, GatewayReport, Pick, PickRequest, ServerLoad, ServerReport, ServerView
from rmgr.sched.catalogue import CALL_POLICIES, call_policy_named
from rmgr.sched.policies.servers import Loth
from rmgr.sched.policy import Stage
from rmgr.sched.state.event_log import Entry, Opening, decode
from rmgr.sim.replay import verify

S = 1_000_000
G, H = "g:1", "h:1"
OPERATIONS, BYTES = 144_720_000, 2_889_600


def interface(name: str = "linsolve", out: str = "x") -> bytes:
    arguments = ["in A float64[n,n]", f"out {out} float64[n]"]
    return encode_interface(interface_of({"name": name, "version": 1, "arguments": arguments, "operations": "n**3"}, "here"))


class Lines:
    """Logs in memory."""

    def __init__(self) -> None:
        self.has_room = True
        self.logs: list[list[str]] = []

    def begin(self) -> None:
        self.logs.append([])

    def write(self, line: str, /) -> None:
        self.logs[-1].append(line)

    def entries(self, number: int) -> Iterator[Entry]:
        return (decode(line) for line in self.logs[number])


@dataclass
class World:
    """A metaserver with gateways G and H; times in seconds since its start."""

    policy: str = "loth+l"
    lines: Lines = field(default_factory=Lines)
    now_us: int = 1000 * S

    def __post_init__(self) -> None:
        self.failed: list[str] = []
        self.meta = Metaserver(
            lambda: self.now_us, spec(self.policy), epoch=7, lines=self.lines, failed=lambda policy, _: self.failed.append(policy)
        )

    def wait(self, seconds: float) -> None:
        self.now_us += round(seconds * S)

    def report(self, *servers: ServerReport, gateway: str = G) -> None:
        self.meta.report(GatewayReport(gateway=gateway, site=f"site of {gateway}", servers=servers, refresh_us=10 * S))

    def pick(self, *names: str, gateway: str = G, rates: dict[str, float] | None = None, explain: bool = False, **asked: int) -> Pick:
        """names: `s1`, or `s1/2`: of life 2."""
        named = [(name.partition("/")[0], int(name.partition("/")[2] or 1)) for name in names]
        candidates = tuple(Candidate(name=name, life=life, bytes_per_s=(rates or {}).get(name, 0.0)) for name, life in named)
        sizes = {"operations": OPERATIONS, "bytes": BYTES} | asked
        return self.meta.pick(PickRequest(gateway=gateway, function="linsolve@1", servers=candidates, explain=explain, **sizes))

    def picks(self, count: int, *names: str) -> list[str]:
        return [self.pick(*names).server for _ in range(count)]

    def server(self, name: str, life: int = 1) -> ServerView:
        return next(view for view in self.meta.servers(name).servers if view.life == life)

    def waiting(self) -> int:
        part = self.meta.state.partitions.get(CALLS)
        return 0 if part is None else len(part.calls)


def spec(policy: str, **parameters: str) -> PipelineSpec:
    stage = {"policy": policy} | ({"parameters": parameters} if parameters else {})
    return PipelineSpec(partition=CALLS, name=policy, document=json.dumps({"stage": [stage]}))


def server(
    name: str, load: float = 0, *, life: int = 1, ago_s: float = 0.0, mops: float = 400.0, rate: float = 1e7, **more: object
) -> ServerReport:
    return ServerReport(
        name=name, life=life, mops=mops, load=ServerLoad(running=int(load), other=load - int(load)), measured_ago_us=round(ago_s * S),
        bytes_per_s=rate, **({"functions": (interface(),)} | more),
    )


def reported(*servers: ServerReport, policy: str = "loth+l") -> World:
    """Gateway G has told of these servers."""
    world = World(policy)
    world.report(*servers)
    return world


def test_calls_between_two_reports_count_as_load() -> None:
    world = reported(server("s1"), server("s2"))
    assert world.picks(4, "s1", "s2") == ["s1", "s2", "s1", "s2"]
    assert world.server("s1").assigned == 2


def test_a_load_that_was_measured_after_a_call_takes_its_place() -> None:
    world = reported(server("s1"), server("s2", 1))
    assert world.picks(1, "s1", "s2") == ["s1"]
    world.wait(10)
    world.report(server("s1"), server("s2", 1))  # it has been answered
    assert world.server("s1").assigned == 0
    assert world.picks(1, "s1", "s2") == ["s1"]


def test_a_load_that_was_measured_before_a_call_and_comes_after_it_does_not_have_it() -> None:
    #   measured        call         the report comes
    # --- 1 s ---------- 3 s --------- 4 s ----------> s1 has 0 + 1
    world = reported(server("s1"), server("s2", 0.5))
    world.wait(3)
    assert world.picks(1, "s1", "s2") == ["s1"]
    world.wait(1)
    world.report(server("s1", ago_s=3), server("s2", 0.5, ago_s=3))
    assert world.server("s1").assigned == 1
    assert world.picks(3, "s1", "s2") == ["s2", "s1", "s2"]
    world.wait(1)
    world.report(server("s1", 2), server("s2", 2))
    assert [world.server(name).assigned for name in ("s1", "s2")] == [0, 0]


def test_of_two_gateways_the_newer_load_counts_whoever_reports_last() -> None:
    world = reported(server("s1", 5, ago_s=1), server("s2", 2, ago_s=1))
    world.report(server("s1", 0, ago_s=4), server("s2", 9, ago_s=4), gateway=H)
    assert (world.server("s1").running, world.server("s2").running) == (5, 2)
    assert world.server("s1").age_s == 1.0


def test_each_gateway_has_its_own_links() -> None:
    world = reported(server("s1", rate=1e8), server("s2", rate=1e6), policy="loth")
    world.report(server("s1", rate=1e6), server("s2", rate=1e8), gateway=H)
    assert world.pick("s1", "s2").server == "s1"
    assert world.pick("s1", "s2", gateway=H).server == "s2"
    assert [link.bytes_per_s for link in world.server("s1").links] == [1e8, 1e6]


def test_a_pick_brings_the_newest_measurement_of_its_links() -> None:
    world = reported(server("s1", rate=1e8), server("s2", rate=1e7), policy="loth")
    assert world.pick("s1", "s2", rates={"s1": 1e6, "s2": 1e7}).server == "s2"
    assert world.pick("s1", "s2").server == "s2"
    assert world.server("s1").bytes_per_s == 1e6


def test_a_link_that_nobody_has_measured_is_not_free() -> None:
    world = reported(server("s1", rate=0.0), server("s2", rate=1e7), server("s3", rate=1e6), policy="loth")
    assert world.pick("s1", "s2").server == "s2"
    terms = {term.server: term for term in world.pick("s1", "s2", "s3", explain=True).terms}
    assert terms["s1"].transfer_s == terms["s3"].transfer_s == BYTES / 1e6
    alone = World("loth")
    alone.report(server("s1", rate=0.0))
    assert alone.pick("s1").transfer_s == BYTES / UNMEASURED


def test_what_answers_show_of_speed_is_learnt() -> None:
    world = World("loth")
    world.meta.set_pipeline(spec("loth", performance="learnt"))
    call = CallReport(function="linsolve@1", operations=OPERATIONS, ran_us=10 * S, alone_us=10 * S, took_us=11 * S)
    world.report(server("s1", answered=(call,)), server("s2", mops=100.0))
    assert world.pick("s1", "s2").server == "s2"


def test_a_call_that_nobody_can_have_goes_nowhere_and_nothing_of_it_stays() -> None:
    world = World()
    assert world.pick() == Pick(epoch=7, policy="loth+l", why="no server offers it")
    world.report(server("s1", functions=(interface("other"),)))
    assert world.pick("s1").why == "s1: it does not offer linsolve@1"
    assert world.waiting() == 0
    assert world.picks(1) == [""]


def test_a_server_that_the_leader_does_not_know_is_to_be_reported_first() -> None:
    world = reported(server("s1"))
    assert world.pick("s2").unknown == ("s2",)
    assert world.pick("s2").server == ""
    assert world.pick("s1/2").unknown == ("s1",)
    both = world.pick("s1", "s2")
    assert (both.server, both.unknown) == ("s1", ("s2",))


def test_a_new_life_begins_with_nothing_assigned() -> None:
    world = reported(server("s1"), server("s2", 2))
    assert world.picks(2, "s1", "s2") == ["s1", "s1"]
    world.report(server("s1", state="closed"), server("s1", life=2), server("s2", 2))
    assert world.pick("s1").why == "s1: closed: its process has ended"
    again = world.pick("s1/2", "s2")
    assert (again.server, again.life) == ("s1", 2)
    assert world.server("s1", 2).assigned == 1


def test_a_successor_takes_the_name_of_a_life_that_another_gateway_still_holds() -> None:
    world = reported(server("s1"))
    world.wait(1)
    world.report(server("s1", life=2), gateway=H)
    assert world.server("s1").state == "closed"
    assert world.pick("s1/2", gateway=H).life == 2
    assert world.pick("s1").why == "s1: closed: a newer process is called s1"


def test_two_servers_of_a_name_are_found_out_and_the_first_keeps_it() -> None:
    world = reported(server("s1"))
    world.wait(1)
    world.report(server("s1", life=2), gateway=H)
    world.wait(9)
    world.report(server("s1"))  # it was measured since: it is no old one
    assert [(view.life, view.state) for view in world.meta.servers().servers] == [(1, "open"), (2, "odd")]
    assert "another server is called s1" in world.server("s1", 2).why
    assert world.pick("s1").life == 1
    assert world.pick("s1/2", gateway=H).server == ""
    world.report(server("s1", state="closed"))
    assert world.pick("s1/2", gateway=H).life == 2


def test_stale_servers_are_used_only_when_all_are() -> None:
    world = reported(server("s1"), server("s2"))
    world.wait(20)
    world.report(server("s2", 9), gateway=H)
    world.wait(11)
    world.report(server("s1", ago_s=31), server("s2", ago_s=31))  # they do not answer G
    assert [world.server(name).state for name in ("s1", "s2")] == ["stale", "open"]
    assert world.pick("s1", "s2").server == "s2"
    assert world.pick("s1", "s2", explain=True).terms[0].note == "stale: no report of its load for 31s"
    world.wait(31)
    world.report(server("s1", ago_s=62), server("s2", ago_s=62))
    assert world.pick("s1", "s2").server == "s1"


def test_a_server_that_no_gateway_has_is_away_for_an_hour_and_then_forgotten() -> None:
    world = reported(server("s1"), server("s2"))
    world.report(server("s1", state="away"), server("s2"))
    assert world.server("s1").state == "away"
    assert world.pick("s1", "s2").unknown == ("s1",)
    world.report(server("s2"))  # a gateway that was started anew has forgotten it
    assert world.server("s1").state == "away"
    world.wait(KEPT_US / S + 1)
    world.report(server("s2"))
    assert [view.name for view in world.meta.servers().servers] == ["s2"]
    assert world.pick("s2").server == "s2"
    assert [one.name for one in world.meta.state.partitions[CALLS].servers.values()] == ["s2"]


def test_a_server_that_leaves_gets_nothing_new() -> None:
    world = reported(server("s1", state="leaving"), server("s2", 50))
    assert (world.server("s1").state, world.pick("s1", "s2").server) == ("closed", "s2")


def test_another_interface_under_the_same_version_is_odd() -> None:
    world = World()
    other, more = interface(out="y"), interface("echo")
    world.report(server("s1", functions=(other, more)), server("s2", 9), server("s3", 9))
    assert world.server("s1").state == "odd"
    assert "another interface of linsolve@1" in world.server("s1").why
    assert world.pick("s1", "s2").server == "s2"
    echo = PickRequest(gateway=G, function="echo@1", operations=1, bytes=8, servers=(Candidate(name="s1", life=1),))
    assert world.meta.pick(echo).server == "s1"
    world.report(server("s1", functions=(more,)), server("s2", 9), server("s3", 9))
    assert world.server("s1").state == "open"


@pytest.mark.parametrize(
    ("field_", "value"), [("mops", 0.0), *((name, value) for name in ("mops", "bytes_per_s") for value in (math.nan, math.inf, -1.0))]
)
def test_a_report_that_nothing_can_be_computed_with_makes_its_server_odd(field_: str, value: float) -> None:
    world = World()
    world.report(msgspec.structs.replace(server("s1"), **{field_: value}), server("s2", 9))
    assert (world.server("s1").state, world.pick("s1", "s2").server) == ("odd", "s2")
    assert field_ in world.server("s1").why


def heard(world: World, *servers: ServerReport, gateway: str = G) -> list[tuple[str, float, bool]]:
    """What the answer to a report tells of the lives that it names: name, seconds since it was heard, whether it is over."""
    report = GatewayReport(gateway=gateway, servers=servers, refresh_us=10 * S)
    return [(life.name, life.heard_ago_us / S, life.over) for life in world.meta.report(report).lives]


def test_a_gateway_is_told_how_others_hear_the_servers_that_it_has_lost() -> None:
    world = World()
    assert heard(world, server("s1")) == []
    assert heard(world, server("s1", state="away", heard_ago_us=5 * S), gateway=H) == [("s1", 0.0, False)]
    world.wait(11)  # G has not told that its stream broke, and its next report is not late yet
    assert heard(world, server("s1", state="away", heard_ago_us=16 * S), gateway=H) == [("s1", 0.0, False)]
    world.wait(5)  # now it is
    assert heard(world, server("s1", state="away", heard_ago_us=21 * S), gateway=H) == [("s1", 16.0, False)]


def test_a_life_is_over_when_one_gateway_says_so_or_none_has_heard_it_for_a_minute() -> None:
    world = World()
    heard(world, server("s1"), server("s2"))
    assert ("s1", 0.0, True) in heard(world, server("s1", state="closed"), gateway=H)
    assert heard(world, server("s1"), server("s2"))[0] == ("s1", 0.0, True)  # whoever hears it all the same
    world.wait(59)
    assert ("s2", 59.0, False) in heard(world, server("s2", state="away", heard_ago_us=59 * S), gateway=H)
    world.wait(1)
    assert ("s2", 60.0, True) in heard(world, server("s2", state="away", heard_ago_us=60 * S), gateway=H)
    assert world.server("s2").state == "closed"


def test_what_a_gateway_that_vanished_has_said_holds_no_life() -> None:
    world = World()
    report = GatewayReport(gateway=G, servers=(server("s1"),), refresh_us=3600 * S)  # however seldom it looked
    world.meta.report(report)
    world.wait(FRESH_US / S)
    assert heard(world, gateway=H) == [("s1", 0.0, False)]
    world.wait(1)
    assert world.server("s1").state == "away", "nobody tells of it any more"
    assert heard(world, gateway=H) == [("s1", FRESH_US / S + 1, False)]
    world.wait(59 - FRESH_US / S)
    assert heard(world, gateway=H) == [("s1", 60.0, True)]
    assert world.pick("s1").why == "s1: closed: its process has ended"


def test_a_gateway_is_told_of_lives_that_it_never_had() -> None:
    world = World()
    heard(world, server("s1"))
    assert heard(world, server("s2"), gateway=H) == [("s1", 0.0, False)]


def test_a_gateway_that_reports_again_has_its_servers_still() -> None:
    world = reported(server("s1"))
    world.wait(70)
    world.report(server("s1"))  # nobody else has told anything meanwhile
    assert world.server("s1").state == "open"
    assert world.pick("s1").server == "s1"


@dataclass
class Row:
    """A server of the plain formulas."""

    name: str
    load: float
    speed: float
    rate: float
    sent: int = 0


def plain(policy: str, rows: list[Row], turn: int) -> str:
    """The paper's formulas, papers.md 4.1."""

    def computing(row: Row) -> float:
        return OPERATIONS / (row.speed / (row.load + (row.sent if policy.partition("+")[2].startswith("l") else 0) + 1))

    def transfer(row: Row) -> float:
        return BYTES / (row.rate / (1 + row.sent)) if policy.endswith("t") else BYTES / row.rate

    if policy == "rr":
        return rows[turn % len(rows)].name
    if policy.startswith("load"):
        return min(rows, key=lambda row: (computing(row), row.name)).name
    return min(rows, key=lambda row: (computing(row) + transfer(row), row.name)).name


@pytest.mark.parametrize("policy", ["rr", "load", "load+l", "loth", "loth+l", "loth+t", "loth+lt"])
def test_picks_are_those_of_the_papers_formulas(policy: str) -> None:
    rng = random.Random(policy)
    for _ in range(30):
        world = World(policy)
        rows = [Row(f"s{i}", rng.randrange(5), rng.uniform(40, 400) * 1e6, rng.uniform(2e5, 1e7)) for i in range(rng.randrange(1, 6))]
        world.report(*(server(row.name, row.load, mops=row.speed / 1e6, rate=row.rate) for row in rows))
        for turn in range(8):
            wanted = plain(policy, rows, turn)
            assert world.pick(*(row.name for row in rows)).server == wanted
            next(row for row in rows if row.name == wanted).sent += 1
            world.wait(0.1)


def test_explain_tells_the_terms_and_changes_nothing() -> None:
    world = reported(server("s1", 1, rate=1e6), server("s2", 0, rate=1e5), server("s3", state="leaving"), policy="loth+lt")
    world.pick("s1", "s2")
    before, lines = world.meta.state.snapshot(), [list(log) for log in world.lines.logs]
    told = world.pick("s1", "s2", "s3", rates={"s2": 3e6}, explain=True)
    assert (world.meta.state.snapshot(), world.lines.logs) == (before, lines)
    assert world.server("s2").bytes_per_s == 1e5
    first, second, third = told.terms
    assert (first.load, first.mops, first.bytes_per_s) == (2.0, 400.0, 5e5)
    assert first.computing_s == pytest.approx(3 * OPERATIONS / 4e8)
    assert first.transfer_s == pytest.approx(BYTES / 5e5)
    assert (second.load, second.bytes_per_s, second.note) == (0.0, 3e6, "")
    assert third.note == "closed: it is leaving: it finishes what it has"
    assert told == msgspec.structs.replace(world.pick("s1", "s2", "s3", rates={"s2": 3e6}), terms=told.terms)


def test_another_policy_picks_from_the_next_call_on_and_knows_what_was_sent() -> None:
    world = reported(server("s1"), server("s2", 1.5), policy="loth")
    assert world.picks(3, "s1", "s2") == ["s1", "s1", "s1"]
    assert world.meta.set_pipeline(spec("loth+l"))
    assert not world.meta.set_pipeline(spec("loth+l"))
    assert world.picks(2, "s1", "s2") == ["s2", "s2"]
    assert world.pick("s1", "s2").policy == "loth+l"


@dataclass(frozen=True, slots=True)
class Broken(Loth):
    name: ClassVar[str] = "loth"
    armed: ClassVar[list[bool]] = [True]

    def choose(self, draft, call, options):
        if self.armed[0]:
            raise ZeroDivisionError("broken")
        return Loth.choose(self, draft, call, options)


def test_a_policy_that_raises_is_replaced_by_rr_for_five_minutes() -> None:
    world = World()
    world.meta.stage = Stage(Broken(), (CALLS,))
    Broken.armed[0] = True
    world.report(server("s1", 9), server("s2"))
    assert world.picks(3, "s1", "s2") == ["s1", "s2", "s1"]
    assert (world.failed, world.waiting()) == (["loth+l"], 0)
    assert world.pick("s1", "s2").policy == "rr instead of loth+l"
    assert "ZeroDivisionError: broken" in world.meta.instead()
    Broken.armed[0] = False
    world.wait(BENCH_US / S)
    world.report(server("s1", 9), server("s2"))
    assert (world.picks(2, "s1", "s2"), world.meta.instead()) == (["s2", "s2"], "")
    for log in range(len(world.lines.logs) - 1):
        _replayed(world.lines, log)


def _replayed(lines: Lines, log: int) -> int:
    """Replays a log under the policy that its first line names. Returns: its passes."""
    opening = next(lines.entries(log))
    assert isinstance(opening, Opening)
    return verify(lines.entries(log), (Stage(call_policy_named(opening.policy, opening.parameters), (CALLS,)),)).passes


@pytest.mark.parametrize("seed", range(4))
def test_every_log_replays_to_the_same_picks(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    lives = {f"s{i}": 1 for i in range(4)}
    picked = 0
    policies: list[Callable[[], PipelineSpec]] = [*(lambda name=name: spec(name) for name in CALL_POLICIES)]
    for _ in range(300):
        world.wait(rng.random())
        match rng.randrange(8):
            case 0 | 1:
                answered = (CallReport(function="linsolve@1", operations=OPERATIONS, ran_us=S, alone_us=S, took_us=3 * S),)
                world.report(
                    *(
                        server(
                            name, rng.randrange(4), life=life, ago_s=rng.random() * 3, rate=rng.uniform(0, 1e7),
                            state=rng.choice(["open"] * 5 + ["away", "leaving"]), answered=answered if rng.random() < 0.3 else (),
                        )
                        for name, life in lives.items()
                    ),
                    gateway=rng.choice([G, H]),
                )  # fmt: skip
            case 2 if rng.random() < 0.2:
                lives[rng.choice(list(lives))] += 1
            case 3 if rng.random() < 0.2:
                world.meta.set_pipeline(rng.choice(policies)())
            case _:
                names = [f"{name}/{life}" for name, life in lives.items() if rng.random() < 0.8]
                rates = {name.partition("/")[0]: rng.uniform(1e5, 1e7) for name in names}
                picked += bool(world.pick(*names, gateway=rng.choice([G, H]), rates=rates).server)
    world.meta.close()
    assert picked > 50
    assert sum(_replayed(world.lines, log) for log in range(len(world.lines.logs))) == world.meta.passes
    assert world.waiting() == 0


def test_lines_that_cannot_be_kept_are_counted_and_another_log_begins() -> None:
    world = reported(server("s1"), server("s2"))
    world.picks(2, "s1", "s2")
    world.lines.has_room = False
    world.picks(3, "s1", "s2")
    world.lines.has_room = True
    world.picks(1, "s1", "s2")
    world.meta.close()
    assert [_replayed(world.lines, log) for log in (0, 1)] == [2, 1]
    opening = next(world.lines.entries(1))
    assert isinstance(opening, Opening)
    assert opening.about["lost"] == 3


def test_functions_that_were_told_before_need_not_be_told_again_and_who_does_not_know_them_says_so() -> None:
    world = World()
    told = server("s1")
    again = msgspec.structs.replace(told, functions=(), same=True)

    def untold(*servers: ServerReport) -> tuple[int, ...]:
        return world.meta.report(GatewayReport(gateway=G, servers=servers, refresh_us=10 * S)).untold

    assert untold(again) == (1,)
    assert world.meta.servers("").servers == ()  # nobody knows what it offers
    assert untold(told, server("s2", life=2)) == ()
    assert untold(again, server("s3", life=3, functions=(), same=True)) == (3,)
    assert (world.server("s1").functions, world.pick("s1").server) == (("linsolve@1",), "s1")
