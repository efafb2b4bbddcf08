"""The server's owner without sockets and slots, on a clock that the test moves: its messages, their receivers and times; its load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.calls.serving import Acknowledged, Asked, Cancelled, Given, Joined, Offered, Orphaned, Outlived, Parted, Said, Taken
from rmgr.coord.calls.ledger import ABSENT_US, KEPT_US, CallId
from rmgr.daemons.server.owner import Server, ServerLimits, ServerMetrics, Stop, Worked
from rmgr.daemons.server.work import Ended, LoadMeter, Run, machine_busy_s
from rmgr.model.interface import read_functions
from rmgr.runtime import machine
from rmgr.runtime.mailbox import Mailbox

FUNCTIONS = read_functions(
    """
[[function]]
name = "echo"
call = "m:echo"
arguments = ["in data bytes", "out same bytes"]

[[function]]
name = "echo"
version = 2
call = "m:echo"
arguments = ["in data bytes", "out same bytes"]
time = "5s"

[[function]]
name = "mine"
call = "m:mine"
arguments = ["in data bytes", "out same bytes"]
users = ["bob"]
""",
    "functions.toml",
)


class Line:
    """A gateway as the owner sees it: notes what it is told."""

    def __init__(self, endpoint: str = "g1:1") -> None:
        self.endpoint = endpoint
        self.told: list[tuple[Any, ...]] = []
        self.given: list[tuple[bytes, Any, str]] = []

    def verdict(self, key: bytes, kind: str, reason: str = "") -> None:
        self.told.append((key, kind, reason))

    def kinds(self, key: bytes) -> list[str]:
        return [kind for other, kind, _ in self.told if other == key]

    def reason(self) -> str:
        return str(self.told[-1][2])

    def take(self, key: bytes, path: str, size_bytes: int) -> None:
        Path(path).write_bytes(bytes(size_bytes))

    def give(self, key: bytes, end: Any, path: str = "", *, said_bytes: int = 0) -> None:
        self.given.append((key, end, path))

    def drop(self, key: bytes) -> None:
        self.told.append((key, "drop", ""))

    def load(self, ask: int, load: Any) -> None:
        self.told.append((ask, "load", load))

    def leaving(self) -> None:
        self.told.append((b"", "leaving", ""))


class Slots:
    """`Work` in which nothing runs: the test says what ends."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.runs: dict[int, Run] = {}
        self.stopped: list[int] = []

    @property
    def free(self) -> int:
        return self.count - len(self.runs)

    def start(self, run: Run) -> None:
        self.runs[run.number] = run

    def stop(self, number: int) -> None:
        self.stopped.append(number)

    def take_in(self, ended: Any) -> list[Ended]:
        del self.runs[ended.number]
        return [ended]

    def look(self) -> None:
        pass


class Silent:
    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


class Bench:
    """The owner, on a clock of its own."""

    def __init__(self, directory: Path, *, slots: int = 1, **limits: Any) -> None:
        self.now_s = 1000.0
        self.spool = directory
        self.slots = Slots(slots)
        self.line = Line()
        self._keys = 0
        with machine.replaced(self):
            self.server = Server(
                FUNCTIONS, self.slots, directory, ServerLimits(**limits), life=7, mailbox=Mailbox(),
                load=LoadMeter(slots, slots, self.now_s, busy_s=lambda: 0.0, own_s=lambda: 0.0), metrics=ServerMetrics(), log=Silent(),
            )
        self.turn(Joined(self.line))

    def __getattr__(self, name: str) -> Any:  # the rest of the machine
        return getattr(machine, name)

    def monotonic(self) -> float:
        return self.now_s

    def turn(self, message: Any = None, after_s: float = 0.0) -> bool:
        self.now_s += after_s
        with machine.replaced(self):
            return self.server.turn(message)

    def offer(self, number: int = 1, *, line: Line | None = None, taken: bool = True, **fields: Any) -> bytes:
        """Offers a call, whose arguments arrive at once. Its key."""
        self._keys += 1
        key = self._keys.to_bytes(16, "big")
        fields = {"user": "ann", "attempt": 1, "lowest": 1, "function": "echo", "version": 0, "size_bytes": 10, "left_s": 60.0} | fields
        named = CallId(fields.pop("user"), "aa" * 16, number)
        self.turn(Offered(line=line or self.line, key=key, id=named, **fields))
        if taken:
            self.turn(Taken(key))
        return key

    def end(self, kind: str = "OK", *, answer: bytes = b"answer", **fields: Any) -> None:
        """The run that began first ends."""
        number, run = next(iter(self.slots.runs.items()))
        if kind == "OK":
            Path(str(run.order[3])).write_bytes(answer)
            fields = {"bytes": len(answer)} | fields
        self.turn(Worked((Ended(number=number, kind=kind, **fields),)))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_call_is_taken_started_and_its_answer_given(bench: Bench) -> None:
    key = bench.offer()
    assert bench.line.kinds(key) == ["ACCEPTED", "STARTED"]
    (run,) = bench.slots.runs.values()
    assert run.environ == {"RMGR_CALL_ID": f"ann/{'aa' * 16}/1", "RMGR_SERVER_LIFE": "0000000000000007"}
    assert (run.name, run.limit_s) == ("echo@2", 5.0), "the highest version, and its time"
    bench.end()
    ((given, end, path),) = bench.line.given
    assert (given, end.kind, end.bytes) == (key, "OK", 6)
    assert Path(path).read_bytes() == b"answer"
    assert not os.path.exists(str(run.order[2])), "arguments are not kept"


