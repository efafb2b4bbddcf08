"""Calls from programs and from the shell, through a real gateway, leader and two servers; and the example of a solver."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmgr.client.calls import Caller, CallFuture
from rmgr.dev.cluster import DevCluster
from rmgr.errors import CallFailed, CallLost, CallTimeout, NotFound, UsageError
from rmgr.model import arrays
from rmgr.model.interface import encode_interface, interface_of
from rmgr.v1 import calls_pb2 as pb
from tests.harness.called import Called
from tests.harness.played_server import PlayedServer
from tests.harness.waiting import eventually
from tests.places import ROOT


@pytest.fixture(scope="module")
def world(calls_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    made = Called(tmp_path_factory.mktemp("called"), calls_cluster)
    yield made
    made.close()


@pytest.fixture
def caller(world: Called) -> Iterator[Caller]:
    with world.caller() as made:
        yield made


def shell(world: Called, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmgr.cli.main", *words]
    return subprocess.run(command, env=world.environment(), cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def open_servers(caller: Caller) -> list[Any]:
    """Those that are open, as the gateway knows them."""
    return [one for one in caller.asked(lambda client: client.servers("")).servers if one.state == "open"]


def on_servers(caller: Caller) -> int:
    """Calls that run or wait there."""
    return sum(one.running + one.waiting for one in open_servers(caller))


def all_slots(caller: Caller, go: Path) -> list[CallFuture]:
    """Calls that hold all slots, and perhaps wait for some, until the file is there."""
    busy: list[CallFuture] = []

    def is_full() -> bool:
        # What the gateway knows may be older than this test: it counts from the fourth call on.
        if len(busy) >= 4 and [(one.running, one.slots) for one in open_servers(caller)] == [(2, 2)] * 2:
            return True
        if on_servers(caller) == len(busy):  # the last one has arrived, wherever the policy sent it
            busy.append(caller.call_async("wait_for", str(go)))
        return False

    eventually(is_full, "all slots are busy")
    return busy


def test_arrays_go_to_a_server_and_its_answer_is_that_of_numpy(caller: Caller) -> None:
    rng = np.random.default_rng(1)
    matrix, right = rng.random((60, 60)), rng.random(60)
    future = caller.call_async("linsolve", matrix, right)
    assert np.allclose(future.result(120), np.linalg.solve(matrix, right))
    assert future.server in {"s1", "s2"}
    assert 0 < future.timing.ran <= future.timing.total
    assert [step for step, *_ in future.timing.trace] == [1, 2, 3, 4, 5, 6]


def test_several_outputs_are_a_tuple_and_inout_is_a_new_array(caller: Caller) -> None:
    values = np.arange(4.0)
    moved, total = caller.call("both", values)
    assert (moved.tolist(), total) == ([1.0, 2.0, 3.0, 4.0], 6.0)
    assert caller.call("twice", np.asfortranarray(values)).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert caller.call("twice", [1, 2]).tolist() == [2.0, 4.0]  # cast safely


def test_many_calls_at_once_run_once_each(world: Called, caller: Caller) -> None:
    before = world.executions("nap")
    futures = [caller.call_async("nap", 0.01) for _ in range(40)]
    assert [future.result(120) for future in futures] == [0.01] * 40
    counts = world.executions("nap") - before
    assert (len(counts), set(counts.values())) == (40, {1})
    assert {future.server for future in futures} == {"s1", "s2"}


def test_an_answer_that_has_arrived_is_forgotten_by_its_server(world: Called) -> None:
    def kept() -> set[Path]:
        return {path for path in (world.cluster.directory / "work").glob("*/calls/**/*") if path.is_file()}

    before = kept()
    for _ in range(8):  # the word that it is here must not be lost when the call ends, nor when its client goes at once
        with world.caller() as leaving:
            leaving.call("both", np.ones(1000))
    program = "import numpy, rmgr; rmgr.call('both', numpy.ones(1000))"
    subprocess.run([sys.executable, "-c", program], env=world.environment(), timeout=60, check=True)
    eventually(lambda: not kept() - before, "the servers forget the answers")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("linsolv", (), "linsolve"),
        ("linsolve", (np.eye(3),), "takes 2"),
        ("linsolve", (np.eye(3), np.ones(4)), "n"),
        ("linsolve", (np.eye(3), np.ones(3, dtype=complex)), "b"),
        ("linsolve", (np.ones(3), np.ones(3)), "A"),
        ("linsolve", (np.array([[object()]]), np.ones(1)), "A"),
        ("nap", ("soon",), "seconds"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_sent(caller: Caller, name: str, arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises((UsageError, NotFound)) as refused:
        caller.call(name, *arguments)
    assert words in f"{refused.value.message} {refused.value.hint}"


def test_a_function_that_raises_is_told_with_its_traceback(caller: Caller) -> None:
    with pytest.raises(CallFailed, match="no luck here") as failed:
        caller.call("fail", "luck")
    assert "solvers.py" in str(failed.value)


def test_a_call_ends_at_its_deadline_and_its_server_is_free_again(caller: Caller) -> None:
    began_s = time.monotonic()
    with pytest.raises(CallTimeout):
        caller.call("nap", 60.0, timeout=8)
    assert time.monotonic() - began_s < 40
    assert caller.call("nap", 0.0, timeout=60) == 0.0


def test_a_caller_that_stood_still_beyond_its_deadline_reads_what_became_of_its_call(world: Called, caller: Caller) -> None:
    before = world.executions("nap").total()
    command = [sys.executable, "-m", "rmgr.cli.main", "call", "nap", "60", "--timeout", "5s"]
    with subprocess.Popen(command, env=world.environment(), stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: world.executions("nap").total() > before, "it runs")
        process.send_signal(signal.SIGSTOP)
        late_s = time.monotonic() + 5 + 1.5  # a caller that wakes later than a second after its deadline stood still
        eventually(lambda: time.monotonic() > late_s and not on_servers(caller), "its deadline is long over, and its server has ended it")
        process.send_signal(signal.SIGCONT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 6, told


def test_a_cancelled_call_is_killed_on_its_server(world: Called, caller: Caller) -> None:
    before = world.executions("wait_for")
    future = caller.call_async("wait_for", str(world.directory / "never"))
    eventually(lambda: world.executions("wait_for") - before, "it runs")
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(60)
    eventually(lambda: not on_servers(caller), "nothing runs there any more")


def test_the_shell_lists_calls_traces_and_explains(world: Called, tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", np.diag([1.0, 2.0, 4.0]))
    np.save(tmp_path / "b.npy", np.ones(3))
    listed = shell(world, "functions", "linsolve")
    assert listed.stdout.startswith("linsolve 1  in A float64[n,n], in b float64[n], out x float64[n]")
    assert listed.stdout.rstrip().endswith("idempotent  s1 s2")
    called = shell(world, "call", "linsolve", "A.npy", "b.npy", "-o", "x.npy", "--trace", cwd=tmp_path)
    assert (called.returncode, called.stdout) == (0, ""), called.stderr
    assert np.load(tmp_path / "x.npy").tolist() == [1.0, 0.5, 0.25]
    assert " n=3: " in called.stderr, called.stderr
    names = [line.split()[:2] for line in called.stderr.splitlines()]
    wanted = ["monitor", "links", "request", "proxy", "scheduler", "forward"]
    assert names == [[str(at), name] for at, name in enumerate(wanted, 1)]
    shown = json.loads(shell(world, "call", "nap", "0.5", "--json").stdout)
    assert (shown["function"], shown["outputs"], len(shown["trace"])) == ("nap@1", {"slept": 0.5}, 6)
    explained = json.loads(shell(world, "call", "--explain", "linsolve", "--n", "600", "--json").stdout)
    assert [term["server"] for term in explained["terms"]] == ["s1", "s2"]
    servers = json.loads(shell(world, "servers", "--json").stdout)
    assert [(one["name"], one["state"], one["slots"]) for one in servers["servers"]] == [("s1", "open", 2), ("s2", "open", 2)]
    assert servers["policy"] == "loth+l"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("call", "linsolv"), 3, "linsolve"),
        (("call", "nap"), 2, "seconds"),
        (("call", "nap", "1", "2"), 2, "does not take 2"),
        (("call", "linsolve", "none.npy", "none.npy"), 2, "none.npy"),
        (("call", "linsolve", "README.md", "README.md"), 2, "A: README.md is no .npy file"),
        (("call", "nap", "1", "-o", "nowhere/x"), 2, "nowhere/x cannot be written"),
        (("call", "--explain", "nap", "--weeks", "1"), 2, "nap@1 has no size weeks"),
        (("call", "alices", "0"), 4, "alices@1 is not for"),
        (("call", "fail", "luck"), 1, "no luck here"),
        (("call", "nap", "60", "--timeout", "8s"), 6, "in time"),
        (("servers", "s7"), 3, "s1, s2"),
    ],
)
def test_the_shell_says_what_is_wrong(world: Called, words: tuple[str, ...], code: int, told: str) -> None:
    ended = shell(world, *words, cwd=ROOT)
    assert ended.returncode == code, ended.stderr
    assert told in ended.stderr


def test_arrays_come_from_pipes_and_files_that_are_none_are_told(world: Called, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3.0))
    words = f"{sys.executable} -m rmgr.cli.main call twice <(cat x.npy) -o >(cat > y.npy) || exit"
    command = ["bash", "-c", f"{words}; wait"]
    piped = subprocess.run(command, env=world.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert piped.returncode == 0, piped.stderr
    eventually(lambda: (tmp_path / "y.npy").exists() and (tmp_path / "y.npy").stat().st_size == 152, "the pipe is written", within_s=20)
    assert np.load(tmp_path / "y.npy").tolist() == [0.0, 2.0, 4.0]
    whole = (tmp_path / "x.npy").read_bytes()
    for name, data in (
        ("short", whole[:-8]), ("empty", b""), ("none", b"no array"), ("huge", whole.replace(b"(3,)", b"(999999999999999,)")[: len(whole)])
    ):  # fmt: skip
        (tmp_path / f"{name}.npy").write_bytes(data)
        refused = shell(world, "call", "twice", f"{name}.npy", cwd=tmp_path)
        assert (refused.returncode, "numpy.save" in refused.stderr) == (2, True), (name, refused.stderr)
    np.savez(tmp_path / "many.npz", a=np.ones(1))
    assert "several arrays" in shell(world, "call", "twice", "many.npz", cwd=tmp_path).stderr


def test_a_file_that_shrinks_while_its_call_waits_changes_nothing(world: Called, caller: Caller, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(500_000.0))
    busy = all_slots(caller, tmp_path / "go")
    command = [sys.executable, "-m", "rmgr.cli.main", "call", "twice", "x.npy", "-o", "y.npy"]
    with subprocess.Popen(command, env=world.environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: on_servers(caller) > len(busy), "it waits for a slot")
        (tmp_path / "x.npy").write_bytes(b"")
        (tmp_path / "go").touch()
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.arange(500_000.0) * 2)
    assert [future.result(60) for future in busy] == [1] * len(busy)


def test_an_answer_that_cannot_be_written_is_kept_elsewhere_or_never_called_for(world: Called, tmp_path: Path) -> None:
    before = world.executions("twice")
    np.save(tmp_path / "x.npy", np.arange(3.0))
    refused = shell(world, "call", "twice", "x.npy", "-o", "nowhere/y.npy", cwd=tmp_path)
    assert (refused.returncode, "nothing was called" in refused.stderr) == (2, True), refused.stderr
    assert world.executions("twice") == before
    kept = shell(world, "call", "twice", "x.npy", "-o", "/dev/full", cwd=tmp_path)
    assert kept.returncode == 2
    assert "/dev/full cannot be written" in kept.stderr
    words = next(line for line in kept.stderr.splitlines() if "mv " in line).split()
    answer = Path(words[words.index("mv") + 1])
    assert np.load(answer).tolist() == [0.0, 2.0, 4.0]
    answer.unlink()
    answer.parent.rmdir()


def test_answers_that_have_arrived_are_not_kept_by_their_servers(world: Called, caller: Caller) -> None:
    program = "import rmgr; assert rmgr.call('twice', [1.0]).tolist() == [2.0]"
    for _ in range(3):
        assert shell(world, "call", "nap", "0").returncode == 0
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, env=world.environment(), capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        assert caller.call("nap", 0.0, timeout=60) == 0.0
    eventually(lambda: not list((world.cluster.directory / "work").glob("s*/calls/*")), "no answer is kept", within_s=30)


@pytest.mark.parametrize("phase", ["running", "waiting"])
def test_ctrl_c_ends_the_call_at_its_server(world: Called, caller: Caller, tmp_path: Path, phase: str) -> None:
    before = world.executions("wait_for")
    busy = all_slots(caller, tmp_path / "go") if phase == "waiting" else []
    command = [sys.executable, "-m", "rmgr.cli.main", "call", "wait_for", str(tmp_path / "never")]
    with subprocess.Popen(command, env=world.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        eventually(lambda: on_servers(caller) == len(busy) + 1, "it is there")
        if phase == "running":
            eventually(lambda: sum((world.executions("wait_for") - before).values()) == 1, "its function has begun")
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    ended_s = time.monotonic()
    assert process.returncode == 130, told
    assert "Traceback" not in told
    eventually(lambda: on_servers(caller) == len(busy), "its server has ended it")
    assert time.monotonic() - ended_s < 25, "not only because its client is gone"
    (tmp_path / "go").touch()
    assert [future.result(60) for future in busy] == [1] * len(busy)
    assert sum((world.executions("wait_for") - before).values()) == len(busy) + (phase == "running")


def test_a_policy_that_is_swapped_in_a_burst_loses_nothing(world: Called, caller: Caller) -> None:
    futures = []
    for policy in ("rr", "load+l", "loth", "adaptive", "loth+l"):
        futures += [caller.call_async("nap", 0.0) for _ in range(8)]
        assert shell(world, "policy", "set", policy, "--partition", "calls").returncode == 0
    assert [future.result(120) for future in futures] == [0.0] * 40


def test_closing_ends_the_calls_that_are_under_way_and_those_that_wait(world: Called) -> None:
    with world.caller() as closing:
        before = world.executions("wait_for")
        futures = [closing.call_async("wait_for", str(world.directory / "never")) for _ in range(70)]
        eventually(lambda: world.executions("wait_for") - before, "some run")
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(60)


def test_a_crooked_server_spoils_its_own_calls_alone(world: Called, caller: Caller) -> None:
    names = ("huge", "wrong", "more", "fewer", "none", "numbers", "strange", "refuses", "silent")
    table = {"version": 1, "arguments": ["inout x float64[n]"], "operations": "n"}
    functions = tuple(encode_interface(interface_of({"name": name, **table}, "here")) for name in names)
    silent = threading.Event()

    def work(offer: Any, arguments: bytes) -> tuple[Any, bytes]:
        outcome = pb.CallOutcome(kind=pb.CallOutcome.OK, bytes=len(arguments))
        match offer.function:
            case "huge":
                outcome.bytes = 1 << 60
            case "wrong":
                arguments = b"".join(map(bytes, arrays.encode([7])))
                outcome.bytes = len(arguments)
            case "more":
                arguments *= 20_000
            case "fewer":
                arguments = arguments[:-1]
            case "none":
                arguments = b""
            case "numbers":
                outcome.ran_us = outcome.waited_us = 2**64 - 1
            case "strange":
                outcome.kind = 99
            case "silent":
                silent.wait(60)
        return outcome, arguments

    crooked = PlayedServer(world.gateways["g1"], "crooked", functions=functions, work=work, mops=1e-300)
    try:
        eventually(lambda: world.open_servers(caller) == 3, "it is here")
        values = np.arange(3.0)
        with pytest.raises(CallFailed, match="1,152,921,504,606,846,976 bytes"):
            caller.call("huge", values, timeout=60)
        with pytest.raises(CallFailed, match="the answer of crooked does not fit wrong@1"):
            caller.call("wrong", values, timeout=60)
        with pytest.raises(CallFailed, match="crooked sends more bytes than"):
            caller.call("more", values, timeout=60)
        with pytest.raises(CallFailed, match=r"call .* failed: server crooked sends fewer bytes than the \d+ of its answer: \d+"):
            caller.call("fewer", values, timeout=60)
        with pytest.raises(CallFailed, match=r"crooked sends fewer bytes than the \d+ of its answer: 0"):
            caller.call("none", values, timeout=60)
        assert [offer.function for offer in crooked.offers].count("fewer") == 1, "its answer was not asked for again"
        assert caller.call("numbers", values, timeout=60).tolist() == values.tolist()
        with pytest.raises(CallLost, match="no outcome"):
            caller.call("strange", values, timeout=60)
        crooked.verdicts = [pb.Verdict.REFUSED] * 1000
        with pytest.raises(CallTimeout, match="never ran"):
            caller.call("refuses", values, timeout=3)
        crooked.verdicts = []
        with pytest.raises(CallLost, match="crooked"):
            caller.call("silent", values, timeout=3)
        crooked.load = {"running": 2**32 - 1, "other": math.nan}

        def servers() -> dict[str, Any]:
            return {one.name: one for one in caller.asked(lambda client: client.servers("")).servers}

        assert eventually(lambda: (found := servers()["crooked"]).state == "odd" and found.why, "its load is none") == (
            "its report has other = nan"
        )
        assert eventually(lambda: all(servers()[name].age_s < 5 for name in ("s1", "s2")), "the gateway looks at the others")
        assert caller.call("nap", 0.0, timeout=60) == 0.0
    finally:
        silent.set()
        crooked.close()
    eventually(lambda: world.open_servers(caller) == 2 and servers()["crooked"].state == "away", "it is gone")


EXAMPLE = ROOT / "deploy" / "examples" / "solvers"


def test_the_client_of_the_solver_service_gets_right_answers_from_both_servers(world: Called, caller: Caller) -> None:
    names = ("big", "small")
    try:
        for name, slots in zip(names, ("2", "1"), strict=True):
            world.cluster.start_server(name, options=["--functions", str(EXAMPLE / "solvers.toml"), "--slots", slots])
        eventually(lambda: "big small" in shell(world, "functions", "poisson").stdout, "both servers offer it")
        command = [sys.executable, "client.py", "--points", "60", "--calls", "30"]
        ended = subprocess.run(command, cwd=EXAMPLE, env=world.environment(), capture_output=True, text=True, timeout=120, check=False)
    finally:
        for name in names:
            world.cluster.kill(name, signal.SIGTERM)
    eventually(lambda: world.open_servers(caller) == 2, "only the two of this file are open")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("30 problems of 60 x 60 points in ")
    assert "big: " in lines[1]
    assert "small: " in lines[1]
    assert lines[2] == "the two lowest eigenvalues of diag(4, 1, 9): 1 and 4"
    assert lines[3].startswith("a function that raises: call ")
    assert lines[3].endswith("failed: ValueError: the matrix is not symmetric")
