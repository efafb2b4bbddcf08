"""A real server of calls with a gateway played by the test: what the server runs, how often, and how it reports that it cannot."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from rmgr.model import arrays
from rmgr.model.arrays import fit_inputs
from rmgr.model.interface import Interface, decode_interface, read_functions
from rmgr.v1 import calls_pb2 as pb
from tests.harness.calls_gateway import PlayedGateway, ServerProcess, executions
from tests.harness.fair_time import undisturbed
from tests.harness.waiting import eventually

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="servers run Linux")

MODULE = '''
import os, sys, time, signal

def note(word):
    fd = os.open(os.environ["EXECUTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{word} {os.environ['RMGR_CALL_ID']} {os.environ['RMGR_SERVER_LIFE']}\\n".encode())
    os.close(fd)

def add(a, b):
    note("add")
    return a + b

def scale(v):
    v *= 2
    return v

def sleep(seconds):
    note("sleep")
    time.sleep(seconds)
    return seconds

def wait_for(path):
    note("wait_for")
    while not os.path.exists(path):
        time.sleep(0.01)
    return 1

def exits(code):
    note("exits")
    os._exit(code)

def leaves(code):
    sys.exit(code)

def crashes(n):
    note("crashes")
    os.abort()

def fills(n):
    note("fills")
    kept = []
    while True:
        kept.append(bytearray(b"x") * (8 << 20))
        time.sleep(0.002)

def hangs(n):
    note("hangs")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.1)

def raises(n):
    note("raises")
    raise ValueError(f"{n} is not to my liking")

def length(data):
    return data
'''
FUNCTIONS = "".join(
    f'[[function]]\nname = "{name}"\ncall = "mine:{call}"\narguments = {arguments}\noperations = "1"\n{more}\n'
    for name, call, arguments, more in (
        ("add", "add", '["in a float64[n]", "in b float64[n]", "out c float64[n]"]', ""),
        ("scale", "scale", '["inout v float64[n]"]', ""),
        ("sleep", "sleep", '["in seconds float", "out s float"]', ""),
        ("wait_for", "wait_for", '["in path str", "out n int"]', ""),
        ("brief", "sleep", '["in seconds float", "out s float"]', 'time = "1s"'),
        ("exits", "exits", '["in code int", "out n int"]', ""),
        ("leaves", "leaves", '["in code int", "out n int"]', ""),
        ("crashes", "crashes", '["in n int", "out m int"]', ""),
        ("fills", "fills", '["in n int", "out m int"]', 'memory = "300M"'),
        ("hangs", "hangs", '["in n int", "out m int"]', 'time = "1s"'),
        ("raises", "raises", '["in n int", "out m int"]', ""),
        ("length", "length", '["in data bytes", "out same bytes"]', ""),
        ("bobs", "length", '["in data bytes", "out same bytes"]', 'users = ["bob"]'),
    )
)


INTERFACES: dict[str, Interface] = {one.interface.name: one.interface for one in read_functions(FUNCTIONS, "functions.toml")}


def packed(function: str | Interface, *values: Any) -> bytes:
    """Arguments as they travel."""
    interface = function if isinstance(function, Interface) else INTERFACES[function]
    return b"".join(map(bytes, arrays.encode(fit_inputs(interface, values).values)))


def answer(data: bytes) -> Any:
    """One output as it is."""
    values = arrays.decode(data)
    return values[0] if len(values) == 1 else values


class Rig:
    """A gateway, a server, and the file of executions."""

    def __init__(self, directory: Path, *options: str, slots: int = 2) -> None:
        self.directory = directory
        self.executions = directory / "executions"
        (directory / "mine.py").write_text(MODULE)
        self.gateway = PlayedGateway()
        self.server = ServerProcess(
            directory,
            self.gateway.endpoint,
            *("--slots", str(slots), "--speed", "100", *options),
            functions=FUNCTIONS,
            environment={"EXECUTIONS": str(self.executions)},
        )

    def __enter__(self) -> Self:
        try:
            eventually(lambda: self.gateway.streams or not self.server.is_alive(), self.server.log)
            assert self.server.is_alive(), self.server.log()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()
        self.gateway.stop()

    def load(self) -> Any:
        """Its load just now."""
        ask = int.from_bytes(os.urandom(7), "big")
        self.gateway.tell(ask=ask)
        return eventually(lambda: next((one for one in self.gateway.streams[-1].loads() if one.ask == ask), None))

    def ran(self, word: str) -> int:
        """How often this function began."""
        return sum(line.startswith(f"{word} ") for line in executions(self.executions))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One server for what leaves it as it was."""
    with Rig(tmp_path_factory.mktemp("server")) as rig:
        yield rig


