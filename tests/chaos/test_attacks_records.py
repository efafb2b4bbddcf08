"""Row 39: a stolen gateway writes forbidden values into every field of every record and into every name.

Mallory writes thousands of such znodes into one living secured cluster while ann works: hers goes on, nothing of his runs, what can be
ended ends UNTRUSTED, and once all of it has been looked at no daemon uses its processor, memory or log for it any more.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Op, Set
from rmgr.coord.protocol.records import decode_record, encode_block, encode_fragment, encode_record
from rmgr.model.base import Request
from rmgr.model.block import MOST_TASKS, BlockData, BlockKey, FailedRange, Fragment, Outcome, StopRequest
from rmgr.model.identity import Role
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.queue import ClusterSettings, QueueSpec
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Paged, Submission, Tail, Work
from tests.harness import hostile
from tests.harness.attacker import Person, Scene, unique
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually

#: Numbers of submissions that nobody was given; each attack has thousands of its own.
_FIRST = 4_000_000
#: A daemon that has nothing to do uses less of a processor, and writes less, than this; bounds for a busy machine.
_IDLE_SHARE, _IDLE_LOG_BYTES = 0.35, 20_000
#: What all of it may leave in a daemon's memory.
_MEMORY_BYTES = 200 << 20
_KEY = BlockKey(priority=0, seq=0, submission=1, first=0, count=1, attempt=1, cores=1, memory_mib=0)
SAMPLES = {type(record): record for record in hostile.SAMPLES}


@pytest.fixture
def scene(zookeeper_parts: None, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, heap_mb=256)  # mallory writes more than the quotas of a smaller one allow
    try:
        yield made
    finally:
        made.close()


class Attack:
    """Mallory's submissions: made whole, but for what he puts into them."""

    def __init__(self, scene: Scene, first: int) -> None:
        self.scene = scene
        self.zk = scene.mallory.zk
        self.next = first
        self.flying: list[Any] = []
        self.refused = 0
        self.touch = Command(argv=("/bin/sh", "-c", f"touch {scene.canary}"))

    def record(self, number: int) -> Submission:
        return Submission(id=number, name="m", user="mallory", queue="default", work=Work.COMMAND, command=self.touch)

    def submit(self, **parts: bytes | None) -> int:
        """One submission with one block; parts: bytes of record, tail, done, failed, block, name, fragment (None: left out)."""
        number, self.next = self.next, self.next + 1
        if number % 1000 == 0 or not self.flying:
            self.send(Create(paths.subs_bucket(number)))
        name = parts.pop("name", None)
        told = {
            "record": encode_record(self.record(number)),
            "tail": encode_record(Tail(next=1, complete=True)),
            "done": b"",
            "failed": b"",
            "block": encode_block(BlockData()),
        } | parts
        ops: list[Op] = [Create(paths.sub(number), told["record"] or b"")]
        ops += [Create(f"{paths.sub(number)}/{part}", told[part] or b"") for part in ("tail", "done", "failed") if told[part] is not None]
        ops.append(Create(paths.gate(number)))
        if told["block"] is not None:
            prefix = name.decode() if name is not None else paths.block_prefix(replace(_KEY, submission=number))
            ops.append(Create(f"{paths.pending('default')}/{prefix}", told["block"], sequence=True))
        if (fragment := parts.get("fragment")) is not None:
            ops.append(Create(paths.fragment_prefix(number), fragment, sequence=True))
        self.send(*ops)
        return number

    def send(self, *ops: Op) -> None:
        self.flying.append(self.zk.commit(Multi(name="ATTACK", ops=ops, proof=Exists(ops[0].path)), timeout_s=60))

    def wait(self) -> int:
        """Everything was answered. Returns: how many were made."""
        made = 0
        for future in self.flying:
            try:
                made += isinstance(future.result(90), Committed)
            except Exception:
                self.refused += 1
        self.flying.clear()
        return made


