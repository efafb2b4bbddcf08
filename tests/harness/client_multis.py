"""What honest clients send through a gateway: one multi or more of every operation, and what the gateway then knows of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from rmgr.client.ports import TaskSpec
from rmgr.client.submission.packing import Packed, block_of
from rmgr.coord.decisions import amending, gating
from rmgr.coord.ops import join as join_ops
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import operator as operator_ops
from rmgr.coord.ops import owner as owner_ops
from rmgr.coord.ops import request as request_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import no_outcome
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import ConflictKind, Multi, Stamped, Stat
from rmgr.coord.protocol.records import encode_block, encode_failed, encode_record
from rmgr.coord.rebuild.parts import Moved, SubmissionFacts
from rmgr.errors import PermissionDenied
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import Drain, InboxOrder, OrderKind, SubmitterEntry
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.outcome import FailedRange, Fragment, Outcome
from rmgr.model.tasks.request import CancelRequest, StopKind, StopRequest
from rmgr.model.tasks.submission import Command, Condition, Dependency, Phase, Submission, Tail, Terms, Work

GUID, OTHER = "0123456789abcdef" * 2, "f" * 32
PEM, KEY_ID = b"-----BEGIN CERTIFICATE-----\n", "a" * 32
ANN = Submission(
    id=42,
    name="x",
    user="ann",
    queue="default",
    work=Work.COMMAND,
    command=Command(argv=("true",)),
    submitted_us=1,
    nonce="a" * 32,
    signed_s=1,
    owner=GUID,
)
TAIL = Tail(next=0, reigns=((0, GUID),))


def block(first: int = 0, count: int = 4, *, submission: int = 42, payloads: bool = True, row: str = "") -> tuple[BlockKey, BlockData]:
    """A new one, as clients make it."""
    texts = tuple(b"%d" % at for at in range(count)) if payloads else (b"",) * count
    packed = Packed(TaskSpec(function=""), first, texts, False, row, bool(row))
    return block_of(packed, submission=submission, priority=0, cores=1, memory_mib=0, user="ann", row=row)


def stamped(data: bytes, version: int) -> Stamped:
    return Stamped(data, Stat(version, 1, 0, 0, 0, 0))


WAITS = replace(block(10, 6)[0], seq=3)
WAITS_DATA = block(10, 6)[1]
FAILED = FailedRange(
    queue="default",
    seq=3,
    priority=0,
    cores=1,
    memory_mib=0,
    reason=Reason.NODE_LOST,
    block=encode_block(WAITS_DATA),
    node="n1",
    alone=True,
)
ENDED = msgspec.structs.replace(FAILED, reason=Reason.EXIT_CODE)


@dataclass
class Tree:
    """`Known` of a cluster that is this."""

    ids: tuple[int, int] = (42, 7)
    of: dict[int, SubmissionFacts] = field(default_factory=lambda: {42: SubmissionFacts.of(ANN)})
    tails: dict[int, tuple[int, Tail]] = field(default_factory=lambda: {42: (3, TAIL)})
    znodes: dict[str, Stamped] = field(default_factory=dict)
    config: ClusterSettings = ClusterSettings()
    user: str = ""
    is_operator: bool = False

    def number(self, version: int) -> int:
        if version != self.ids[1]:
            raise Moved(paths.IDS, ConflictKind.BAD_VERSION)
        return self.ids[0]

    def facts(self, submission: int) -> SubmissionFacts:
        if submission not in self.of:
            raise Moved(paths.tail(submission), ConflictKind.NO_NODE)
        return self.of[submission]

    def tail(self, submission: int, version: int) -> Tail:
        known = self.tails.get(submission)
        if known is None or known[0] != version:
            raise Moved(paths.tail(submission), ConflictKind.BAD_VERSION)
        return known[1]

    def read(self, path: str, version: int) -> Stamped:
        found = self.znodes.get(path)
        if found is None or found.version != version:
            raise Moved(path, ConflictKind.NO_NODE)
        return found

    def settings(self) -> ClusterSettings:
        return self.config

    def certificate(self, pem: bytes) -> tuple[str, bytes]:
        if pem != PEM:
            raise PermissionDenied("IDENTIFY: that is not the certificate of your own key")
        return KEY_ID, PEM


def cancelled(*indices: int) -> Fragment:
    return no_outcome(State.CANCELLED, Reason.USER_CANCEL, indices, "")


def submits() -> list[tuple[Multi, Tree]]:
    """Of new submissions."""
    made = []
    for record, blocks, bucket in (
        (ANN, [block(), block(4)], False),
        (replace(ANN, owner=""), [block(row=f"args/{42:010d}/{0:010d}/{'b' * 64}", payloads=False)], True),
        (ANN, [], False),
        (replace(ANN, max_running=2), [block()], False),
        (replace(ANN, phase=Phase.HELD, reason=Reason.USER_HOLD), [block()], False),
        (
            replace(ANN, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=(Dependency(condition=Condition.OK, submission=7),)),
            [block()],
            False,
        ),
        (replace(ANN, token="t"), [block()], True),
    ):
        tail = Tail(next=sum(key.count for key, _ in blocks), complete=bool(blocks), reigns=((0, record.owner),) if record.owner else ())
        held = True if record.max_running else None
        multi = ops.submit(record, ids_version=7, tail=tail, blocks=blocks, make_bucket=bucket, held=held)
        made.append((multi, Tree()))
    return made


def grown() -> list[tuple[Multi, Tree]]:
    """Of submissions that grow."""

    def tail(end: int) -> Tail:
        return replace(TAIL, next=end, enqueued="0123-1")

    refused = Fragment(attempt=0, outcomes=(Outcome(index=4, state=State.FAILED, reason=Reason.OUTPUT_EXISTS, error="taken"),))
    capped = Tree(of={42: SubmissionFacts.of(replace(ANN, max_running=1))})
    key, data = block(0, 1)
    return [
        (ops.enqueue(42, "default", tail=tail(8), tail_version=3, blocks=[block(), block(4)], held=False), Tree()),
        (ops.enqueue(42, "default", tail=tail(4), tail_version=3, blocks=[block()], held=True), capped),
        (ops.enqueue(42, "default", tail=replace(tail(0), complete=True), tail_version=3, blocks=[], held=False), Tree()),
        (
            ops.enqueue(42, "default", tail=tail(5), tail_version=3, blocks=[block(1, 3)], held=False, ended=[cancelled(0), refused]),
            Tree(),
        ),
        (ops.hand(42, tail=tail(1), tail_version=3, key=key, data=data, node="n1", node_version=9), Tree()),
    ]


def changes() -> list[tuple[Multi, Tree]]:
    """The rest."""
    range_ = paths.failed_range(42, 10, 6, 1)
    lost, over = Tree(znodes={range_: stamped(encode_failed(FAILED), 0)}), Tree(znodes={range_: stamped(encode_failed(ENDED), 0)})
    waiting = {where(WAITS): stamped(encode_block(WAITS_DATA), 5) for where in (_pending, _held)}
    record = Tree(znodes={paths.sub(42): stamped(encode_record(ANN), 1)})
    held = gating.held(ANN, "why")
    assert isinstance(held, gating.Change)
    free = gating.released(held.record)
    gone = gating.cancelled(ANN, "why")
    assert isinstance(free, gating.Change)
    assert isinstance(gone, gating.Change)
    ann = gating.Doer(name="ann", now_us=5)
    changed = amending.amended(ANN, Terms(priority=-3, memory_bytes=1 << 30), ann)
    waits = amending.amended(ANN, Terms(after=(Dependency(condition=Condition.OK, submission=7),)), ann)
    assert isinstance(changed, gating.Change)
    assert isinstance(waits, gating.Change)
    later = amending.amended(changed.record, Terms(time_limit_us=9), ann)
    assert isinstance(later, gating.Change)
    moves = amending.amended(ANN, Terms(queue="batch"), ann)
    assert isinstance(moves, gating.Change)
    wider = amending.amended(ANN, Terms(cores=3), ann)
    assert isinstance(wider, gating.Change)
    of_changed = Tree(znodes={paths.sub(42): stamped(encode_record(changed.record), 2)})
    of_held = Tree(znodes={paths.sub(42): stamped(encode_record(held.record), 2)})
    what = InboxOrder(order=OrderKind.CANCEL, submission=42, index=1, reason=Reason.USER_CANCEL)
    drain = Drain(node="n1", reason="r", user="olga", since_us=1)
    return [
        (leader_ops.resubmit(ANN, 10, 6, 1, FAILED, 0, gate=True, max_losses=5)[0], lost),
        (leader_ops.resubmit(ANN, 10, 6, 1, FAILED, 0, gate=False, max_losses=5)[0], lost),
        (leader_ops.resubmit(ANN, 10, 6, 1, ENDED, 0, gate=True, max_losses=5)[0], over),
        (leader_ops.cancel_failed(ANN, 10, 6, 1, FAILED, 0, reason=Reason.USER_CANCEL), lost),
        (ops.take_out("default", WAITS, WAITS_DATA, 5, indices=[12], fragment=cancelled(12)), Tree(znodes=waiting)),
        (ops.take_out("default", WAITS, WAITS_DATA, 5, indices=[12], fragment=cancelled(12), held=True), Tree(znodes=waiting)),
        (ops.set_record(held.record, version=1, gate=held.gate), record),
        (ops.set_record(gone.record, version=1, gate=gone.gate), record),
        (ops.set_record(free.record, version=2, gate=free.gate), of_held),
        (ops.update(changed.record, version=1, gate=changed.gate), record),
        (ops.update(waits.record, version=1, gate=waits.gate), record),
        (ops.update(later.record, version=2, gate=later.gate), of_changed),
        (ops.update(moves.record, version=1, gate=moves.gate), record),
        (ops.update(wider.record, version=1, gate=wider.gate), record),
        (
            owner_ops.take_ownership(replace(ANN, owner=OTHER), 1, owner_ops.taken_over(TAIL, OTHER, "f-over"), 3),
            record,
        ),
        (leader_ops.order("n1", GUID, what), Tree()),
        (request_ops.ask(GUID, CancelRequest(submission=42, tasks=((1, 2),))), Tree()),
        (request_ops.ask(GUID, StopRequest(kind=StopKind.MIGRATE, submission=42, to="n1")), Tree()),
        (owner_ops.enter(SubmitterEntry(guid=GUID, host="h", pid=1, since_us=1)), Tree()),
        (join_ops.identify(KEY_ID, PEM), Tree()),
        (operator_ops.drain(drain, None), Tree()),
        (operator_ops.drain(drain, 3), Tree()),
        (operator_ops.resume(drain, 0), Tree()),
        (operator_ops.set_settings(ClusterSettings(), 0), Tree()),
    ]


def _pending(key: BlockKey) -> str:
    return paths.pending_block("default", key)


def _held(key: BlockKey) -> str:
    return paths.held_block("default", key)


def everything() -> list[tuple[Multi, Tree]]:
    """Of every operation at least one."""
    return [*submits(), *grown(), *changes()]
