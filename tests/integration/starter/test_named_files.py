"""Files on real Starters: large values, those that users name, and output over its cap that is read while it grows."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.process import Slot
from rmgr.adapters.host.workevents import Surprised
from rmgr.adapters.sqlite.store import ValueFiles
from rmgr.coord.protocol import keys
from rmgr.daemons.starter.execution.ends import LiveLogs
from rmgr.daemons.starter.node.service import NodeAnswering
from rmgr.daemons.starter.staging import outputs
from rmgr.daemons.starter.staging.outputs import Charge, Ending, of_command, write
from rmgr.model.block import KeyedPayload
from rmgr.model.frames import BatchShape, CommandEnd
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command
from tests.harness.memory_store import MemoryStore
from tests.harness.starter_rig import Rig
from tests.harness.store_adapters import flip_bit, value_file
from tests.harness.waiting import eventually
from tests.harness.work_node import WorkNode

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")


def test_inputs_travel_as_files(rig: Rig) -> None:
    rig.start()
    rig.store.put(keys.named("big"), b"B" * 3_000_000)
    number = rig.submit(len, keyed=[KeyedPayload(("big",), ("size",))] * 3)
    assert {outcome.state for outcome in rig.outcomes(number, 3).values()} == {State.COMPLETED}
    assert rig.spool_is_empty()


def test_an_input_that_is_damaged_fails_its_task_and_names_the_key(rig: Rig) -> None:
    rig.start()
    for key in ("good", "bad"):
        rig.store.put(keys.named(key), b"B" * 1_000_000)
    damaged = value_file(rig.directory / "store.db", keys.named("bad"))
    assert damaged is not None
    flip_bit(damaged, 999_999)
    number = rig.submit(len, keyed=[KeyedPayload(("bad",), ("o/1",)), KeyedPayload(("good",), ("o/2",))], resubmit=False)
    found = rig.outcomes(number, 2)
    assert (found[0].state, found[0].reason) == (State.FAILED, Reason.DATA_LOST)
    assert "'bad'" in found[0].error
    assert "the hash differs" in found[0].error
    assert found[1].state is State.COMPLETED


def test_outputs_become_values_without_being_copied(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.start()
    monkeypatch.setattr(ValueFiles, "put", lambda *_, **__: pytest.fail("a result is written a second time"))
    number = rig.submit(lambda: (b"a" * 600_000, ["b" * 600_000], b"c" * 2_000_000), keyed=[KeyedPayload((), ("x", "y", "z"))])
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
    rows = [keys.output(number, 0, 1, n) for n in range(3)]
    found = [rig.store.get(row) for row in rows]
    assert [value if encoding == "raw" else pickle.loads(value) for value, encoding in filter(None, found)] == [
        b"a" * 600_000, ["b" * 600_000], b"c" * 2_000_000
    ]  # fmt: skip
    files = [value_file(rig.directory / "store.db", row) for row in rows]
    eventually(lambda: [file.stat().st_nlink for file in files if file is not None] == [1, 1, 1], "no other name left")
    assert {file.stat().st_mode & 0o777 for file in files if file is not None} == {0o400}
    number = rig.submit(lambda: b"c" * 2_000_000)  # nor where it stands under no key
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.value_size, outcome.value_sha256) == (2_000_000, hashlib.sha256(b"c" * 2_000_000).digest())
    assert rig.store.get(keys.output(number, 0, 1)) == (b"c" * 2_000_000, "raw")
    assert rig.spool_is_empty()


def test_the_loop_of_a_starter_looks_at_no_file_that_users_name(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def stat(path: Any, *given: Any, **named: Any) -> os.stat_result:
        if "served" in str(path) and threading.current_thread().name == "starter-n1":
            looked.append(str(path))
        return real(path, *given, **named)

    real = os.stat
    monkeypatch.setattr(os, "stat", stat)
    (tmp_path / "served").mkdir()
    rig.start()
    served = tmp_path / "served"
    command = Command(argv=("echo", "a"), out=str(served / "o.txt"), err=str(served / "e.txt"), cwd=str(served))
    outcome = rig.outcomes(rig.submit(command), 1)[0]
    assert outcome.state is State.COMPLETED
    assert looked == []


def test_a_file_of_holes_is_as_large_as_it_says_also_where_work_has_the_starters_rights(rig: Rig) -> None:
    rig.start(work_cap_user_bytes=30 << 20)
    number = rig.submit(Command(argv=("truncate", "-s", "3600M", "a"), output_files=(("k", "a"),)))
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.reason is Reason.BAD_OUTPUT
    assert "bytes, holes counted), and one that is stored has at most 30M" in outcome.error
    fits = rig.submit(Command(argv=("truncate", "-s", "20M", "a"), output_files=(("k2", "a"),)))
    assert rig.outcomes(fits, 1)[0].state is State.COMPLETED


def test_an_end_that_cannot_be_taken_in_is_its_tasks_alone_and_cancels_go_on(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever nobody has thought of: here the end of a command with exit code 7."""
    running = rig.start()

    def of_command(end: CommandEnd) -> Ending:
        if end.exit_code == 7:
            raise PermissionError(13, "Permission denied")
        return real(end)

    real = outputs.of_command
    monkeypatch.setattr(outputs, "of_command", of_command)
    waits = rig.submit(Command(argv=("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 1")))
    bad = rig.submit(
        Command(argv=("sh", "-c", "exit $((RMGR_ARRAY_INDEX == 3 ? 7 : 0))"), out=str(tmp_path / "o-%a")), [b""] * 6, array="0-5"
    )
    found = rig.outcomes(bad, 6)
    assert [found[index].reason for index in range(6)] == [Reason.NONE] * 3 + [Reason.BAD_OUTPUT] + [Reason.NONE] * 2
    assert "node n1 could not take in how it ended: PermissionError" in found[3].error
    assert [list(running.agent().aside.told().values())] == [["PermissionError: [Errno 13] Permission denied"]]
    (tmp_path / "go").touch()
    assert rig.outcomes(waits, 1)[0].reason is Reason.EXIT_CODE, "what ran beside it was told"
    runs = rig.submit(Command(argv=("sleep", "600")), [b""] * 2, blocks=2)
    eventually(lambda: sum(block.live for block in list(running.agent().blocks.values())) == 2, "both cores are free for them")
    blocks = [block for block in list(running.agent().blocks.values()) if block.key.submission == runs]
    for block in blocks:
        running.starter.ask(lambda block=block: running.agent().cancel(block, None, "enough", 0))
    assert {outcome.state for outcome in rig.outcomes(runs, 2).values()} == {State.CANCELLED}


