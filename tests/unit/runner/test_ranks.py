"""Ranks of a job without a cluster: frames, the spread over nodes, the program of a hold and its client on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rmgr.errors import UsageError
from rmgr.model.frames import StartWorker
from rmgr.model.states import Reason
from rmgr.runner.host import home
from rmgr.runner.python.rank_call import Bundle, RankAnswer
from rmgr.runner.ranks import client as rank_client
from rmgr.runner.ranks import ranks


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_frames_are_found_wherever_the_stream_is_cut(size: int) -> None:
    frames = [(ranks.OUT, 3, b"x" * 50), (ranks.EXIT, -1, b""), (ranks.SPEC, 0, b"{}")]
    stream = b"".join(ranks.frame(*frame) for frame in frames)
    cutter = ranks.Cutter()
    assert [one for at in range(0, len(stream), size) for one in cutter.feed(stream[at : at + size])] == frames


def test_ranks_fill_node_after_node() -> None:
    place = rank_client.OwnAllocation(here="a", shares=(("a", 1), ("b", 2), ("c", 2)), door="")
    assert place.spread(5) == [("a", 0, 1), ("b", 1, 2), ("c", 3, 2)]
    assert place.spread(2) == [("a", 0, 1), ("b", 1, 1)]
    with pytest.raises(rank_client.NotInJob, match=r"-n 6 is more than the job has \(5\)"):
        place.spread(6)


def test_without_a_job_around_it_there_are_no_ranks() -> None:
    with pytest.raises(rank_client.NotInJob, match="RMGR_HOSTFILE"):
        rank_client.run(["true"], environ={})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A hold of node b, its program running; a door that leads straight to it. The variables of the job's script on node a."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)  # longer than a socket's address may be
    deep.mkdir(parents=True)
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    host = subprocess.Popen([sys.executable, "-I", "-S", ranks.__file__, str(deep)], env={**os.environ, "RMGR_NODE": "b"})
    door = ranks.listen(str(tmp_path / "door"))

    def serve() -> None:
        while True:
            try:
                link, _ = door.accept()
            except OSError:
                return
            while not link.recv(1).endswith(b"\n"):
                continue
            while True:
                try:
                    other = ranks.connect(str(deep / "ranks"))
                    break
                except OSError:
                    continue
            for source, target in ((link, other), (other, link)):
                threading.Thread(target=pump, args=(source, target), daemon=True).start()

    def pump(source: object, target: object) -> None:
        try:
            while data := source.recv(65536):  # type: ignore[attr-defined]
                target.sendall(data)  # type: ignore[attr-defined]
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(2)  # type: ignore[attr-defined]
            except OSError:
                continue

    threading.Thread(target=serve, daemon=True).start()
    yield {"RMGR_NODE": "a", "RMGR_HOSTFILE": str(tmp_path / "hosts"), "RMGR_RANKS": str(tmp_path / "door")}
    host.kill()
    host.wait()
    door.shutdown(2)
    door.close()


def agent(place: dict[str, str], *words: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    path = f"import sys; sys.path.insert(0, {str(home.ROOT)!r})"
    program = f"{path}; from rmgr.runner.ranks import client; sys.exit(client.main(sys.argv[1:]))"
    command = [sys.executable, "-I", "-S", "-c", program, "agent", *words]
    return subprocess.run(command, env={**os.environ, **place}, capture_output=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_large_input_and_output_pass_through_another_node(place: dict[str, str], tmp_path: Path) -> None:
    data = os.urandom(5 << 20)
    ended = agent(place, "b", "cat", input=data)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == data
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        ended = agent(place, "b", "sha256sum; exit 4", stdin=file)
    assert ended.returncode == 4
    assert agent(place, "b", "true", input=data).returncode == 0  # what nobody reads holds up nothing
    assert agent(place, "a", "cat", input=b"here").stdout == b"here"


@pytest.mark.parametrize("node", ["a", "b"])
def test_ranks_have_the_surroundings_of_who_starts_them_on_every_node(place: dict[str, str], tmp_path: Path, node: str) -> None:
    """As a child of a shell has them: also what the script itself has changed."""
    told = {"TMPDIR": str(tmp_path), "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo", "MINE": "x y", "RMGR_UMASK": "0077"}
    asked = "umask; pwd; echo $TMPDIR, $LC_ALL, $TZ, $MINE"
    shown = []
    for mask in (0o027, 0o002):
        ended = agent(place | told, node, asked, umask=mask, cwd=tmp_path)
        here = subprocess.run(["/bin/sh", "-c", asked], env=os.environ | told, umask=mask, cwd=tmp_path, capture_output=True, check=True)
        shown.append((ended.returncode, ended.stdout == here.stdout, ended.stdout))
    assert [told[:2] for told in shown] == [(0, True)] * 2, shown


def test_options_of_a_step_say_again_what_the_job_has_or_are_told_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    from rmgr.cli.submit import ranks as typed

    monkeypatch.setenv("RMGR_THREADS", "2")
    place = rank_client.OwnAllocation(here="a", shares=(("a", 1), ("b", 2)), door="")
    typed.check_shape(place, None, 2, 2)
    typed.check_shape(place, 1, 1, None)
    with pytest.raises(UsageError, match=r"-N 1: its ranks are on a \(1\), b \(2\)"):
        typed.check_shape(place, None, 1, None)
    with pytest.raises(UsageError, match="-c 3: each process of the job has 2"):
        typed.check_shape(place, None, None, 3)
    with pytest.raises(UsageError, match="--time is for the whole job, not for its ranks"):
        typed.ranks.make_context("run", ["-t", "5m", "true"])


def test_a_frame_of_gigabytes_is_refused_when_it_is_announced() -> None:
    head = (2**32 - 1).to_bytes(4, "little") + bytes([ranks.USED]) + bytes(4)
    with pytest.raises(ranks.FrameTooLong, match="16,777,216"):
        list(ranks.Cutter().feed(head))


def test_the_longest_frame_arrives() -> None:
    rest = bytes(ranks.MOST_FRAME_BYTES)
    assert list(ranks.Cutter().feed(ranks.frame(ranks.SPEC, 1, rest))) == [(ranks.SPEC, 1, rest)]


def test_a_rank_whose_node_has_another_python_says_so_whatever_the_programs_filters_of_warnings_need(tmp_path: Path) -> None:
    newer = ("ignore", r"(?not a pattern of this Python)", "builtins.Warning", "", "0")
    spec = StartWorker(worker=1, python_version="9.99", warnings=(newer,))
    answer = tmp_path / "answer"
    bundle = Bundle(
        spec=spec, archives=(), launch="ranks", function="", blob=b"", keyed=False, payload=b"", seq=0, directory="", answer=str(answer)
    )
    (tmp_path / "bundle").write_bytes(msgspec.msgpack.encode(bundle))
    program = f"import sys; sys.path.append({str(home.ROOT)!r}); from rmgr.runner.python.rank_call import main; main()"
    told = os.environ | {"RMGR_BUNDLE": str(tmp_path / "bundle"), "RMGR_RANK": "0", "RMGR_NODE": "a"}
    ended = subprocess.run([sys.executable, "-c", program], env=told, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")
    extra = msgspec.msgpack.decode(answer.read_bytes(), type=RankAnswer).extra
    assert extra is not None
    assert (extra.reason, "submitted by Python 9.99, node a runs" in extra.summary) == (Reason.START_FAILED, True)
