"""What a metaserver knows of the servers for calls: what gateways report of each process of a server, what it is worth, and who counts.

- A measurement is as old as it is said to be: times are converted to this clock by how long ago they were. Of several gateways' loads of a
  server the newest counts, of its links that of each gateway to itself.
- A server is known by its name. Of two lives of a name the newer one counts; an older one that is measured after the newer came runs as
  well, and keeps the name.
- A life that one gateway says is over is over, whoever hears it; so is one that no gateway has heard for 60 s. The word of a gateway that
  does not report any more grows old: it may be gone, with the server.
- A call that was sent counts until a load that was measured after it comes. One that comes later but was measured before does not have it:
  `sent_before` says how many such there are.

No clock and no lock of its own: `now_us` is passed in, never descending, and the metaserver lets one thread in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite

import msgspec

from rmgr.coord.calls.ledger import OVER_US
from rmgr.model.base.units import format_duration
from rmgr.model.calls.interface import Interface, offers, readable
from rmgr.model.cluster.servers import (
    CALLS,
    REFRESH_US,
    Candidate,
    GatewayReport,
    LifeHeard,
    LinkView,
    PickRequest,
    ServerLoad,
    ServerReport,
    ServerView,
)
from rmgr.sched.records import Demand, Server

#: Without a report of its load for so many refreshes a server is stale.
STALE_REFRESHES = 3
#: A server that no gateway has is forgotten after so long.
KEPT_US = 3_600_000_000
#: Bytes/s of a link when none was ever measured: no link is free.
UNMEASURED = 1e6
#: Sendings to a server that are remembered until it is measured again.
_MOST_SENT = 10_000
#: What a gateway says of a server that it has a stream of.
_STREAMS = frozenset({"open", "leaving"})
#: A gateway reports every 5 s at least, and at once when a stream breaks: it is taken to have a stream for so long after its last report.
FRESH_US = 12_000_000


@dataclass(frozen=True, slots=True)
class _Word:
    """What a gateway said last of a server."""

    at_us: int
    state: str
    site: str
    bytes_per_s: float
    round_trip_s: float
    link_us: int
    heard_us: int

    def has_stream(self, now_us: int) -> bool:
        """This gateway has the server's stream, as far as can be known now."""
        return self.state in _STREAMS and now_us - self.at_us <= FRESH_US

    def hears_us(self, now_us: int) -> int:
        """When this gateway has heard the server last, as far as can be known now."""
        return now_us if self.has_stream(now_us) else self.heard_us


@dataclass(slots=True)
class Life:
    """One process of a server.

    Attributes: about: what was reported of it last. measured_us: when its newest load was; refresh_us: of who measured that. words: by
    gateway. sent_us: calls sent since `measured_us`; sent_before: of those, the ones sent before that load came. odd: functions that it is
    not sent. unfit: what its report has that nothing can be computed with. offered: functions that it is sent. stream, over, leaving: as
    the gateways say.
    """

    name: str
    life: int
    first_us: int
    seen_us: int
    about: ServerReport
    load: ServerLoad | None = None
    measured_us: int = 0
    refresh_us: int = REFRESH_US
    words: dict[str, _Word] = field(default_factory=dict)
    sent_us: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_SENT))
    sent_before: int = 0
    odd: tuple[str, ...] = ()
    unfit: str = ""
    offered: tuple[str, ...] = ()
    stream: bool = False
    over: bool = False
    leaving: bool = False

    def is_stale(self, now_us: int) -> bool:
        """Its load is old, or was never measured."""
        return now_us - self.measured_us > STALE_REFRESHES * self.refresh_us

    def rates(self) -> dict[str, float]:
        """Measured bytes/s by gateway."""
        return {gateway: word.bytes_per_s for gateway, word in self.words.items() if word.bytes_per_s > 0}

    def has_stream(self, now_us: int) -> bool:
        """Some gateway has."""
        return any(word.has_stream(now_us) for word in self.words.values())

    def record(self, gateway: str = "", rate: float = 0.0) -> Server:
        """For the scheduler. gateway, rate: bytes/s of that link, 0 = as it was measured."""
        load, about = self.load or ServerLoad(), self.about
        speed = about.mops * 1e6
        rates = self.rates() | ({gateway: rate} if rate else {})
        return Server(
            self.name,
            speed,
            load.running + load.waiting + load.other,
            throughput=tuple(sorted(rates.items())),
            at_us=self.measured_us,
            partition=CALLS,
            slots=max(about.slots, 1),
            functions=self.offered,
            site=about.site,
            life=self.life,
            is_open=bool(self.offered) and not self.leaving,
            mean_load=load.mean_load,
            calibrated=0.0 if about.mops_declared else speed,
            demand=Demand(load.arrivals_per_s, load.service_s, load.service_cv),
            sent=self.sent_before,
        )

    def settle(self, now_us: int) -> None:
        """After its words or its odd functions have changed."""
        states = [word.state for word in self.words.values()]
        self.stream = self.has_stream(now_us)
        self.leaving = "leaving" in states
        silent = bool(states) and all(now_us - word.hears_us(now_us) >= OVER_US for word in self.words.values())
        self.over = self.over or "closed" in states or silent
        self.offered = tuple(name for name in _keys(self.about.functions) if name not in self.odd)