def test_an_answer_that_its_own_disk_does_not_give_back_is_lost_and_everybody_who_asks_hears_so(bench: Bench) -> None:
    key = bench.offer()
    bench.end()
    used = bench.server.used_bytes
    bench.turn(Given(key, False, "answer: Input/output error", is_ours=True))
    again, end, path = bench.line.given[-1]
    assert (again, end.kind, end.bytes, path) == (key, "LOST", 0, "")
    assert "Input/output error" in end.error
    assert bench.server.used_bytes == used - 6
    bench.turn(Given(key, True))
    later = bench.offer(attempt=2, taken=False)
    assert [(one[0], one[1].kind) for one in bench.line.given[2:]] == [(later, "LOST")]
    assert not bench.slots.runs, "it does not run again"


def test_a_line_that_breaks_while_an_answer_is_given_loses_nothing(bench: Bench) -> None:
    bench.turn(Given(bench.offer(), False, "it was not ended yet"))  # of a try that gave nothing
    bench.end()
    bench.turn(Given(bench.line.given[-1][0], False, "the line to the gateway is lost"))
    later = bench.offer(attempt=2, taken=False)
    assert (bench.line.given[-1][0], bench.line.given[-1][1].kind) == (later, "OK")


def test_arguments_that_come_in_the_stream_begin_a_call_and_those_that_do_not_come_hold_no_place(bench: Bench) -> None:
    key = bench.offer(1, taken=False, is_said=True)
    bench.turn(Said(key, bytes(10)))
    assert bench.line.kinds(key) == ["ACCEPTED", "STARTED"]
    assert Path(str(next(iter(bench.slots.runs.values())).order[2])).read_bytes() == bytes(10)
    bench.turn(Said(key, bytes(10)))  # nobody waits for it
    short = bench.offer(2, taken=False, is_said=True)
    bench.turn(Said(short, bytes(9)))
    assert (bench.line.kinds(short), "10 bytes, and 9 came" in bench.line.reason()) == (["ACCEPTED", "REFUSED"], True)
    for attempt, gone in enumerate((Orphaned(bench.line, CallId("ann", "aa" * 16, 3)), Parted(bench.line, "gone", True)), 1):
        bench.offer(3, taken=False, is_said=True, attempt=attempt)
        assert bench.server.waiting == 1
        bench.turn(gone)
        assert (bench.server.waiting, len(os.listdir(bench.spool))) == (0, 1)


def test_slots_are_taken_in_the_order_in_which_arguments_are_complete(bench: Bench) -> None:
    bench.offer(1)
    second, third = bench.offer(2, taken=False), bench.offer(3)
    bench.turn(Taken(second))
    bench.end()
    assert "STARTED" in bench.line.kinds(third)
    assert "STARTED" not in bench.line.kinds(second)