class Honest(threading.Thread):
    """Ann works all the time: one task after another. longest_s: that one of them took, fair."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(daemon=True)
        self.done, self.longest_s, self.error = 0, 0.0, ""
        self._scene = scene
        self._is_over = threading.Event()

    def run(self) -> None:
        try:
            with FairTimer() as timer, self._scene.ann.connection() as connection:
                queue = TaskQueue(_plus_one, connection=connection, name=unique())
                while not self._is_over.is_set():
                    begun_s = timer.elapsed_s
                    assert queue.submit_call(self.done).result(120) == self.done + 1
                    self.longest_s = max(self.longest_s, timer.elapsed_s - begun_s)
                    self.done += 1
                    time.sleep(0.01)
                queue.close()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._is_over.set()
        self.join(150)
        assert not self.error
        assert self.done


def _plus_one(value: int) -> int:
    return value + 1


def _processes(scene: Scene) -> dict[str, psutil.Process]:
    return {item.id: psutil.Process(item.pid) for item in scene.cluster.state.processes if item.id.startswith(("n", "w"))}


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _is_calm(scene: Scene, for_s: float = 2.0) -> str:
    """"" once no daemon does anything worth telling; else who does what."""
    processes = _processes(scene)
    before = {name: (_used_s(process), scene.cluster.log_file(name).stat().st_size) for name, process in processes.items()}
    time.sleep(for_s)
    for name, process in processes.items():
        used = (_used_s(process) - before[name][0]) / for_s
        written = scene.cluster.log_file(name).stat().st_size - before[name][1]
        if used > _IDLE_SHARE or written > _IDLE_LOG_BYTES:
            return f"{name} uses {used:.2f} of a processor and writes {written} bytes in {for_s} s"
    return ""


def test_every_field_of_every_record_with_every_hostile_value(scene: Scene) -> None:
    honest = Honest(scene)
    honest.start()
    memory = {name: process.memory_info().rss for name, process in _processes(scene).items()}
    attack = Attack(scene, _FIRST)
    mine = attack.submit(block=None)
    _records(attack)
    _blocks(attack)
    _outcomes(attack, mine)
    _orders_and_requests(attack, mine)
    _names(attack)
    made = attack.wait()
    assert made > 2000, (made, attack.refused)
    _ends(scene, attack, mine)
    honest.stop()
    assert not scene.canary.exists()
    last = ""
    for _ in range(60):
        last = _is_calm(scene)
        if not last:
            break
    assert not last, last
    for name, process in _processes(scene).items():
        grown = process.memory_info().rss - memory[name]
        assert grown < _MEMORY_BYTES, f"{name} has {grown >> 20} MiB more"
    assert honest.longest_s < 30
    number = scene.submit()
    assert scene.outcomes(number)[0].state is State.COMPLETED
    scene.canary.unlink()
    _admission(scene)


def _admission(scene: Scene) -> None:
    """Blocks that a client of ann's own making writes into queues that do not admit them."""
    admin = Person(scene.cluster, Role.ADMIN, "admin")
    try:
        found = admin.zk.get(paths.CONFIG).result(60)
        assert found is not None
        old = decode_record(found.data, ClusterSettings)
        queues = (QueueSpec(name="few", users=("bob",)), QueueSpec(name="shut", state="closed"), QueueSpec(name="low", max_memory_bytes=1))
        ops: list[Op] = [Set(paths.CONFIG, encode_record(replace(old, queues=(*old.queues, *queues))), found.version)]
        for queue in queues:
            ops += [Create(paths.queue(queue.name)), Create(paths.pending(queue.name)), Create(paths.held(queue.name))]
        assert isinstance(admin.commit(*ops), Committed)
    finally:
        admin.zk.close()
    eventually(lambda: _serves(scene, "shut"), "the node knows the queues")
    numbers = [scene.submit(queue=queue.name, request=Request(memory_bytes=2)) for queue in queues]

    def told() -> bool:
        return scene.cluster.log_file("n1").read_text().count('"block_not_admitted"') >= len(numbers)

    eventually(told, "they were passed over")
    number = scene.submit(command=Command(argv=("/bin/true",)))
    assert scene.outcomes(number)[0].state is State.COMPLETED
    assert not scene.canary.exists()
    assert all(scene.ann.zk.get(paths.fragment(number, 0)).result(60) is None for number in numbers)


def _serves(scene: Scene, queue: str) -> bool:
    lines = (json.loads(line) for line in scene.cluster.log_file("n1").read_text().splitlines() if line.startswith("{"))
    return any(line["event"] == "queues" and queue in line["name"] for line in lines)


def _records(attack: Attack) -> None:
    """What SUBMIT makes."""
    for field, label, _ in hostile.hostile(SAMPLES[Submission]):
        plain = json.loads(encode_record(attack.record(attack.next)))
        attack.submit(record=hostile.spoilt_json(plain, field, hostile.VALUES[label]))
    for kind, part in ((Tail, "tail"), (Paged, "done")):
        for _, _, data in hostile.hostile(SAMPLES[kind]):
            attack.submit(**{part: data})
    for part in ("tail", "done", "failed", "block"):
        for _ in range(70):  # more than are read at once
            attack.submit(**{part: None})
    for changes in ({"spec_sha256": "../../x", "command": None}, {"spec_sha256": "0" * 64, "command": None}, {"command": Command()}):
        attack.submit(record=encode_record(replace(attack.record(attack.next), **changes)))
    attack.submit(tail=encode_record(Tail(next=10**15)))