# -- what it says of itself, and of its load -----------------------------------------------------------------------------------


def test_it_says_hello_and_tells_its_load(shared: Rig) -> None:
    hello = shared.gateway.stream().hello
    assert (hello.name, hello.slots, hello.mops, hello.mops_declared, hello.most_waiting) == ("s1", 2, 100.0, True, 100)
    assert hello.life
    assert len(hello.functions) == 13
    assert [(one.function, list(one.users)) for one in hello.users] == [("bobs@1", ["bob"])]
    load = shared.load()
    assert (load.running, load.waiting) == (0, 0)
    assert load.other >= 0.0


def test_a_probe_is_taken_and_given_back(shared: Rig) -> None:
    key = os.urandom(16)
    shared.gateway.probes[key] = 100_000
    shared.gateway.tell(probe=pb.Probe(key=key, bytes=100_000))
    assert eventually(lambda: shared.gateway.probed.get(key)) == 100_000


# -- calls that end well --------------------------------------------------------------------------------------------------------


def test_arrays_go_in_and_come_out(shared: Rig) -> None:
    one = shared.gateway.offer("add", packed("add", np.arange(5.0), np.ones(5)))
    assert one.ended() == "OK", one.outcome
    eventually(lambda: one.said("ACCEPTED", "STARTED"), "the answer has come on another stream")
    found = answer(one.answer)
    assert found.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert one.outcome.bytes == len(one.answer)
    assert one.outcome.ran_us > 0


def test_an_answer_for_which_there_is_room_goes_into_the_stream(shared: Rig) -> None:
    stream = shared.gateway.streams[-1]

    def said() -> list[bytes]:
        return [message.answer.key for message in stream.messages if message.WhichOneof("what") == "answer"]

    small, large = (shared.gateway.offer("length", packed("length", bytes(count)), said_bytes=room) for count, room in ((8, 4096), (9, 8)))
    assert [answer(one.answer) for one in (small, large) if one.ended() == "OK"] == [bytes(8), bytes(9)]
    assert small.key in said()
    assert large.key not in said()


def test_a_function_may_change_what_it_was_given_in_place(shared: Rig) -> None:
    one = shared.gateway.offer("scale", packed("scale", np.arange(3.0)))
    assert one.ended() == "OK", one.outcome
    assert answer(one.answer).tolist() == [0.0, 2.0, 4.0]


def test_64_MiB_go_in_and_come_out(shared: Rig) -> None:
    data = os.urandom(1 << 20) * 64
    one = shared.gateway.offer("length", packed("length", data))
    assert one.ended() == "OK", one.outcome
    assert answer(one.answer) == data


def test_a_call_that_is_offered_twice_is_executed_once(shared: Rig) -> None:
    before, one_id = shared.ran("wait_for"), ("ann", os.urandom(16), 1)
    go = shared.directory / "go-twice"
    first = shared.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id)
    eventually(lambda: first.said("STARTED"))
    second = shared.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id, attempt=2)
    assert second.verdict() == "JOINED"
    eventually(lambda: second.said("STARTED"))
    go.touch()
    assert second.ended() == "OK"
    assert not first.is_answered.is_set(), "the answer goes to who asked last"
    third = shared.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id, attempt=3)
    assert third.ended() == "OK", "the answer is kept until it is acknowledged"
    assert (second.takes, third.takes) == (0, 0)
    assert shared.ran("wait_for") == before + 1