def test_its_answer_goes_to_the_try_that_asked_last(bench: Bench) -> None:
    other = Line("g2:1")
    bench.turn(Joined(other))
    bench.offer(1)
    again = bench.offer(1, line=other, attempt=2, taken=False)
    assert other.kinds(again) == ["JOINED", "STARTED"]
    bench.end()
    assert (bench.line.given, [key for key, _, _ in other.given]) == ([], [again])
    late = bench.offer(1, attempt=3, taken=False)
    assert [key for key, _, _ in bench.line.given] == [late], "and is kept"


def test_arguments_that_do_not_come_refuse_this_attempt_and_not_the_next(bench: Bench) -> None:
    key = bench.offer(1, taken=False)
    bench.turn(Taken(key, "the line broke"))
    assert bench.line.kinds(key) == ["ACCEPTED", "REFUSED"]
    assert bench.line.kinds(bench.offer(1, taken=False)) == ["REFUSED"]
    assert bench.line.kinds(bench.offer(1, attempt=2)) == ["ACCEPTED", "STARTED"]
    assert bench.server.used_bytes == 10


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"function": "none"}, "REFUSED", "it does not offer none"),
        ({"function": "echo", "version": 3}, "REFUSED", "it does not offer echo@3"),
        ({"function": "mine"}, "BARRED", "mine@1 is not for ann"),
        ({"size_bytes": 51}, "BARRED", "its arguments have 51 bytes, and 1 to 50 are taken"),
        ({"size_bytes": 0}, "BARRED", "its arguments have 0 bytes, and 1 to 50 are taken"),
    ],
)
def test_what_it_does_not_take_is_refused(tmp_path: Path, fields: dict[str, Any], kind: str, words: str) -> None:
    bench = Bench(tmp_path, max_bytes=50)
    assert bench.line.kinds(bench.offer(taken=False, **fields)) == [kind]
    assert bench.line.reason() == words


def test_a_full_server_refuses(tmp_path: Path) -> None:
    bench = Bench(tmp_path, most_waiting=2, per_user=1)
    bench.offer(20)
    bench.offer(21)
    assert bench.line.kinds(bench.offer(22, taken=False)) == ["REFUSED"]
    assert "calls of ann wait" in bench.line.reason()
    bench.offer(23, user="bob")
    assert bench.line.kinds(bench.offer(24, user="eve", taken=False)) == ["REFUSED"]
    assert "calls wait here" in bench.line.reason()


def test_a_full_spool_refuses_until_answers_are_acknowledged(tmp_path: Path) -> None:
    bench = Bench(tmp_path, spool_bytes=100)
    bench.offer(1)
    bench.end(answer=bytes(95))
    assert bench.line.kinds(bench.offer(2, taken=False)) == ["REFUSED"]
    assert "spool is full" in bench.line.reason()
    bench.turn(Acknowledged("ann", "aa" * 16, 1, (1,)))
    assert bench.server.used_bytes == 0
    assert bench.line.kinds(bench.offer(3, taken=False)) == ["ACCEPTED"]
    assert list(tmp_path.iterdir()) != []


def test_who_asks_for_room_and_sends_nothing_leaves_room_to_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, spool_bytes=100, max_bytes=100)
    asked = [bench.line.kinds(bench.offer(number, size_bytes=25, taken=False, left_s=1e6)) for number in (1, 2, 3, 4)]
    assert asked == [["ACCEPTED"], ["ACCEPTED"], ["ACCEPTED"], ["REFUSED"]]
    assert bench.line.reason() == "calls of ann have 75 of its spool, and 25 are free for all"
    assert bench.line.kinds(bench.offer(5, size_bytes=1, taken=False, is_said=True)) == ["ACCEPTED"]  # so small that it holds nobody up
    assert bench.line.kinds(bench.offer(6, user="bob", size_bytes=24)) == ["ACCEPTED", "STARTED"]
    bench.end(answer=b"")
    bench.turn(Acknowledged("bob", "aa" * 16, 6, (6,)))
    for number in (1, 2, 3, 5):
        bench.turn(Cancelled(CallId("ann", "aa" * 16, number)))
    assert bench.server.used_bytes == 0
    assert bench.line.kinds(bench.offer(7, size_bytes=100)) == ["ACCEPTED", "STARTED"]  # all of it, if nobody has any


