"""A Starter's answers over gRPC and Prometheus, as a process and from within."""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
from pathlib import Path

import pytest

from rmgr.adapters.rpc.services import NodeClient
from rmgr.errors import NotFound
from rmgr.model.submission import Command
from tests.harness.starter_rig import Rig, call
from tests.harness.waiting import eventually


def step(directory: Path, text: str, number: int) -> str:
    return f'echo {text}; while [ ! -e "{directory}/go{number}" ]; do sleep 0.02; done; '


def test_output_is_followed_while_it_grows_and_to_its_end(rig: Rig, tmp_path: Path) -> None:
    rig.spawn()
    record = rig.wait_registered()
    number = rig.submit(Command(argv=("sh", "-c", step(tmp_path, "one", 1) + step(tmp_path, "two", 2) + "echo three >&2; seq 2000")))
    with NodeClient(record.endpoint) as client:
        assert client.is_serving()
        running = eventually(lambda: client.running(number), "it runs")
        assert [(task.submission, task.index, task.attempt, task.node, task.cores) for task in running] == [(number, 0, 1, "n1", 1)]
        text = {"stdout": b"", "stderr": b"", "": b""}
        ended = threading.Event()

        def follow() -> None:
            for piece in client.logs(number, 0, follow=True, timeout_s=60):
                assert piece.offset == len(text[piece.stream]) or piece.ended
                text[piece.stream] += piece.data
                if piece.ended:
                    ended.set()

        eventually(lambda: b"one" in b"".join(piece.data for piece in client.logs(number, 0)), "the first line")
        thread = threading.Thread(target=follow)
        thread.start()
        eventually(lambda: text["stdout"] == b"one\n", "the first line followed")
        (tmp_path / "go1").touch()
        eventually(lambda: text["stdout"] == b"one\ntwo\n", "the second line followed")
        (tmp_path / "go2").touch()
        assert ended.wait(60)
        thread.join(60)
    assert text["stderr"] == b"three\n"
    assert text["stdout"] == b"one\ntwo\n" + b"".join(b"%d\n" % n for n in range(1, 2001))


def test_a_python_task_is_followed_too_and_an_unknown_one_is_not_found(rig: Rig, tmp_path: Path) -> None:
    rig.spawn()
    record = rig.wait_registered()

    def work(path: str) -> None:
        import pathlib
        import time

        print("hello", flush=True)
        while not pathlib.Path(path).exists():
            time.sleep(0.01)

    number = rig.submit(work, [call(str(tmp_path / "go"))])
    with NodeClient(record.endpoint) as client:
        eventually(lambda: client.running(number), "it runs")
        eventually(lambda: b"".join(piece.data for piece in client.logs(number, 0)) == b"hello\n", "its line")
        with pytest.raises(NotFound):
            list(client.logs(number, 5))
        stats = client.stats()
        assert [(one.node, one.cores_used, one.running) for one in stats] == [("n1", 1, 1)]
        assert stats[0].disk_free_bytes > 0
    (tmp_path / "go").touch()
    rig.outcomes(number, 1)


def test_metrics_are_served_and_the_process_leaves_nothing_behind(rig: Rig, tmp_path: Path) -> None:
    process = rig.spawn()
    rig.wait_registered()
    number = rig.submit(lambda x: x, [call(x) for x in range(20)])
    rig.outcomes(number, 20)
    lines = [json.loads(line) for line in rig.log_of("n1").splitlines()]
    address = next(line["address"] for line in lines if line["event"] == "starter_listens")

    def values() -> dict[str, float]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as reply:
            text = reply.read().decode()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}

    # What is committed is counted when the answer to the commit is there: anybody may read the outcomes before.
    eventually(lambda: values()["rmgr_starter_outcomes_committed_total"] == 20, "all are counted")
    assert values()['rmgr_starter_tasks_completed_total{state="COMPLETED"}'] == 20
    assert values()["rmgr_starter_loop_errors_total"] == 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    home = tmp_path / "work" / "n1"
    assert [path for path in home.rglob("*") if path.is_file()] == []
