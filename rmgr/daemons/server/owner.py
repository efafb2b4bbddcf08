"""The server's only thread: takes calls that gateways offer, runs them in slots, keeps answers until they are acknowledged.

    Offered -> ACCEPTED -> arguments into the spool (Taken) -> a free slot (STARTED) -> answer in the spool -> given to the last asker
        -> JOINED      the call is here already: its answer goes to the new asker
        -> REFUSED     not this attempt; BARRED: nor a later one

The ledger of this life (`coord/calls/ledger.py`) decides which ids run, and how often; this file has its files, slots and clock.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.registry import CollectorRegistry

from rmgr.adapters.calls import serving
from rmgr.adapters.host.workevents import NodeEvent
from rmgr.coord.calls import ledger as book
from rmgr.coord.calls.ledger import CallId, Ending, Ledger, Refused
from rmgr.daemons.server.work import Ended, LoadMeter, Run, Work
from rmgr.model.interface import Function, encode_interface
from rmgr.model.units import format_duration, format_size
from rmgr.runner.host.files import remove_tree
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.runtime.mailbox import Mailbox

#: Interval of looks for what is late.
_LOOK_S = 1.0
#: Most that a user's calls may have of the spool, as a multiple of what then stays free for others: one user alone has at most three
#: quarters, two have three sevenths each. With the settings as they are, a whole call of somebody else always fits beside one user's.
_TIMES_FREE = 3
#: Most different reasons logged for a gateway's absence, until it is back.
_MOST_TOLD = 10
#: Longest text of an error or traceback that is sent.
_MOST_TEXT = 64 * 1024
_KINDS = {
    book.Outcome.RESULT: "OK",
    book.Outcome.FAILED: "FAILED",
    book.Outcome.TIMEOUT: "TIMEOUT",
    book.Outcome.CANCELLED: "CANCELLED",
    book.Outcome.LOST: "LOST",
}
_OUTCOMES = {kind: outcome for outcome, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """most_waiting, per_user: calls without a slot, in all and of one user. spool_bytes: arguments and answers.
    max_bytes: arguments, or answer, of one call. grace_s: time after SIGTERM for the calls that the server has.
    """

    most_waiting: int = 100
    per_user: int = 50
    spool_bytes: int = 4 << 30
    max_bytes: int = 1 << 30
    grace_s: float = 30.0


class Stage(StrEnum):
    """Stage of a call with files here. COMING: its arguments are on their way. WAITING: for a slot. ENDED: its answer is kept."""

    COMING = "coming"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class _Call:
    """A call. line, key, said_bytes: of the last try, None if its client is gone. coming: the try whose arguments are awaited;
    is_said: they come in its stream.
    """

    id: CallId
    number: int
    function: Function
    size_bytes: int
    deadline_us: int
    directory: Path
    attempt: int
    stage: Stage = Stage.COMING
    line: serving.GatewayLine | None = None
    key: bytes = b""
    coming: bytes = b""
    is_said: bool = False
    said_bytes: int = 0
    ready_s: float = 0.0
    started_s: float = 0.0
    end: serving.CallEnd | None = None

    @property
    def arguments(self) -> Path:
        return self.directory / "arguments"

    @property
    def answer(self) -> Path:
        return self.directory / "answer"


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks the server to stop: SIGTERM, SIGINT."""


@dataclass(frozen=True, slots=True)
class Worked:
    """Events of the slots."""

    events: tuple[NodeEvent, ...]


Message: TypeAlias = serving.LineEvent | Stop | Worked


