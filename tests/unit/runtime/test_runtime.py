"""Lease, back-off, failpoints, stall guard, signals, notices to the service manager, and a daemon's report of its address."""

from __future__ import annotations

import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rmgr.errors import ConfigError
from rmgr.runtime import failpoint as failpoints
from rmgr.runtime import supervision
from rmgr.runtime import supervision as lease_module
from rmgr.runtime.failpoint import FailpointError, Failpoints, FailpointTrigger
from rmgr.runtime.interpreter import LEAST_FILES, check_descriptors
from rmgr.runtime.machine import Backoff
from rmgr.runtime.mailbox import SignalMessages
from rmgr.runtime.secured import address_towards, advertised
from rmgr.runtime.supervision import EXIT_CODE, Lease, Notifier, StallGuard


class Session:
    session_timeout_s = 6.0
    last = -math.inf

    def last_answer_s(self) -> float:
        return self.last


# -- lease ----------------------------------------------------------------------------------------------------------------


def test_a_lease_runs_from_the_last_answered_request_for_two_thirds_of_the_session() -> None:
    session, now = Session(), [100.0]
    lease = Lease(session, clock=lambda: now[0])
    assert not lease.is_valid()  # nothing was answered yet
    session.last = 99.0
    assert lease.length_s == pytest.approx(4.0)
    assert (lease.is_valid(), lease.remaining_s()) == (True, pytest.approx(3.0))
    now[0] = 103.1
    assert (lease.is_valid(), lease.remaining_s()) == (False, 0.0)
    session.last = 103.0
    assert lease.is_valid()


def test_a_host_that_slept_has_lost_its_lease_until_a_request_is_answered_that_it_sent_afterwards() -> None:
    suspended, now, session = [50.0], [101.0], Session()
    session.last = 100.0
    lease = Lease(session, clock=lambda: now[0], suspended=lambda: suspended[0])
    assert lease.is_valid()
    suspended[0] = 3650.0  # the monotonic clock stood still for an hour
    assert not lease.is_valid()
    session.last = 100.5  # this answer had waited in the socket
    assert not lease.is_valid()
    session.last, now[0] = 101.5, 101.6
    assert lease.valid_until_s() == pytest.approx(105.5)
    suspended[0] = 7250.0
    lease.rearm()  # a new session, and nobody looked in between
    assert lease.is_valid()


def test_the_host_tells_how_long_it_slept() -> None:
    first = lease_module.suspended_s()
    assert 0.0 <= first <= lease_module.suspended_s() + 0.05


def test_a_lease_that_leaves_no_time_to_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="no time to stop"):
        Lease(Session(), share=0.99)


# -- back-off -------------------------------------------------------------------------------------------------------------


def test_delays_double_to_the_cap_with_jitter_and_start_again() -> None:
    backoff = Backoff(0.1, 1.0, rng=random.Random(7))
    delays = [backoff.next_s() for _ in range(8)]
    for delay, full in zip(delays, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= delay <= full
    assert backoff.attempts == 8
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_two_that_failed_together_come_back_apart() -> None:
    first, second = Backoff(1.0, 10.0, rng=random.Random(1)), Backoff(1.0, 10.0, rng=random.Random(2))
    assert first.next_s() != second.next_s()


# -- failpoints -----------------------------------------------------------------------------------------------------------


def test_failpoints_are_read_from_one_line() -> None:
    assert failpoints.parse("a=kill, b:3=delay:0.5,a:2=error,c=until:/a/b") == {
        "a": (FailpointTrigger(nth=1, action="kill"), FailpointTrigger(nth=2, action="error")),
        "b": (FailpointTrigger(nth=3, action="delay", seconds=0.5),),
        "c": (FailpointTrigger(nth=1, action="until", file="/a/b"),),
    }


@pytest.mark.parametrize("text", ["a", "a=", "a=explode", "a:0=kill", "a:x=kill", "=kill", "a=delay", "a=until", "a=kill:3", "a=delay:x"])
def test_a_malformed_failpoint_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=failpoints.VARIABLE):
        failpoints.parse(text)


def test_only_the_nth_pass_triggers() -> None:
    points = Failpoints("here:2=error")
    points.hit("here")
    points.hit("elsewhere")
    with pytest.raises(FailpointError, match="here, pass 2"):
        points.hit("here")
    points.hit("here")


@pytest.mark.parametrize(("value", "code"), [("x:2=kill", -signal.SIGKILL), ("x=error", 1), ("y=kill", 0), (None, 0)])
def test_a_failpoint_acts_in_the_process_that_was_told(value: str | None, code: int) -> None:
    program = "from rmgr.runtime.failpoint import failpoint\nfailpoint('x')\nfailpoint('x')"
    env = {k: v for k, v in os.environ.items() if k != failpoints.VARIABLE} | ({failpoints.VARIABLE: value} if value else {})
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, timeout=120, check=False)
    assert ended.returncode == code


