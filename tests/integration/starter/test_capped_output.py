"""Output over its cap, read while it grows: a slow reader gets a line for the dropped middle, never the hole's NULs."""

from __future__ import annotations

import math
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.process import Slot
from rmgr.adapters.host.workevents import Surprised
from rmgr.coord.protocol import keys
from rmgr.daemons.starter.execution.ends import LiveLogs
from rmgr.daemons.starter.node.service import NodeAnswering
from rmgr.daemons.starter.staging.outputs import Charge, of_command, write
from rmgr.model.wire.frames import BatchShape, CommandEnd
from tests.harness.memory_store import MemoryStore
from tests.harness.waiting import eventually
from tests.harness.work_node import WorkNode

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")

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
        self.store = MemoryStore(uuid.uuid4().hex)
        self.logs = LiveLogs(SimpleNamespace(run=self._run), lambda: None, CAP, partial(Charge, Bounds()))  # type: ignore[arg-type]
        agent = SimpleNamespace(lanes=[self.lane], logs=self.logs, blocks={})
        starter: Any = SimpleNamespace(agents={"n1": agent}, ask=lambda question: question())
        self.agent = agent
        self.service = NodeAnswering(starter, self.store, disk=None, spooled=lambda: 0)  # type: ignore[arg-type]

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
        return b"".join(self.store.get(keys.log(42, 0, 1, "stdout", part))[0] for part in range(parts))  # type: ignore[index]


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
    flood.logs.flush([flood.lane], time.monotonic())  # type: ignore[list-item]
    eventually(lambda: not flood.logs._flushed[flood.seq].is_flushing)
    flood.logs._flushed[flood.seq].next_s = -math.inf
    flood.logs.flush([flood.lane], time.monotonic())  # type: ignore[list-item]
    flushed = flood.logs.take(flood.seq)
    assert is_whole_but_for_one_gap(flood.stored(flushed.parts[0]), WRITTEN)
    assert (flushed.sizes[0], flushed.parts[0]) == (len(WRITTEN), 2)
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