@pytest.mark.parametrize("room", [0, 4096])
def test_an_answer_that_cannot_be_read_any_more_is_told_as_lost_and_the_call_does_not_run_again(shared: Rig, room: int) -> None:
    before, one_id = shared.ran("wait_for"), ("ann", os.urandom(16), 1)
    arguments = packed("wait_for", str(shared.directory))
    kept = set((shared.directory / "spool").rglob("answer"))
    assert shared.gateway.offer("wait_for", arguments, id=one_id).ended() == "OK"
    (file,) = set((shared.directory / "spool").rglob("answer")) - kept
    file.unlink()
    file.mkdir()
    for attempt in (2, 3):
        again = shared.gateway.offer("wait_for", arguments, id=one_id, attempt=attempt, said_bytes=room)
        assert again.ended() == "LOST", again.outcome
        assert "its answer cannot be read" in again.outcome.error
    assert shared.ran("wait_for") == before + 1


def test_a_call_that_is_acknowledged_is_not_executed_again(shared: Rig) -> None:
    guid, before = os.urandom(16), shared.ran("add")
    one = shared.gateway.offer("add", packed("add", np.ones(1), np.ones(1)), id=("ann", guid, 1))
    assert one.ended() == "OK"
    shared.gateway.tell(closed=pb.Closed(user="ann", guid=guid, lowest=1, numbers=[1]))
    late = shared.gateway.offer("add", packed("add", np.ones(1), np.ones(1)), id=("ann", guid, 1))
    assert late.verdict() == "BARRED"
    below = shared.gateway.offer("add", packed("add", np.ones(1), np.ones(1)), id=("ann", guid, 2), lowest=3)
    assert below.verdict() == "BARRED"
    assert shared.ran("add") == before + 1


def test_arguments_that_break_off_leave_nothing_and_may_come_again(shared: Rig) -> None:
    one_id, data = ("ann", os.urandom(16), 1), packed("length", b"x" * 100)
    cut = shared.gateway.offer("length", data[:50], id=one_id, size=len(data))
    eventually(lambda: cut.said("ACCEPTED", "REFUSED"))
    assert "50 came" in cut.verdicts[-1].reason
    assert shared.gateway.offer("length", data, id=one_id).verdict() == "REFUSED", "a late copy"
    assert shared.gateway.offer("length", data, id=one_id, attempt=2).ended() == "OK"
    assert cut.takes == 1


def test_a_call_that_is_offered_again_while_its_arguments_come_takes_them_anew(shared: Rig) -> None:
    import threading

    one_id, data = ("ann", os.urandom(16), 1), packed("length", b"y" * 3_000_000)
    held = shared.gateway.offer("length", data, id=one_id, hold=threading.Event())
    eventually(lambda: held.takes)
    again = shared.gateway.offer("length", data, id=one_id, attempt=2)
    assert again.ended() == "OK"
    assert not held.is_answered.is_set()


# -- calls that do not ---------------------------------------------------------------------------------------------------------


def test_a_function_that_raises_is_told_with_its_traceback(shared: Rig) -> None:
    one = shared.gateway.offer("raises", packed("raises", 7))
    assert one.ended() == "FAILED"
    assert one.outcome.error == "ValueError: 7 is not to my liking"
    assert "mine.py" in one.outcome.traceback
    assert "served.py" not in one.outcome.traceback


@pytest.mark.parametrize(
    ("function", "word"),
    [
        ("exits", "exit code 3"),
        ("leaves", "SystemExit: 3"),
        ("crashes", "SIGABRT"),
        ("fills", "it used more memory than its 300"),
    ],
)
def test_a_function_that_ends_its_process_fails_alone(shared: Rig, function: str, word: str) -> None:
    beside = shared.gateway.offer("sleep", packed("sleep", 1.0))
    one = shared.gateway.offer(function, packed(function, 3))
    assert one.ended() == "FAILED"
    assert word in one.outcome.error
    assert beside.ended() == "OK"
    assert shared.gateway.offer("sleep", packed("sleep", 0.0)).ended() == "OK"
    assert shared.server.is_alive()


