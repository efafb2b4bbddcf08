"""Amendments and starts at the same moment, in every order that Hypothesis finds: a start uses the record's current terms."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rmgr.coord import validity
from rmgr.coord.decisions.changing import Change, Doer, amended, held, released
from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Create, Exists, Multi
from rmgr.coord.protocol.records import encode_record
from rmgr.model.block import Allocation, BlockData, BlockKey
from rmgr.model.submission import Command, Phase, Submission, Tail, Terms, Work, key_now
from tests.harness.memory_tree import MemoryTree

QUEUE, NODE = "default", "n1"
RECORD = Submission(id=42, name="x", user="ann", queue=QUEUE, work=Work.COMMAND, command=Command(argv=("a",)), priority=9)
ANN = Doer(name="ann", now_us=1)
KEY = BlockKey(priority=9, seq=0, submission=42, first=0, count=1, attempt=1, cores=1, memory_mib=0)


class Cluster:
    """A submission whose one block waits, its user, and a Starter and a leader that have read its record some time ago."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.session = self.tree.open_session()
        for path in (*paths.SKELETON, paths.queue(QUEUE), paths.pending(QUEUE), paths.held(QUEUE), paths.subs_bucket(42)):
            self.tree.create(self.session, path)
        for path in (paths.node(NODE), paths.running_node(NODE), paths.inbox_node(NODE)):
            self.tree.create(self.session, path)
        made = (Create(paths.sub(42), encode_record(RECORD)), Create(paths.gate(42)), ops.enter(QUEUE, KEY, BlockData(), held=False))
        self.send(Multi(name="SUBMIT", ops=made, proof=Exists(paths.sub(42))))
        self.seen = RECORD  #: by the Starter and the leader

    def send(self, multi: Multi) -> bool:
        outcome, _ = self.tree.apply(self.session, multi)
        assert isinstance(outcome, Committed | Conflict), outcome
        return isinstance(outcome, Committed)

    def record(self) -> tuple[Submission, int]:
        data, stat = self.tree.get(paths.sub(42))
        return validity.submission(data, 42), stat.version

    def waiting(self) -> tuple[str, BlockKey] | None:
        for parent in (paths.pending(QUEUE), paths.held(QUEUE)):
            for name in self.tree.children(parent):
                return f"{parent}/{name}", paths.parse_block(name)
        return None

    def running(self) -> list[BlockKey]:
        return [paths.parse_block(name) for name in self.tree.children(paths.running_node(NODE))]

    def update(self, memory_mib: int, waiting: str) -> bool:
        record, version = self.record()
        change = amended(record, Terms(memory_bytes=memory_mib << 20), ANN)
        return isinstance(change, Change) and self.send(ops.update(change.record, version=version, gate=change.gate, waiting=[waiting]))

    def hold(self) -> None:
        record, version = self.record()
        change = held(record, "", ANN) if record.phase is Phase.OPEN else released(record, ANN)
        assert isinstance(change, Change)
        assert self.send(ops.set_record(change.record, version=version, gate=change.gate))

    def claim(self, key: BlockKey) -> bool:
        named, data = key_now(key, self.seen), BlockData(incarnation=1, stamp="s")
        multi, _ = ops.claim(NODE, 0, QUEUE, key, data, 0, take=1, gate=len(self.seen.changes), named=named)
        return self.send(multi)

    def place(self, key: BlockKey) -> bool:
        memory_mib = self.seen.request.memory_bytes >> 20
        shares = ((NODE, 1),)
        allocation = Allocation(shares=shares, threads=1, memory_mib=memory_mib, changes=len(self.seen.changes))
        job = place_ops.Assigned(
            queue=QUEUE, key=key, data=BlockData(), version=0, allocation=allocation, fences=((NODE, 0),), incarnation=1,
            guid="g", stamp="s",
        )  # fmt: skip
        return self.send(place_ops.place([job], []))


steps = st.lists(st.sampled_from(("update", "hold", "read", "claim", "place")), max_size=12)


@given(steps, st.sampled_from(("claim", "place")))
def test_what_starts_has_the_terms_of_the_record_as_it_is_then(taken: list[str], last: str) -> None:
    cluster = Cluster()
    for at, step in enumerate([*taken, "read", last], 1):
        found = cluster.waiting()
        if found is None:
            break
        path, key = found
        if step == "update":
            cluster.update(at, path)
        elif step == "hold":
            cluster.hold()
        elif step == "read":
            cluster.seen = cluster.record()[0]
        elif getattr(cluster, step)(key):
            now = cluster.record()[0]
            assert cluster.seen.changes == now.changes, "it was started by a record that was not so any more"
            assert [one.memory_mib for one in cluster.running()] == [now.request.memory_bytes >> 20]
            assert not cluster.update(99, path), "and what has started is not changed as if it waited"
            return
    if cluster.record()[0].phase is Phase.OPEN:
        assert cluster.waiting() is None, "what reads the record anew can always start it"


@given(st.permutations(["update", "start"]), st.sampled_from(("claim", "place")))
def test_of_a_change_and_a_start_in_the_same_moment_one_is_made(order: list[str], kind: str) -> None:
    cluster = Cluster()
    found = cluster.waiting()
    assert found is not None
    path, key = found
    record, version = cluster.record()
    change = amended(record, Terms(memory_bytes=1 << 30), ANN)
    assert isinstance(change, Change)
    multi = ops.update(change.record, version=version, gate=change.gate, waiting=[path])  # both decided by what was read before
    made = {what: cluster.send(multi) if what == "update" else getattr(cluster, kind)(key) for what in order}
    assert made == {order[0]: True, order[1]: False}


def test_a_block_is_not_handed_over_once_terms_were_changed() -> None:
    cluster = Cluster()
    found = cluster.waiting()
    assert found is not None
    assert cluster.update(64, found[0])
    cluster.tree.create(cluster.session, paths.tail(42))
    cluster.tree.create(cluster.session, paths.idle(NODE))
    key, tail = replace(KEY, first=1), Tail(next=2)
    assert not cluster.send(ops.hand(42, tail=tail, tail_version=0, key=key, data=BlockData(), node=NODE, node_version=0))