def test_a_file_server_that_hangs_holds_up_neither_the_loop_nor_other_outputs(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), threading.Event()

    def hangs(name: str, *given: Any, **named: Any) -> int:
        if "served" in name:
            asked.set()
            assert answers.wait(120)
        return real(name, *given, **named)

    real = outputs.open_regular
    monkeypatch.setattr(outputs, "open_regular", hangs)
    rig.start()
    file = tmp_path / "served"
    far = [rig.submit(Command(argv=("sh", "-c", f"echo x > {file}"), output_files=((f"f{n}", str(file)),))) for n in range(6)]
    try:
        assert asked.wait(60)
        near = rig.submit(Command(argv=("sh", "-c", "echo y > o"), output_files=(("near", "o"),)))
        assert rig.outcomes(near, 1)[0].state is State.COMPLETED
    finally:
        answers.set()
    for number in far:
        assert rig.outcomes(number, 1)[0].state is State.COMPLETED


CAP = 128 * 1024
LINE = b"bytes of output dropped here, the limit is %d]\n" % CAP
WRITTEN = b"".join(b"%06d\n" % n for n in range(1, 150_001))
MORE = b"".join(b"%06d\n" % n for n in range(200_000, 200_010))


class Flood:
    """A running command that has written WRITTEN, of which the middle has been given back; on `go` it writes MORE and ends."""

    def __init__(self, node: WorkNode, slot: Slot, directory: Path) -> None:
        self.node, self.gate = node, directory / "gate"
        wait = f"while [ ! -e {self.gate} ]; do sleep 0.01; done"
        text = f"seq -f %06.0f 1 150000; {wait}; seq -f %06.0f 200000 200009"
        self.seq = node.shell(slot, text, shape=BatchShape(submission=42, output_cap=CAP))
        self.path = slot.directory / "stdout"
        eventually(lambda: slot.live_output(self.seq, "stdout", 0) is not None)
        eventually(lambda: self.path.stat().st_size == len(WRITTEN))
        eventually(lambda: self.path.stat().st_blocks * 512 <= 2 * CAP, "the middle was not given back")
        node.wait(Surprised, lambda event: event.what == "output_capped")
        info = SimpleNamespace(record=SimpleNamespace(user="ann"))
        block = SimpleNamespace(key=SimpleNamespace(submission=42, first=0, end=1, attempt=1), writing=0, info=info)
        self.lane = SimpleNamespace(running_seq=self.seq, since_s=0.0, tasks={self.seq: (block, 0)}, slot=slot, worker=None, runs_by=slot)
        self.store = MemoryStore()
        self.logs = LiveLogs(SimpleNamespace(run=self._run), lambda: None, CAP, partial(Charge, Bounds()))
        agent = SimpleNamespace(lanes=[self.lane], logs=self.logs, blocks={})
        shared = SimpleNamespace(io=SimpleNamespace(store=self.store), log=None)
        starter: Any = SimpleNamespace(agents={"n1": agent}, shared=shared, ask=lambda question: question())
        self.agent = agent
        self.service = NodeAnswering(starter)

    def _run(self, job: Callable[[MemoryStore], Any], done: Callable[[Any], None], **_: object) -> None:
        done(job(self.store))

    def end(self) -> CommandEnd:
        self.gate.touch()
        return self.node.end_of(self.seq)

    def follow(self, offset: int = 0) -> tuple[bytes, int]:
        """(what a reader gets from `offset`, where it goes on)."""
        got = b""
        for piece in self.service.logs(42, 0, attempt=1, stream="stdout", follow=False, offsets=(offset, 0), is_active=lambda: True):
            if piece.data:
                assert piece.offset >= offset
                got, offset = got + piece.data, piece.offset + len(piece.data)
        return got, offset

    def stored(self, parts: int) -> bytes:
        return b"".join(self.store.get(keys.log(42, 0, 1, "stdout", part))[0] for part in range(parts))