@pytest.mark.parametrize("function", ["brief", "hangs"])
def test_a_function_is_killed_at_its_time_limit(shared: Rig, function: str) -> None:
    one = shared.gateway.offer(function, packed(function, 60))
    assert one.ended() == "TIMEOUT"
    assert "its time limit is 1s" in one.outcome.error


def test_a_call_is_killed_at_its_deadline(shared: Rig) -> None:
    one = shared.gateway.offer("sleep", packed("sleep", 60.0), left_s=1.5)
    assert one.ended() == "TIMEOUT"
    assert "its deadline" in one.outcome.error


def test_a_call_is_cancelled_while_it_runs_and_before_it_comes(shared: Rig) -> None:
    guid, before = os.urandom(16), shared.ran("sleep")
    one = shared.gateway.offer("sleep", packed("sleep", 60.0), id=("ann", guid, 1))
    eventually(lambda: shared.ran("sleep") == before + 1)
    shared.gateway.tell(cancel=pb.CallId(user="ann", guid=guid, number=1))
    eventually(lambda: shared.load().running == 0)
    assert not one.is_answered.is_set(), "nobody wants its answer"
    shared.gateway.tell(cancel=pb.CallId(user="ann", guid=guid, number=2))
    assert shared.gateway.offer("sleep", packed("sleep", 0.0), id=("ann", guid, 2)).verdict() == "BARRED"
    assert shared.ran("sleep") == before + 1


def test_what_it_does_not_offer_is_refused(shared: Rig) -> None:
    assert shared.gateway.offer("nothing", b"x").verdict() == "REFUSED"
    assert shared.gateway.offer("add", b"x", version=9).verdict() == "REFUSED"
    assert shared.gateway.offer("add", b"", size=(1 << 30) + 1).verdict() == "BARRED"
    assert shared.gateway.offer("bobs", packed("bobs", b"x")).verdict() == "BARRED", "it is not for ann"


def test_arguments_that_are_none_fail_the_call_alone(shared: Rig) -> None:
    one = shared.gateway.offer("add", os.urandom(100))
    assert one.ended() == "FAILED"


# -- limits ----------------------------------------------------------------------------------------------------------------------


def test_a_full_server_refuses_for_ever_but_takes_a_later_attempt_when_there_is_room(tmp_path: Path) -> None:
    with Rig(tmp_path, "--most-waiting", "1", "--per-user", "3", slots=1) as rig:
        go = tmp_path / "go"
        first = rig.gateway.offer("wait_for", packed("wait_for", str(go)))
        eventually(lambda: first.said("STARTED"))
        second = rig.gateway.offer("wait_for", packed("wait_for", str(go)))
        assert second.verdict() == "ACCEPTED"
        one_id = ("bob", os.urandom(16), 1)
        third = rig.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id)
        assert third.verdict() == "REFUSED"
        assert third.verdicts[0].reason == "1 calls wait here"
        go.touch()
        assert [first.ended(), second.ended()] == ["OK", "OK"]
        assert second.outcome.waited_us > 0
        assert third.takes == 0
        assert rig.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id).verdict() == "REFUSED", "a late copy"
        assert rig.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id, attempt=2).ended() == "OK"
        assert rig.ran("wait_for") == 3


def test_a_user_has_only_so_many_calls_and_a_full_spool_refuses(tmp_path: Path) -> None:
    with Rig(tmp_path, "--per-user", "1", "--spool-cap", "100K", slots=1) as rig:
        go = tmp_path / "go"
        first = rig.gateway.offer("wait_for", packed("wait_for", str(go)))
        eventually(lambda: first.said("STARTED"))
        assert rig.gateway.offer("wait_for", packed("wait_for", str(go))).verdict() == "ACCEPTED"
        mine = rig.gateway.offer("wait_for", packed("wait_for", str(go)))
        assert mine.verdict() == "REFUSED"
        assert mine.verdicts[0].reason == "1 calls of ann wait here"
        large = rig.gateway.offer("length", packed("length", b"x" * 200_000), id=("bob", os.urandom(16), 1))
        assert large.verdict() == "REFUSED"
        assert "spool is full" in large.verdicts[0].reason
        small = rig.gateway.offer("length", packed("length", b"x" * 50_000), id=("bob", os.urandom(16), 2))
        assert small.verdict() == "ACCEPTED"
        go.touch()
        assert small.ended() == "OK"