class ServerBook:
    """Lives of servers by name. Attribute rulings: name -> the life that counts."""

    def __init__(self) -> None:
        self.rulings: dict[str, Life] = {}
        self._lives: dict[str, dict[int, Life]] = {}

    def find(self, name: str, life: int) -> Life | None:
        return self._lives.get(name, {}).get(life)

    def report(self, report: GatewayReport, now_us: int) -> list[str]:
        """Takes in what a gateway has measured. Returns: names that are forgotten. Cost: O(servers known), some 10 us each."""
        listed = {(server.name, server.life) for server in report.servers}
        for one in self._every():
            if report.gateway in one.words and (one.name, one.life) not in listed:
                del one.words[report.gateway]  # the gateway was started anew
        for server in report.servers:
            if not server.same or self.find(server.name, server.life) is not None:  # else nobody knows what it offers
                self._heard(report, server, now_us)
        gone = self._forget(now_us)
        for one in self._every():
            one.settle(now_us)
        self._judge_functions(now_us)
        self.rulings = {name: ruling for name in sorted(self._lives) if (ruling := self._ruling(name, now_us)) is not None}
        return gone

    def link_told(self, one: Life, asked: PickRequest, candidate: Candidate, now_us: int) -> None:
        """A pick has the gateway's newest measurement of its link."""
        word = one.words.get(asked.gateway)
        if is_rate(candidate.bytes_per_s) and (word is None or word.bytes_per_s != candidate.bytes_per_s):
            known = word or _Word(now_us, "open", asked.site, 0.0, 0.0, now_us, now_us)
            rate, round_trip_s = candidate.bytes_per_s, candidate.round_trip_s
            one.words[asked.gateway] = replace(known, bytes_per_s=rate, round_trip_s=round_trip_s, link_us=now_us)
            if word is None:
                one.settle(now_us)

    def rate(self, one: Life, gateway: str) -> float:
        """Bytes/s of a link as it counts, measured by that gateway; 0: the mean of the server's other links does.

        A server of which no link was measured has one like the slowest that was.
        """
        known = one.rates()
        if gateway in known or known:
            return known.get(gateway, 0.0)
        return min((rate for other in self._every() for rate in other.rates().values()), default=UNMEASURED)

    def heard(self, report: GatewayReport, now_us: int) -> tuple[LifeHeard, ...]:
        """What other gateways know of each life: calls that are bound to it may come to any gateway."""
        found: list[LifeHeard] = []
        for one in self._every():
            others = [word.hears_us(now_us) for gateway, word in one.words.items() if gateway != report.gateway]
            if others or one.over:
                ago_us = now_us - max(others, default=one.seen_us)
                found.append(LifeHeard(name=one.name, life=one.life, heard_ago_us=ago_us, over=one.over))
        return tuple(found)

    def views(self, name: str, now_us: int) -> tuple[ServerView, ...]:
        """All, or those of one name; a server of which several lives are known has several."""
        lives = [one for one in self._every() if name in {"", one.name}]
        return tuple(self._view(one, now_us) for one in sorted(lives, key=lambda one: (one.name, one.first_us, one.life)))

    def standing(self, one: Life, now_us: int) -> tuple[str, str]:
        """State of a life: open, stale, away, odd or closed; and why."""
        ruling = self.rulings.get(one.name)
        if one.over:
            return "closed", "its process has ended"
        if not one.has_stream(now_us):
            return "away", f"no gateway has had its stream for {format_duration((now_us - one.seen_us) / 1e6)}"
        if ruling is not None and ruling is not one:
            if _runs_beside(ruling, one):
                return "odd", f"another server is called {one.name}: life {ruling.life:016x}, site {ruling.about.site or '?'}"
            return "closed", f"a newer process is called {one.name}"
        if one.leaving:
            return "closed", "it is leaving: it finishes what it has"
        if one.unfit:
            return "odd", one.unfit
        if one.odd:
            return "odd", f"other servers have another interface of {', '.join(sorted(one.odd))}, which it does not get"
        if one.load is None:
            return "stale", "its load was never measured"
        if one.is_stale(now_us):
            return "stale", f"no report of its load for {format_duration((now_us - one.measured_us) / 1e6)}"
        return "open", ""

    # -- inside -----------------------------------------------------------------------------------------------------------------

    def _every(self) -> Iterator[Life]:
        return (one for lives in self._lives.values() for one in lives.values())

    def _heard(self, report: GatewayReport, server: ServerReport, now_us: int) -> None:
        lives = self._lives.setdefault(server.name, {})
        one = lives.get(server.life)
        if one is None:
            one = lives[server.life] = Life(server.name, server.life, now_us, now_us, server)
        refresh_us = report.refresh_us or REFRESH_US
        one.unfit = _unfit(server)
        if one.unfit:  # nothing of it gets into a formula, a log or a view
            server = msgspec.structs.replace(server, mops=0.0, bytes_per_s=0.0, round_trip_s=0.0, load=None)
        functions = one.about.functions if server.same else server.functions
        one.about = msgspec.structs.replace(server, answered=(), load=None, functions=functions, same=False)
        rate, round_trip_s, link_us = server.bytes_per_s, server.round_trip_s, now_us - server.link_ago_us
        before = one.words.get(report.gateway)
        if before is not None and before.bytes_per_s > 0 and (before.link_us > link_us or not rate):  # a pick told it
            rate, round_trip_s, link_us = before.bytes_per_s, before.round_trip_s, before.link_us
        heard_us = now_us - server.heard_ago_us
        one.words[report.gateway] = _Word(now_us, server.state, report.site, rate, round_trip_s, link_us, heard_us)
        if server.state in _STREAMS:
            one.seen_us = now_us
        measured_us = now_us - server.measured_ago_us
        if server.load is not None and (one.load is None or measured_us > one.measured_us):
            one.load, one.measured_us, one.refresh_us = server.load, measured_us, refresh_us
            while one.sent_us and one.sent_us[0] <= measured_us:
                one.sent_us.popleft()
            one.sent_before = len(one.sent_us)

    def _forget(self, now_us: int) -> list[str]:
        for one in list(self._every()):
            if now_us - one.seen_us > KEPT_US:
                del self._lives[one.name][one.life]
        gone = [name for name, lives in self._lives.items() if not lives]
        for name in gone:
            del self._lives[name]
        return gone

    def _judge_functions(self, now_us: int) -> None:
        """Which functions of a server are odd: another interface counts (`interface.offers`, by names of servers)."""
        judged: list[Life] = []
        holders: list[tuple[Life, tuple[bytes, ...]]] = []
        for one in sorted(self._every(), key=lambda one: (one.name, one.first_us, one.life)):
            if one.odd:
                one.odd = ()
                judged.append(one)
            if one.stream and not one.over:
                holders.append((one, one.about.functions))
        for function, (_, *others) in offers(holders).items():
            for _, lives in others:
                for one in lives:
                    one.odd = (*one.odd, function)
                    judged.append(one)
        for one in judged:
            one.settle(now_us)

    def _ruling(self, name: str, now_us: int) -> Life | None:
        there = sorted(
            (one for one in self._lives[name].values() if one.stream and not one.over), key=lambda one: (one.first_us, one.life)
        )
        older = (one for one in there[:-1] if _runs_beside(one, there[-1]) and not one.is_stale(now_us))
        return next(older, there[-1]) if there else None

    def _view(self, one: Life, now_us: int) -> ServerView:
        state, why = self.standing(one, now_us)
        load, about = one.load or ServerLoad(), one.about
        links = tuple(
            LinkView(
                site=word.site,
                gateway=gateway,
                bytes_per_s=word.bytes_per_s,
                round_trip_s=word.round_trip_s,
                age_s=max(now_us - word.link_us, 0) / 1e6,
            )
            for gateway, word in sorted(one.words.items())
        )
        return ServerView(
            name=one.name,
            state=state,
            site=about.site,
            slots=about.slots,
            running=load.running,
            waiting=load.waiting,
            other=load.other,
            mops=about.mops,
            bytes_per_s=max((link.bytes_per_s for link in links), default=0.0),
            age_s=max(now_us - (one.measured_us if one.load is not None else one.first_us), 0) / 1e6,
            assigned=len(one.sent_us),
            life=one.life,
            links=links,
            functions=one.offered,
            why=why,
        )


def _runs_beside(older: Life, newer: Life) -> bool:
    """The older one was measured after the newer one came."""
    return older.first_us <= newer.first_us < older.measured_us


def _keys(functions: Iterable[bytes]) -> list[str]:
    """`name@version` of each interface that can be read, in order."""
    return sorted(one.key for text in functions if isinstance(one := readable(text), Interface))


def is_rate(value: float) -> bool:
    """Bytes/s that can be divided by."""
    return value > 0 and isfinite(value)


def _unfit(server: ServerReport) -> str:
    """The number of a report that nothing can be computed with, "" where all are sound."""
    load = server.load or ServerLoad()
    numbers = {name: getattr(load, name) for name in ("other", "mean_load", "arrivals_per_s", "service_s", "service_cv")}
    numbers |= {name: getattr(server, name) for name in ("mops", "bytes_per_s", "round_trip_s")}
    wrong = next((name for name, value in numbers.items() if not (isfinite(value) and (value > 0 if name == "mops" else value >= 0))), "")
    return f"its report has {wrong} = {numbers[wrong]}" if wrong else ""