def test_a_cancelled_call_is_killed_and_nothing_of_it_is_left(bench: Bench, tmp_path: Path) -> None:
    bench.offer(1)
    waiting = bench.offer(2)
    bench.turn(Cancelled(CallId("ann", "aa" * 16, 2)))
    bench.turn(Cancelled(CallId("ann", "aa" * 16, 1)))
    assert bench.slots.stopped == [1]
    bench.end("CANCELLED")
    assert (bench.line.given, bench.slots.runs, list(tmp_path.iterdir())) == ([], {}, [])
    assert bench.line.kinds(waiting) == ["ACCEPTED"]
    assert bench.line.kinds(bench.offer(2, attempt=9, taken=False)) == ["BARRED"]


def test_a_call_whose_client_is_gone_is_killed_after_30_seconds(bench: Bench) -> None:
    bench.offer(1, left_s=600.0)
    bench.turn(Orphaned(bench.line, CallId("ann", "aa" * 16, 1)))
    bench.turn(after_s=ABSENT_US / 1e6 - 2)
    assert bench.slots.stopped == []
    bench.turn(after_s=3.0)
    assert bench.slots.stopped == [1]
    bench.end("CANCELLED", error="stopped")
    assert bench.line.given == []
    late = bench.offer(1, attempt=2, taken=False)
    ((key, end, _),) = bench.line.given
    assert (key, end.kind) == (late, "LOST"), "it may have run: it does not run again"


def test_a_call_that_is_asked_for_at_another_gateway_lives_on(bench: Bench) -> None:
    other = Line("g2:1")
    bench.turn(Joined(other))
    bench.offer(1, left_s=600.0)
    bench.turn(Parted(bench.line, "cut", was_up=True))
    bench.turn(after_s=20.0)
    bench.offer(1, line=other, attempt=2, taken=False)
    for _ in range(60):
        bench.turn(after_s=1.0)
    assert bench.slots.stopped == []


def test_a_call_that_waits_until_its_deadline_never_runs(bench: Bench) -> None:
    bench.offer(1, left_s=600.0)
    waiting = bench.offer(2, left_s=5.0)
    bench.turn(after_s=6.0)
    ((key, end, _),) = bench.line.given
    assert (key, end.kind) == (waiting, "TIMEOUT")
    assert "never ran" in end.error
    bench.end()
    assert bench.slots.runs == {}


def test_a_call_that_runs_has_what_is_left_of_its_time(bench: Bench) -> None:
    bench.offer(1, left_s=3.0)
    (run,) = bench.slots.runs.values()
    assert (run.limit_s, run.limits) == (pytest.approx(3.0), "its deadline has passed")


def test_an_answer_that_nobody_fetches_is_lost_after_10_minutes(bench: Bench, tmp_path: Path) -> None:
    bench.offer(1)
    bench.end()
    bench.turn(after_s=KEPT_US / 1e6 + 1)
    assert list(tmp_path.iterdir()) == []
    bench.offer(1, attempt=2, taken=False)
    assert bench.line.given[-1][1].kind == "LOST"
    assert bench.slots.runs == {}


def test_a_spoilt_answer_fails_the_call(bench: Bench) -> None:
    bench.offer(1)
    bench.end(answer=b"short", bytes=1000)
    assert bench.line.given[-1][1].kind == "FAILED"
    assert "spoilt" in bench.line.given[-1][1].error


@pytest.mark.parametrize("kind", ["OK", "FAILED"])
def test_a_function_that_leaves_a_directory_in_place_of_its_answer_ends_its_own_call_alone(bench: Bench, kind: str) -> None:
    bench.offer(1)
    (number, run), *_ = bench.slots.runs.items()
    (Path(str(run.order[3])) / "deep").mkdir(parents=True)
    Path(str(run.order[2])).unlink()
    Path(str(run.order[2])).mkdir()
    bench.turn(Worked((Ended(number=number, kind=kind, bytes=5),)))
    assert bench.line.given[-1][1].kind == "FAILED"
    assert not Path(str(run.order[3])).exists()
    bench.offer(2)
    bench.end()
    assert bench.line.given[-1][1].kind == "OK"