@pytest.fixture
def small_spool(tmp_path: Path) -> Iterator[Path]:
    """A directory whose spool has 12 MiB."""
    spool, mount, unmount = tmp_path / "spool", shutil.which("mount"), shutil.which("umount")
    spool.mkdir()
    if not mount or not unmount or subprocess.run([mount, "-t", "tmpfs", "-o", "size=12m", "none", spool], check=False).returncode:
        pytest.skip("no small file system can be mounted")
    try:
        yield tmp_path
    finally:
        subprocess.run([unmount, "-l", spool], check=True)


@undisturbed  # a gateway that is played offers nothing again
def test_a_disk_that_is_full_costs_the_call_that_fills_it_and_no_other(small_spool: Path) -> None:
    with Rig(small_spool, slots=1) as rig:
        large = rig.gateway.offer("length", packed("length", bytes(20 << 20)))
        eventually(lambda: large.said("ACCEPTED", "REFUSED"))
        assert "No space left on device" in large.verdicts[-1].reason
        answered = rig.gateway.offer("length", packed("length", bytes(8 << 20)))
        assert answered.ended() == "FAILED"
        assert "No space left on device" in answered.outcome.error
        assert rig.gateway.offer("length", packed("length", bytes(2 << 20))).ended() == "OK", "all room is free again"
        assert rig.server.is_alive()


# -- ends and lost gateways ---------------------------------------------------------------------------------------------------------


def test_sigterm_finishes_what_runs_and_takes_nothing_new(tmp_path: Path) -> None:
    with Rig(tmp_path, slots=1) as rig:
        go = tmp_path / "go"
        running = rig.gateway.offer("wait_for", packed("wait_for", str(go)))
        eventually(lambda: running.said("STARTED"))
        rig.server.signal(signal.SIGTERM)
        stream = rig.gateway.streams[-1]
        eventually(stream.is_leaving)
        refused = rig.gateway.offer("sleep", packed("sleep", 0.0))
        assert refused.verdict() == "REFUSED"
        assert "leaving" in refused.verdicts[0].reason
        go.touch()
        assert running.ended() == "OK"
        assert rig.server.wait() == 0
        eventually(lambda: stream.is_over)
        assert stream.said_over()
        assert not list((tmp_path / "spool").glob("*/*"))


def test_sigterm_ends_within_its_grace(tmp_path: Path) -> None:
    with Rig(tmp_path, "--stop-grace", "1s", slots=1) as rig:
        running = rig.gateway.offer("sleep", packed("sleep", 600.0))
        eventually(lambda: rig.ran("sleep"))
        rig.server.signal(signal.SIGTERM)
        assert rig.server.wait() == 0
        assert not running.is_answered.is_set()
        eventually(lambda: rig.gateway.stream().is_over)
        assert rig.gateway.stream().said_over()


def test_a_gateway_that_is_killed_comes_back_and_the_same_call_is_the_same(tmp_path: Path) -> None:
    with Rig(tmp_path, slots=1) as rig:
        go, one_id = tmp_path / "go", ("ann", os.urandom(16), 1)
        first = rig.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id)
        eventually(lambda: first.said("STARTED"))
        life = rig.gateway.stream().hello.life
        port = rig.gateway.port
        rig.gateway.stop()
        eventually(lambda: rig.server.lines("gateway_away"))
        rig.gateway = PlayedGateway(port)
        again = rig.gateway.stream()
        assert again.hello.life == life
        second = rig.gateway.offer("wait_for", packed("wait_for", str(go)), id=one_id, attempt=2)
        assert second.verdict() == "JOINED"
        go.touch()
        assert second.ended() == "OK"
        assert rig.ran("wait_for") == 1