def _blocks(attack: Attack) -> None:
    for _, _, data in hostile.hostile(SAMPLES[BlockData]):
        attack.submit(block=data)
    good = paths.block_prefix(replace(_KEY, submission=7))
    for old, new in ((".001.", ".000."), (".001.", ".999."), (".00001.", ".00000."), (".000001.", ".000000."), (".000001.", ".999999.")):
        for _ in range(20):
            number = f".{attack.next:010d}."
            attack.submit(name=good.replace(".0000000007.", number).replace(old, new).encode())
    for name in (good.replace("1", "\u0661"), "9" * 67, "x" * 67, good.replace(".0000000000.", ".9999999999.")):
        attack.submit(name=name.encode())
    for _, _, data in hostile.hostile(SAMPLES[BlockData]):
        attack.send(Create(paths.running_block("n1", replace(_KEY, submission=attack.next, seq=HANDED_SEQ)), data))
        attack.next += 1


def _outcomes(attack: Attack, mine: int) -> None:
    for kind in (Fragment, Outcome):
        for _, _, data in hostile.hostile(SAMPLES[kind]):
            told = data if kind is Fragment else b"\x94\xa2n1\x01\x00\x91" + data
            attack.submit(fragment=told)
    for _ in range(30):  # each would cost the leader 64 MiB
        far = Fragment(node="n1", outcomes=(Outcome(index=MOST_TASKS - 1),))
        attack.submit(tail=encode_record(Tail(next=MOST_TASKS)), fragment=encode_fragment(far))
        attack.submit(fragment=encode_fragment(far))
    for index in (-1, -5, 1 << 62):
        attack.submit(fragment=encode_fragment(Fragment(node="n1", outcomes=(Outcome(index=index),))))
    for number, (_, _, data) in enumerate(hostile.hostile(SAMPLES[FailedRange])):
        attack.send(Create(f"{paths.failed(mine)}/{number}.1.1", data))
    for name in ("0.0.1", "0.300.1", "01.1.1", "9" * 400, "1.1." + "9" * 300, "\u0661.1.1", "0.1.0"):
        attack.send(Create(f"{paths.failed(mine)}/{name}", b"x"))


def _orders_and_requests(attack: Attack, mine: int) -> None:
    """Of his own submission: that orders are not signed is another matter."""

    def guid() -> str:
        return hashlib.sha256(str(len(attack.flying)).encode()).hexdigest()[:32]

    for _, _, data in hostile.hostile(replace(SAMPLES[InboxOrder], submission=mine)):
        attack.send(Create(paths.inbox("n1", guid()), data))
    for name in ("x+y", "x+" + "9" * 67, f"{unique()}+{paths.block_name(replace(_KEY, submission=attack.next))}", "+", "x" * 300):
        attack.send(Create(paths.inbox("n1", name), encode_record(InboxOrder(order=OrderKind.LOST, submission=mine))))
    for _, _, data in hostile.hostile(replace(SAMPLES[StopRequest], submission=mine)):
        attack.send(Create(paths.request(guid()), data))


def _names(attack: Attack) -> None:
    """Where submitters make directories and entries."""
    for name in ("9" * 5000, "\u0663", "\u00b2", "-1", "007", "1_0", "x", "99999999999999999999"):
        attack.send(Create(f"{paths.SUBS}/{name}"), Create(f"{paths.SUBS}/{name}/{name}", b"{}"))
    bucket = paths.subs_bucket(attack.next + 1_000_000)
    attack.send(Create(bucket))
    for name in ("9" * 5000, "1", "\u0663", "00", f"0{attack.next}", "99999999999999999999"):
        attack.send(Create(f"{bucket}/{name}", b"{}"))
    for name in ("s-", "x", "s-\u0663-1", "s-" + "9" * 3000):
        attack.send(Create(f"{paths.SUBMITTERS}/{name}", b"\xff", ephemeral=True))


def _ends(scene: Scene, attack: Attack, mine: int) -> None:
    """Blocks with honest names have ended UNTRUSTED, or wait where nobody looks; none of them runs."""
    assert mine < attack.next
    number = Attack.submit(attack, record=encode_record(replace(attack.record(attack.next), spec_sha256="../../x")))
    attack.wait()
    [outcome] = scene.outcomes(number)
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.UNTRUSTED), outcome
    assert "spec_sha256" in outcome.error
    number = attack.submit(block=encode_block(BlockData(function="../../x")))
    attack.wait()
    [outcome] = scene.outcomes(number)
    assert outcome.reason is Reason.UNTRUSTED
    assert "function" in outcome.error