class ServerMetrics:
    """Metrics of one life, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.gateways = Gauge("rmgr_server_gateways", "gateways that have its stream", registry=registry)
        self.running = Gauge("rmgr_server_running", "calls in slots", registry=registry)
        self.waiting = Gauge("rmgr_server_waiting", "calls without a slot yet", registry=registry)
        self.spool_bytes = Gauge("rmgr_server_spool_bytes", "arguments and answers on disk", registry=registry)
        self._counters = {
            "offers": Counter("rmgr_server_offers", "offered calls by what was said", ["kind"], registry=registry),
            "calls": Counter("rmgr_server_calls", "calls that ended, by outcome", ["kind"], registry=registry),
        }

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """Counts one more."""
        self._counters[what].labels(kind).inc(amount)


class Server:
    """The owner of all state: `run_loop` gives it turns.

    Args:
        functions: those offered. spool: an empty directory of its own. beside: another directory without which nothing runs.
        life: of this process. progress: called at each turn.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        work: Work,
        spool: Path,
        limits: ServerLimits,
        *,
        beside: Path | None = None,
        life: int,
        mailbox: Mailbox[Message],
        load: LoadMeter,
        metrics: ServerMetrics,
        log: Log,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.mailbox = mailbox
        kept_bytes = min(book.KEPT_BYTES, limits.spool_bytes)
        self._ledger = Ledger(most_waiting=limits.most_waiting, per_user=limits.per_user, kept_bytes=kept_bytes)
        ascending = sorted(functions, key=lambda function: function.interface.version)
        self._functions = {function.interface.name: function for function in ascending}  #: by name alone: the highest version
        self._functions |= {function.interface.key: function for function in ascending}
        self._work = work
        self._spool = spool
        self._places = (spool, *filter(None, (beside,)))
        self._limits = limits
        self._life = life
        self._load = load
        self._metrics = metrics
        self._log = log
        self._progress = progress
        self._calls: dict[CallId, _Call] = {}
        self._numbers: dict[int, _Call] = {}
        self._coming: dict[bytes, _Call] = {}  #: by try: calls whose arguments are on their way
        self._giving: dict[bytes, _Call] = {}  #: by try: calls whose answers are on their way
        self._count = 0
        self._used: Counts[str] = Counts()  #: user -> bytes in the spool
        self._up: dict[serving.GatewayLine, None] = {}
        self._told: dict[str, set[str]] = {}  #: by gateway: reasons of its absence logged since it left
        self._looks_s = machine.monotonic()
        self.leaves_s = math.inf  #: calls may end until then
        self.is_outlived = False  #: gateways have given up this life, or its directories are gone

    # -- figures

    @property
    def gateways(self) -> int:
        """Number of gateways that have its stream."""
        return len(self._up)

    @property
    def running(self) -> int:
        """Number of calls in slots."""
        return self._ledger.running

    @property
    def waiting(self) -> int:
        """Number of accepted calls without a slot."""
        return self._ledger.waiting

    @property
    def used_bytes(self) -> int:
        """Bytes used in the spool, or promised to arguments on their way."""
        return self._used.total()

    @property
    def is_leaving(self) -> bool:
        """Whether the server takes nothing new, and is about to end."""
        return self.leaves_s < math.inf

    # -- turns (`LoopOwner`)

    def wait_s(self) -> float:
        """Returns the seconds until something may be late."""
        return max(0.0, min(self._looks_s + _LOOK_S, self.leaves_s) - machine.monotonic())

    def turn(self, message: Message | None) -> bool:
        """See `LoopOwner`."""
        self._progress()
        now_s = machine.monotonic()
        if message is not None:
            self._take_in(message, now_s)
        if now_s >= self._looks_s + _LOOK_S:
            self._look(now_s)
        self._begin(now_s)
        self._load.changed(now_s, self.running + self.waiting)
        return not (self.is_outlived or (self.is_leaving and (now_s >= self.leaves_s or self._is_done())))

    def _take_in(self, message: Message, now_s: float) -> None:
        match message:
            case serving.Offered():
                self._on_offered(message, now_s)
            case serving.Said():
                self._on_said(message, now_s)
            case serving.Taken():
                self._on_taken(message, now_s)
            case serving.Given():
                self._on_given(message)
            case Worked():
                for event in message.events:
                    for ended in self._work.take_in(event):
                        self._on_ended(ended, now_s)
            case serving.Asked():
                message.line.load(message.number, self._load.now(now_s, self.running, self.waiting, message.line))
            case serving.Cancelled():
                self._ledger.cancelled(message.id, _us(now_s))
            case serving.Orphaned():
                call = self._calls.get(message.id)
                if call is not None and call.line is message.line:
                    self._leave(call)
            case serving.Acknowledged():
                self._on_acknowledged(message, now_s)
            case serving.Joined():
                self._up[message.line] = None
                self._told.pop(message.line.endpoint, None)
                self._log.info("gateway_joined", endpoint=message.line.endpoint)
                if self.is_leaving:
                    message.line.leaving()
            case serving.Parted():
                self._on_parted(message)
            case serving.Outlived():
                self.is_outlived = True
                self._log.warning("life_given_up", endpoint=message.line.endpoint, why=message.why)
            case Stop():
                self._on_stop(now_s)
        self._obey()

    def _look(self, now_s: float) -> None:
        """Handles what is late, once a second. A life whose directories were removed ends: it would take calls, and run none."""
        self._looks_s = now_s
        if gone := [str(place) for place in self._places if not place.is_dir()]:
            self.is_outlived = True
            self._log.error("directories_gone", name=",".join(gone), why="they were removed: this life ends, and another begins")
        self._work.look()
        for call in self._calls.values():
            if call.line is not None:
                self._ledger.heard(call.id, _us(now_s))
        self._ledger.due(_us(now_s))
        self._obey()
        never_ran = (call for call in self._calls.values() if call.stage in (Stage.COMING, Stage.WAITING))
        for call in [call for call in never_ran if _us(now_s) >= call.deadline_us]:
            where = "for a slot" if call.stage is Stage.WAITING else "for its arguments"
            self._end(call, serving.CallEnd(kind="TIMEOUT", error=f"it never ran: it waited {where} until its deadline"))

    def _obey(self) -> None:
        """Carries out the ledger's orders."""
        for order in self._ledger.orders():
            call = self._calls.get(order.call)
            if call is None:
                continue
            if isinstance(order, book.Kill):
                self._work.stop(call.number)
            else:
                self._forget(call)

    # -- offers

    def _on_offered(self, offer: serving.Offered, now_s: float) -> None:
        failpoint("server.offered")
        verdict = self._ledger.offered(
            offer.id,
            attempt=offer.attempt,
            lowest=offer.lowest,
            left_us=round(offer.left_s * 1e6),
            now_us=_us(now_s),
            refusal=self._refusal(offer),
        )
        self._obey()
        call = self._calls.get(offer.id)
        match verdict:
            case Refused():
                kind = "REFUSED" if verdict.again else "BARRED"
                self._metrics.count("offers", kind.lower())
                self._log.debug("call_refused", what=str(offer.id), attempt=offer.attempt, kind=kind, reason=verdict.why)
                offer.line.verdict(offer.key, kind, verdict.why)
            case book.Fetch():
                self._metrics.count("offers", "accepted")
                if call is not None:  # the arguments of an older attempt were on their way
                    self._forget(call)
                self._fetch(self._made(offer, now_s), offer)
            case book.Joined():
                self._metrics.count("offers", "joined")
                offer.line.verdict(offer.key, "JOINED")
                if call is not None:
                    call.line, call.key, call.said_bytes = offer.line, offer.key, offer.said_bytes
                    if call.stage is Stage.RUNNING:
                        offer.line.verdict(offer.key, "STARTED")
            case Ending():
                self._metrics.count("offers", "joined")
                offer.line.verdict(offer.key, "JOINED")
                if call is not None and call.end is not None:
                    call.line, call.key, call.said_bytes = offer.line, offer.key, offer.said_bytes
                    self._give(call)
                else:
                    end = serving.CallEnd(kind=_KINDS[verdict.outcome], error=verdict.why)
                    offer.line.give(offer.key, end, said_bytes=offer.said_bytes)

    def _refusal(self, offer: serving.Offered) -> Refused | None:
        """Returns why the call would be refused if it were new, or None.

        Room is promised to arguments before they come. A user who has some gets more only while a third as much stays free for others:
        so who asks for room and sends nothing holds up nobody else.
        """
        limits, free = self._limits, self._limits.spool_bytes - self.used_bytes
        if self.is_leaving:
            return Refused("it is leaving")
        function = self._function(offer)
        if function is None:
            return Refused(f"it does not offer {offer.function}{f'@{offer.version}' if offer.version else ''}")
        if function.users and offer.id.user not in function.users:
            return Refused(f"{function.interface.key} is not for {offer.id.user}", again=False)
        if not 0 < offer.size_bytes <= limits.max_bytes:
            why = f"its arguments have {offer.size_bytes:,} bytes, and 1 to {limits.max_bytes:,} are taken"
            return Refused(why, again=False)
        if offer.size_bytes > free:
            return Refused(f"its spool is full: {format_size(max(0, free))} of {format_size(limits.spool_bytes)} are free")
        if (has := self._used[offer.id.user]) and not offer.is_said and has + offer.size_bytes > _TIMES_FREE * (free - offer.size_bytes):
            why = f"calls of {offer.id.user} have {format_size(has)} of its spool, and {format_size(free)} are free for all"
            return Refused(why)
        return None

    def _function(self, offer: serving.Offered) -> Function | None:
        return self._functions.get(f"{offer.function}@{offer.version}" if offer.version else offer.function)

    def _made(self, offer: serving.Offered, now_s: float) -> _Call:
        function = self._function(offer)
        assert function is not None
        self._count += 1
        directory = self._spool / f"c{self._count}"
        deadline_us = _us(now_s) + round(offer.left_s * 1e6)
        call = _Call(offer.id, self._count, function, offer.size_bytes, deadline_us, directory, offer.attempt)
        self._calls[call.id] = self._numbers[call.number] = call
        self._use(call, call.size_bytes)
        self._load.arrived()
        return call

    def _fetch(self, call: _Call, offer: serving.Offered) -> None:
        call.line, call.key, call.said_bytes = offer.line, offer.key, offer.said_bytes
        call.coming, call.is_said = offer.key, offer.is_said
        self._coming[offer.key] = call
        offer.line.verdict(offer.key, "ACCEPTED")  # the client sends arguments while the files are made, which takes as long
        path = call.directory / offer.key.hex()
        with suppress(OSError):  # the write to the file reports the error
            call.directory.mkdir(mode=0o700)
            if offer.is_said:
                path.touch(0o600)
        if not offer.is_said:
            offer.line.take(offer.key, str(path), call.size_bytes)

    def _on_said(self, said: serving.Said, now_s: float) -> None:
        call, trouble = self._coming.get(said.key), ""
        if call is None:
            return
        path = call.directory / said.key.hex()
        try:
            path.write_bytes(said.data)
        except OSError as error:
            trouble = f"{path}: {error.strerror}"
        if len(said.data) != call.size_bytes:
            trouble = f"its arguments have {call.size_bytes:,} bytes, and {len(said.data):,} came"
        self._on_taken(serving.Taken(said.key, trouble), now_s)

    def _on_taken(self, taken: serving.Taken, now_s: float) -> None:
        call = self._coming.pop(taken.key, None)
        if call is None:
            return  # of an abandoned try
        call.coming, trouble = b"", taken.trouble
        if not trouble:
            path = call.directory / taken.key.hex()
            try:
                path.rename(call.arguments)
            except OSError as error:
                trouble = f"{path}: {error.strerror}"
        if trouble:
            self._log.info("call_without_arguments", what=str(call.id), attempt=call.attempt, why=trouble)
            self._ledger.fetch_failed(call.id, call.attempt)
            if call.line is not None:
                call.line.verdict(call.key, "REFUSED", f"its arguments did not arrive: {trouble}")
        elif self._ledger.fetched(call.id, call.attempt):
            failpoint("server.accepted")
            call.stage, call.ready_s = Stage.WAITING, now_s

    # -- running

    def _begin(self, now_s: float) -> None:
        while self._work.free and (chosen := self._ledger.start(_us(now_s))) is not None:
            self._run(self._calls[chosen], now_s)
        self._obey()

    def _run(self, call: _Call, now_s: float) -> None:
        function = call.function
        left_s, most_s = call.deadline_us / 1e6 - now_s, function.time_us / 1e6 or math.inf
        most_bytes = min(self._limits.max_bytes, max(0, self._limits.spool_bytes - self.used_bytes) + call.size_bytes)
        call.stage, call.started_s = Stage.RUNNING, now_s
        run = Run(
            number=call.number,
            name=function.interface.key,
            order=(function.call, encode_interface(function.interface), str(call.arguments), str(call.answer), most_bytes),
            environ={"RMGR_CALL_ID": str(call.id), "RMGR_SERVER_LIFE": f"{self._life:016x}"},
            limit_s=min(left_s, most_s),
            limits=f"its time limit is {format_duration(most_s)}" if most_s <= left_s else "its deadline has passed",
            memory_bytes=function.memory_bytes,
        )
        self._work.start(run)
        if call.line is not None:
            call.line.verdict(call.key, "STARTED")
        failpoint("server.running")

    def _on_ended(self, ended: Ended, now_s: float) -> None:
        call = self._numbers.get(ended.number)
        if call is None:
            return
        self._load.served(ended.ran_us / 1e6)
        if ended.kind == "OK" and _size_of(call.answer) != ended.bytes:
            ended = replace(ended, kind="FAILED", error=f"{call.function.interface.key} has spoilt the file of its answer")
        own = Ending(_OUTCOMES[ended.kind], ended.error)
        size_bytes = ended.bytes if ended.kind == "OK" else 0
        ending = self._ledger.ended(call.id, own, now_us=_us(now_s), size_bytes=size_bytes)
        if ending is None:
            self._obey()  # no client wants it
            return
        is_own = ending is own
        end = serving.CallEnd(
            kind=_KINDS[ending.outcome],
            error=ending.why[:_MOST_TEXT],
            traceback=ended.traceback[-_MOST_TEXT:] if is_own else "",
            bytes=size_bytes,
            waited_us=round((call.started_s - call.ready_s) * 1e6),
            ran_us=ended.ran_us,
        )
        self._end(call, end)

    def _end(self, call: _Call, end: serving.CallEnd) -> None:
        """Records a call's outcome, and sends it to the client that waits for it."""
        failpoint("server.ended")
        self._metrics.count("calls", end.kind.lower())
        tell = self._log.debug if end.kind == "OK" else self._log.info
        name, elapsed_s = call.function.interface.key, round(end.ran_us / 1e6, 3)
        tell("call_ended", what=str(call.id), target=name, kind=end.kind, elapsed_s=elapsed_s, reason=end.error)
        if call.coming and call.line is not None:
            call.line.drop(call.coming)
        self._coming.pop(call.coming, None)
        self._use(call, end.bytes - call.size_bytes)
        call.stage, call.end, call.coming = Stage.ENDED, end, b""
        if call.line is not None:
            self._give(call)
        remove_tree(call.arguments)
        if end.kind != "OK":
            remove_tree(call.answer)

    def _give(self, call: _Call) -> None:
        assert call.line is not None
        assert call.end is not None
        self._giving[call.key] = call
        call.line.give(call.key, call.end, str(call.answer) if call.end.kind == "OK" else "", said_bytes=call.said_bytes)

    def _on_given(self, given: serving.Given) -> None:
        call = self._giving.pop(given.key, None)
        if call is None or not given.trouble:
            return
        self._log.info("answer_not_given", what=str(call.id), why=given.trouble)
        if given.is_ours and call.end is not None and call.end.kind == "OK":
            self._lose_answer(call, call.end, given.trouble)

    def _lose_answer(self, call: _Call, end: serving.CallEnd, why: str) -> None:
        """Replaces an answer whose file is unreadable by LOST: askers learn it at once, not at the deadline. The call runs only once."""
        self._log.warning("answer_lost", what=str(call.id), why=why)
        self._use(call, -end.bytes)
        call.end = replace(end, kind="LOST", error=f"it ran, and its answer cannot be read: {why}"[:_MOST_TEXT], bytes=0)
        remove_tree(call.answer)
        if call.line is not None:
            self._give(call)

    # -- clients and gateways that leave

    def _on_acknowledged(self, message: serving.Acknowledged, now_s: float) -> None:
        mine = [one for one in self._calls if (one.user, one.guid) == (message.user, message.guid) and one.number < message.lowest]
        for one in [*mine, *(CallId(message.user, message.guid, number) for number in message.numbers)]:
            self._ledger.acknowledged(one, _us(now_s))

    def _on_parted(self, parted: serving.Parted) -> None:
        line = parted.line
        self._up.pop(line, None)
        told = self._told.setdefault(line.endpoint, set())
        if parted.why not in told and len(told) < _MOST_TOLD:  # there are two tries a second
            told.add(parted.why)
            self._log.warning("gateway_away", endpoint=line.endpoint, why=parted.why)
        for call in self._calls.values():
            if call.line is line:
                self._leave(call)

    def _leave(self, call: _Call) -> None:
        """Detaches a call from its stream. Arguments due in that stream will not come: another attempt brings them."""
        call.line, call.key = None, b""
        if call.coming and call.is_said:
            self._ledger.fetch_failed(call.id, call.attempt)

    def _on_stop(self, now_s: float) -> None:
        if self.is_leaving:
            return
        self.leaves_s = now_s + self._limits.grace_s
        self._log.info("server_leaving", running=self.running, pending=self.waiting, timeout_s=self._limits.grace_s)
        for line in self._up:
            line.leaving()

    def _forget(self, call: _Call) -> None:
        """Forgets a call and deletes its files."""
        self._calls.pop(call.id, None)
        self._numbers.pop(call.number, None)
        if call.coming and call.line is not None:
            call.line.drop(call.coming)
        self._coming.pop(call.coming, None)
        self._use(call, -(call.end.bytes if call.end is not None else call.size_bytes))
        remove_tree(call.directory)

    def _use(self, call: _Call, change: int) -> None:
        """Notes that the call takes so much more of the spool, or less."""
        self._used[call.id.user] += change
        if not self._used[call.id.user]:
            del self._used[call.id.user]

    def _is_done(self) -> bool:
        """Whether nothing runs or waits, and no answer is on its way to a client."""
        return not self._giving and not self.running and not self.waiting


def _size_of(path: Path) -> int:
    """Returns the bytes of a regular file, else -1: a function may have put anything there, or removed the file."""
    try:
        found = os.lstat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