def test_a_gateway_that_says_nothing_is_left_and_dialled_again(tmp_path: Path) -> None:
    with Rig(tmp_path, slots=1) as rig:
        first = rig.gateway.stream()
        rig.gateway.is_mute = True
        eventually(lambda: first.is_over, rig.server.log)
        rig.gateway.stream(2)
        assert any("said nothing for 10s" in line["why"] for line in rig.server.lines("gateway_away"))
        assert first.beats() >= 2


def test_a_life_that_gateways_have_given_up_ends_what_it_has_and_another_begins(tmp_path: Path) -> None:
    with Rig(tmp_path, slots=1) as rig:
        running = rig.gateway.offer("sleep", packed("sleep", 600.0))
        eventually(lambda: rig.ran("sleep"))
        first = rig.gateway.stream()
        rig.gateway.tell(welcome=pb.ServerWelcome(version=1, refused="it was silent for too long", over=True))
        second = rig.gateway.stream(2)
        assert second.hello.life != first.hello.life
        assert second.hello.name == first.hello.name
        eventually(lambda: first.is_over)
        one = rig.gateway.offer("sleep", packed("sleep", 0.0))
        assert one.ended() == "OK"
        assert not running.is_answered.is_set()
        lives = [line.split()[2] for line in executions(rig.executions)]
        assert lives == [f"{stream.hello.life:016x}" for stream in (first, second)]
        rig.server.signal(signal.SIGTERM)
        assert rig.server.wait() == 0


def test_a_server_whose_directories_were_removed_begins_anew_and_takes_no_call_that_it_cannot_run(tmp_path: Path) -> None:
    with Rig(tmp_path, slots=1) as rig:
        first = rig.gateway.stream()
        shutil.rmtree(tmp_path / "spool", ignore_errors=True)  # its workers may just make a directory there
        second = rig.gateway.stream(2)
        assert second.hello.life != first.hello.life
        assert rig.gateway.offer("sleep", packed("sleep", 0.0)).ended() == "OK"
        (gone,) = rig.server.lines("directories_gone")
        assert str(tmp_path / "spool" / "calls") in gone["name"]


# -- at the start ------------------------------------------------------------------------------------------------------------------


def test_functions_that_cannot_be_called_are_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    text = FUNCTIONS.replace("mine:length", "mine:absent")
    with ServerProcess(tmp_path, "127.0.0.1:1", "--speed", "1", functions=text) as server:
        assert server.wait() == 2
        assert "function length: mine:absent cannot be called" in server.log()


def test_without_a_speed_it_measures_linpack_and_offers_the_shipped_functions(tmp_path: Path) -> None:
    with PlayedGateway() as gateway, ServerProcess(tmp_path, gateway.endpoint, "--slots", "1") as server:
        hello = eventually(lambda: gateway.streams, server.log)[0].hello
        assert hello.mops > 1
        assert not hello.mops_declared
        offered = {one.name: one for one in map(decode_interface, hello.functions)}
        assert sorted(offered) == ["echo", "linpack", "linsolve", "model"]
        assert offered["linpack"].cost({"n": 600}) == (144_720_000, 2_892_000)

        def called(name: str, *values: Any) -> Any:
            one = gateway.offer(name, packed(offered[name], *values))
            assert one.ended() == "OK", one.outcome
            return answer(one.answer)

        matrix, right = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 5.0])
        assert called("linsolve", matrix, right) == pytest.approx([0.8, 1.4])
        solved, pivots = called("linpack", matrix, right)
        assert solved == pytest.approx([0.8, 1.4])
        assert pivots.tolist() == [0, 1]
        assert called("echo", b"12345678") == b"12345678"
        assert called("model", 10, b"x") == b"x"


def test_a_server_without_a_gateway_says_what_to_type(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "", "--speed", "1") as server:
        assert server.wait() == 5
        assert "--dial HOST:PORT" in server.log()