@pytest.fixture
def flood(node: WorkNode, slot: Slot, tmp_path: Path) -> Iterator[Flood]:
    flood = Flood(node, slot, tmp_path)
    yield flood
    Path(flood.end().out.path).unlink(missing_ok=True)


def is_whole_but_for_one_gap(got: bytes, written: bytes) -> bool:
    """Its first and its last part, and between them a line that counts exactly what is missing."""
    assert b"\0" not in got
    before, _, rest = got.partition(b"\n[rmgr: ")
    count, _, after = rest.partition(b" " + LINE)
    assert got.count(LINE) == 1
    assert len(before) + int(count) + len(after) == len(written)
    return written.startswith(before) and written.endswith(after) and len(before) >= CAP // 2 and len(after) >= CAP // 2 - 4096


def test_a_follower_that_is_behind_gets_a_line_for_the_dropped_middle_once(flood: Flood) -> None:
    got, at = flood.follow()
    assert is_whole_but_for_one_gap(got, WRITTEN)
    assert at == len(WRITTEN)
    assert flood.follow(at) == (b"", at)
    # Behind into the gap itself: it misses only what it has not had.
    got, at = flood.follow(len(WRITTEN) // 2)
    count = int(got.removeprefix(b"\n[rmgr: ").split()[0])
    assert (at, got.count(LINE)) == (len(WRITTEN), 1)
    assert WRITTEN[len(WRITTEN) // 2 + count :] == got[got.index(LINE) + len(LINE) :]
    assert b"\0" not in got


def test_what_is_flushed_of_it_holds_no_hole_and_goes_on_to_the_end(flood: Flood) -> None:
    flood.logs.flush([flood.lane], time.monotonic())
    eventually(lambda: not flood.logs._flushed[flood.seq].is_flushing)
    flood.logs._flushed[flood.seq].next_s = -math.inf
    flood.logs.flush([flood.lane], time.monotonic())
    flushed = flood.logs.take(flood.seq)
    stored = flushed.streams[0]
    assert is_whole_but_for_one_gap(flood.stored(stored.parts), WRITTEN)
    assert (stored.size, stored.parts) == (len(WRITTEN), 2)
    ending = of_command(flood.end())
    ending.flushed = flushed
    written = write(flood.store, 42, 0, 1, ending)
    assert written.log[0] == MORE
    assert is_whole_but_for_one_gap(flood.stored(written.log_parts[0]) + written.log[0], WRITTEN + MORE)


@pytest.mark.parametrize("had", [0, 1000, CAP // 2, len(WRITTEN) // 2, len(WRITTEN)])
def test_a_follower_gets_the_rest_of_it_after_its_end(flood: Flood, had: int) -> None:
    """Its positions are those of what was written, however little of that is stored."""
    ending = of_command(flood.end())
    written = write(flood.store, 42, 0, 1, ending)
    assert written.log_parts[0] == 1
    flood.agent.lanes.clear()
    flood.logs.recent[42, 0] = (1, written.log, written.log_parts)
    got, at = flood.follow(had)
    assert at == len(WRITTEN + MORE)
    assert got.endswith(MORE)
    if had == len(WRITTEN):
        assert got == MORE
    elif had <= CAP // 2:
        assert is_whole_but_for_one_gap(WRITTEN[:had] + got, WRITTEN + MORE)
    else:
        count = int(got.removeprefix(b"\n[rmgr: ").split()[0])
        assert (WRITTEN + MORE)[had + count :] == got[got.index(LINE) + len(LINE) :]