def test_its_load_is_told_to_who_asks(bench: Bench) -> None:
    bench.offer(1)
    bench.offer(2)
    bench.turn(Asked(bench.line, 5), after_s=10.0)
    ask, _, load = bench.line.told[-1]
    assert (ask, load.running, load.waiting, load.mean_load) == (5, 1, 1, pytest.approx(2.0))


def test_it_leaves_when_what_it_has_is_done_and_given(bench: Bench) -> None:
    key = bench.offer(1)
    assert bench.turn(Stop())
    assert bench.line.told[-1][1] == "leaving"
    assert bench.line.kinds(bench.offer(2, taken=False)) == ["REFUSED"]
    later = Line("g2:1")
    assert bench.turn(Joined(later))
    assert later.told == [(b"", "leaving", "")]
    bench.end()
    assert bench.turn(), "the answer is on its way"
    assert not bench.turn(Given(key, is_taken=True))


def test_a_life_that_gateways_have_given_up_ends_at_once(bench: Bench) -> None:
    bench.offer(1)
    assert not bench.turn(Outlived(bench.line, "it was silent for too long"))
    assert bench.server.is_outlived


def test_a_life_whose_spool_was_removed_ends_within_a_second(bench: Bench, tmp_path: Path) -> None:
    assert bench.turn(after_s=1.0)
    bench.spool.rmdir()
    assert not bench.turn(after_s=1.0)
    assert bench.server.is_outlived, "another one begins, with directories of its own"


def test_it_leaves_at_the_end_of_its_grace(tmp_path: Path) -> None:
    bench = Bench(tmp_path, grace_s=2.0)
    bench.offer(1)
    assert bench.turn(Stop())
    assert bench.turn(after_s=1.0)
    assert not bench.turn(after_s=1.5)


class Clocks:
    busy = 0.0
    own = 0.0


def meter(slots: int = 2, cores: int = 4) -> tuple[LoadMeter, Clocks]:
    clocks = Clocks()
    return LoadMeter(slots, cores, 0.0, busy_s=lambda: clocks.busy, own_s=lambda: clocks.own), clocks


@pytest.mark.parametrize(
    ("busy", "own", "other"),
    [
        (0.0, 0.0, 0.0),
        (20.0, 0.0, 0.0),  # two cores of others, and two that are no slots
        (30.0, 0.0, 1.0),
        (40.0, 20.0, 0.0),  # all are busy, two of them with calls
        (40.0, 10.0, 1.0),
    ],
)
def test_other_work_counts_beyond_the_cores_that_are_no_slots(busy: float, own: float, other: float) -> None:
    load, clocks = meter()
    clocks.busy, clocks.own = busy, own
    assert load.now(10.0, 0, 0, "g1").other == pytest.approx(other)


def test_between_two_looks_the_last_one_holds_and_a_slot_that_is_lost_takes_nothing_back() -> None:
    load, clocks = meter(slots=1, cores=1)
    clocks.busy, clocks.own = 10.0, 5.0
    assert load.now(10.0, 0, 0, "g1").other == pytest.approx(0.5)
    clocks.busy = 100.0
    assert load.now(10.1, 0, 0, "g1").other == pytest.approx(0.5)
    clocks.busy, clocks.own = 15.0, 0.0
    assert load.now(20.0, 0, 0, "g1").other == pytest.approx(0.5)


def test_the_mean_load_is_since_the_same_gateway_asked() -> None:
    load, _ = meter()
    load.changed(0.0, 2)
    load.changed(5.0, 4)
    assert load.now(10.0, 3, 1, "g1").mean_load == pytest.approx(3.0)
    assert load.now(20.0, 3, 1, "g1").mean_load == pytest.approx(4.0)
    assert load.now(20.0, 3, 1, "g2").mean_load == pytest.approx(3.5)


def test_arrivals_and_service_times_are_since_the_start() -> None:
    load, _ = meter()
    for seconds in (1.0, 3.0):
        load.arrived()
        load.served(seconds)
    told = load.now(10.0, 0, 0, "g1")
    assert (told.arrivals_per_s, told.service_s, told.service_cv) == (pytest.approx(0.2), pytest.approx(2.0), pytest.approx(0.5))


def test_the_machine_says_how_busy_it_was() -> None:
    before = machine_busy_s()
    assert before is None or 0.0 < before <= (machine_busy_s() or 0.0)