def test_a_failpoint_waits_until_a_file_is_there(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waiting = threading.Thread(target=Failpoints(f"here=until:{go}").hit, args=("here",), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    go.touch()
    waiting.join(60)
    assert not waiting.is_alive()


# -- stall guard ----------------------------------------------------------------------------------------------------------


def test_a_loop_that_stands_still_is_reported_and_one_that_turns_is_not() -> None:
    now, told = [0.0], []
    guard = StallGuard(10.0, name="loop", on_stall=told.append, clock=lambda: now[0])
    for _ in range(8):
        now[0] += 2.5
        guard.progress()
        guard.check()
    assert told == []
    for _ in range(5):
        now[0] += 2.5
        guard.check()
    assert told == ["loop: no progress for 12.5 s (limit 10 s)"]


def test_a_process_that_was_stopped_gets_time_to_turn_again() -> None:
    now, told = [0.0], []
    guard = StallGuard(10.0, on_stall=told.append, clock=lambda: now[0])
    now[0] = 500.0  # SIGSTOP, SIGCONT
    guard.check()
    now[0] = 502.5
    guard.check()
    assert told == []
    guard.progress()


def test_a_stalled_process_ends_with_its_stacks_on_stderr() -> None:
    program = (
        "import threading\nfrom rmgr.runtime.supervision import StallGuard\n"
        "def the_loop_that_hangs(): threading.Event().wait(60)\n"
        "StallGuard(0.2, name='leader').start()\nthe_loop_that_hangs()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, text=True, check=False)
    assert ended.returncode == EXIT_CODE
    assert "leader: no progress" in ended.stderr
    assert "the_loop_that_hangs" in ended.stderr


# -- signals --------------------------------------------------------------------------------------------------------------


def test_a_signal_becomes_a_message_and_the_second_ends_the_process() -> None:
    program = (
        "import sys\nfrom rmgr.runtime.mailbox import Mailbox\nfrom rmgr.runtime.mailbox import SignalMessages\n"
        "box = Mailbox()\nSignalMessages(box.put).install()\n"
        "print('ready', flush=True)\nprint(box.get(30).name, flush=True)\nbox.get(30)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_signals_are_given_back() -> None:
    before, got = signal.getsignal(signal.SIGUSR1), threading.Event()
    messages = SignalMessages(lambda _number: got.set(), [signal.SIGUSR1])
    messages.install()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)  # only stop signals have an end of patience
        assert got.wait(60)
    finally:
        messages.restore()
        messages.restore()
    assert signal.getsignal(signal.SIGUSR1) is before


# -- the line to the service manager ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_what_systemd_is_told(tmp_path: Path, abstract: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"@rmgr-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    now = [100.0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        manager.settimeout(60.0)
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
        monkeypatch.setattr(supervision.machine, "monotonic", lambda: now[0])
        notifier = Notifier.from_environment(environ)
        assert environ == {"HOME": "/"}, "work that is started must not speak in the daemon's name"
        for at in (100.0, 100.5, 100.9, 101.0, 101.1):
            now[0] = at
            notifier.beat()
        notifier.ready()
        notifier.ready()
        notifier.tell("leading,\nepoch 3")
        notifier.tell("leading,\nepoch 3")
        notifier.stopping(within_s=45)
        notifier.stopping()
        said = [manager.recv(1000).decode() for _ in range(5)]
        assert said == ["WATCHDOG=1", "WATCHDOG=1", "READY=1", "STATUS=leading, epoch 3", "STOPPING=1\nEXTEND_TIMEOUT_USEC=45000000"]
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(1)
        notifier.close()
    notifier.tell("nobody listens")


def test_without_systemd_nothing_is_told(tmp_path: Path) -> None:
    assert not Notifier.from_environment({}).is_on
    gone = Notifier(str(tmp_path / "nobody"), beat_s=1.0)
    gone.beat()  # the manager is gone: not the daemon's affair
    gone.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = f"rmgr-test-{os.getpid()}"
        manager.bind(f"\0{address}")
        manager.setblocking(False)
        other = Notifier.from_environment({"NOTIFY_SOCKET": f"@{address}", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"})
        other.beat()  # those of another process are expected
        with pytest.raises(BlockingIOError):
            manager.recv(1)
        other.close()


def test_beats_come_from_the_loop_and_from_nowhere_else() -> None:
    beats: list[int] = []
    guard = StallGuard(10.0, on_stall=lambda _: None, on_progress=lambda: beats.append(threading.get_ident())).start()
    guard.progress()
    guard.check()
    guard.stop()
    assert beats == [threading.get_ident()] * 2


@pytest.mark.parametrize(
    ("endpoint", "advertise", "told"),
    [
        ("127.0.0.1:7070", "", "127.0.0.1:7070"),
        ("10.0.0.5:41234", "", "10.0.0.5:41234"),
        ("0.0.0.0:7070", "node7", "node7:7070"),
        ("0.0.0.0:7070", "node7.example.org:17070", "node7.example.org:17070"),
        ("[::]:7070", "[fd00::7]", "[fd00::7]:7070"),
        ("[::]:7070", "[fd00::7]:17070", "[fd00::7]:17070"),
    ],
)
def test_others_are_told_an_address_that_can_be_dialled(endpoint: str, advertise: str, told: str) -> None:
    assert advertised(endpoint, advertise) == told


@pytest.mark.parametrize("listen", ["0.0.0.0", "[::]", ""])
def test_who_listens_everywhere_is_known_by_the_name_of_its_machine(listen: str) -> None:
    assert advertised(f"{listen}:7070") == f"{socket.gethostname()}:7070"


def test_what_reaches_another_over_loopback_alone_has_no_address_for_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert address_towards(f"127.0.0.1:{port}", timeout_s=30.0) == ""
        assert address_towards(f"localhost:{port}", timeout_s=30.0) == ""
    assert address_towards(f"127.0.0.1:{port}", timeout_s=30.0) == ""  # nobody listens there any more
    assert address_towards("nonsense", timeout_s=30.0) == ""


def test_a_daemon_that_may_open_too_few_files_says_so_at_its_start() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    check_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_FILES - 1, limits[1]))
    try:
        with pytest.raises(ConfigError, match="at least 128 file descriptors, and may have 127 here") as refused:
            check_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "ulimit -n" in (refused.value.hint or "")
