"""The multis of the protocol under every interleaving that Hypothesis finds: lost replies, expired sessions, zombies.

Actors keep stale views on purpose: a rule reads, another one sends a multi built from what was read, others execute
it at the server, deliver or lose its answer. After every step the tree itself is checked:
- I1: every submitted task is in exactly one place: a final outcome, a waiting, claimed or set-aside block, a failed range;
- I2: no task has two outcomes;
- I3: no outcome was committed by an incarnation that was fenced before;
- I4: the attempt of a task never falls;
- I5: every block that waits, or that a failed record carries, is recognised as part of what its user signed.
At the end everything heals, and every task must become final.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from protocol_world import LEADERS, NODES, QUEUE, Actor, Held, World, decode_block, decode_record, signed_by

from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Multi, Outcome
from rmgr.coord.protocol.records import decode_failed, encode_record
from rmgr.coord.seal import seal_blocks
from rmgr.model.base import Capacity
from rmgr.model.block import BlockData, BlockKey, FailedRange, Fragment, PastAttempt, pending_indices
from rmgr.model.block import Outcome as TaskOutcome
from rmgr.model.node import EpochRecord, NodeRecord, NodeState, StarterEntry
from rmgr.model.states import Reason, State
from rmgr.model.submission import Submission, Tail, Work

picks = st.integers(0, 1_000)
#: What becomes of a multi at once: mostly it goes through; else it is executed and its answer waits, or it waits itself.
fates = st.sampled_from(("through", "through", "through", "executed", "waits"))
#: What is done in a step, by weight.
ACTIONS = (
    *("submit",) * 2, *("claim",) * 6, "read", *("complete",) * 6, "give_back", *("stop",) * 2, *("clear",) * 2, "register", "take_over",
    *("fence",) * 2, *("fail",) * 3, *("resubmit",) * 4, *("world",) * 4, "cut", *("mend",) * 2, "expire",
    *("hand",) * 2, *("meet_handed",) * 2,
)  # fmt: skip


class Protocol(World, RuleBasedStateMachine):
    def __init__(self) -> None:
        World.__init__(self)
        self.known: dict[str, tuple[bytes, int]] = {}  #: what the user believes of nodes
        RuleBasedStateMachine.__init__(self)

    @invariant()
    def every_task_is_in_exactly_one_place(self) -> None:
        self.check_places()

    @invariant()
    def every_block_is_what_its_user_signed(self) -> None:
        self.check_seals()

    # -- set-up -----------------------------------------------------------------------------------------------------------

    @initialize()
    def set_up(self) -> None:
        for path in (*paths.SKELETON, paths.queue(QUEUE), paths.pending(QUEUE), paths.held(QUEUE), paths.subs_bucket(1), paths.IDS):
            self.tree.create(self.actors["user"].link.session_id, path)
        session = self.actors["user"].link.session_id
        self.tree.apply(session, Multi(name="SETUP", ops=(ops.Set(paths.IDS, encode_record(1), 0),), proof=ops.Exists(paths.IDS)))
        for node in NODES:
            self.register(node, "through")
        self.take_over("w1", "through")

    def meet(self, who: str, fate: str) -> None:
        """What becomes of the multi that `who` has just sent."""
        if fate == "waits":
            return
        self.server(who, 1)
        if fate == "through":
            self.client(who, 20)

    # -- one step: an actor does something, with one fate ------------------------------------------------------------------

    @rule(
        action=st.sampled_from(ACTIONS), which=st.integers(0, 1), pick=picks, number=st.integers(1, 6), mask=st.integers(1, 63),
        flag=st.booleans(), fate=fates,
    )
    def step(self, action: str, which: int, pick: int, number: int, mask: int, flag: bool, fate: str) -> None:
        node, leader, anyone = NODES[which], LEADERS[which], (*NODES, *LEADERS, "user")[pick % 5]
        match action:
            case "submit":
                self.submit(number, resubmit=flag or mask > 8, retries=pick % 3, fate=fate)
            case "claim":
                if not flag or self.actors[node].seen is None:
                    self.read_pending(node, pick % 3)
                self.claim(node, number, fate)
            case "hand":
                self.hand(node, number, pick, look=flag, fate=fate)
            case "meet_handed":
                self.meet_handed(node)
            case "read":
                self.read_pending(node, pick)
            case "complete":
                self.complete(node, pick, mask, ends_well=flag, fate=fate)
            case "give_back":
                self.give_back(node, pick, fate)
            case "stop":
                self.stop(node, pick, fate)
            case "clear":
                self.clear_own_past(node, pick, fate)
            case "register":
                self.register(node, fate)
            case "take_over":
                self.take_over(leader, fate)
            case "fence":
                self.fence(leader, node, fate)
            case "fail":
                self.fail(leader, node, pick, fate)
            case "resubmit":
                self.resubmit_one(leader if flag else "user", pick)
                self.meet(leader if flag else "user", fate)
            case "world":
                self.server(anyone, number)
                self.client(anyone, number * 3)
            case "cut":
                self.actors[anyone].link.cut()
                if flag:
                    self.actors[anyone].link.reconnect()
            case "mend":
                self.actors[anyone].link.reconnect()
            case _:
                self.actors[node].link.expire()

    # -- the world: servers execute, answers arrive, links fall -------------------------------------------------------------

    def server(self, who: str, times: int) -> None:
        for _ in range(times):
            self.actors[who].link.server_step()
            self.look()

    def client(self, who: str, times: int) -> None:
        for _ in range(times):
            self.actors[who].link.client_step()
        self.actors[who].settle()

    # -- the user -------------------------------------------------------------------------------------------------------------

    def submit(self, count: int, resubmit: bool, retries: int, fate: str) -> None:
        found = self.znode(paths.IDS)
        if found is None or len(list(self.submissions())) >= 3:
            return
        number = int(found[0])
        nonce = f"{int(self.fresh()):032x}"
        record = Submission(id=number, name="x", user="u", queue=QUEUE, work=Work.PYTHON, resubmit=resubmit, retries=retries, nonce=nonce)
        key = BlockKey(priority=0, seq=0, submission=number, first=0, count=count, attempt=1, cores=1, memory_mib=0)
        data = BlockData(resubmit=resubmit, retries=retries, payloads=tuple(bytes([index]) for index in range(count)), stamp=self.fresh())
        blocks = seal_blocks([(key, data)], key_id="k", not_after_s=9, sign=bytes, **signed_by(record))
        tail = Tail(next=count, complete=True, enqueued=self.fresh())
        multi = ops.submit(record, ids_version=found[1], tail=tail, blocks=blocks, make_bucket=False)
        self.actors["user"].send(multi, lambda _: None)
        self.meet("user", fate)

    def hand(self, node: str, count: int, pick: int, look: bool, fate: str) -> None:
        """A hungry node is handed the next tasks of a submission; what is known of the node may be old."""
        starter, user = self.actors[node], self.actors["user"]
        known = [(number, record, tail) for number, record, tail in self.submissions() if tail.next < 40]
        if starter.fence is None or not known or user.flying:
            return
        if self.znode(paths.idle(node)) is None:
            starter.send(ops.mark_idle(node, starter.fence, idle=True), lambda _: None)
            self.meet(node, fate)
        found = self.znode(paths.node(node))
        if look or node not in self.known:
            self.known[node] = found
        data, fence = self.known[node]
        if decode_record(data, NodeRecord).state is not NodeState.UP:
            return
        number, record, tail = known[pick % len(known)]
        version = self.znode(paths.tail(number))[1]
        key = BlockKey(priority=0, seq=0, submission=number, first=tail.next, count=count, attempt=1, cores=1, memory_mib=0)
        payloads = tuple(bytes([index]) for index in range(key.first, key.end))
        block = BlockData(resubmit=record.resubmit, retries=pick % 3, payloads=payloads, base=key.first)
        [(_, block)] = seal_blocks([(key, block)], key_id="k", not_after_s=9, sign=bytes, **signed_by(record))
        grown = Tail(next=key.end, complete=True, enqueued=self.fresh())
        user.send(ops.hand(number, tail=grown, tail_version=version, key=key, data=block, node=node, node_version=fence), lambda _: None)
        self.meet("user", fate)

    def meet_handed(self, node: str) -> None:
        """A Starter whose mark went finds what it was handed: blocks without an incarnation among those of its node."""
        actor = self.actors[node]
        found = self.znode(paths.node(node))
        if actor.fence is None or found is None or found[1] != actor.fence:
            return
        for name in self.names(paths.running_node(node)):
            key = paths.parse_block(name)
            data, version = self.znode(f"{paths.running_node(node)}/{name}")
            block = decode_block(data)
            if key.seq == ops.HANDED_SEQ and not block.incarnation and key not in actor.claimed:
                actor.claimed[key] = Held(key, msgspec.structs.replace(block, incarnation=actor.incarnation, stamp=self.fresh()), version)

    def resubmit_one(self, who: str, pick: int) -> None:
        waiting = [(number, record, name) for number, record, _ in self.submissions() for name in self.names(paths.failed(number))]
        if not waiting:
            return
        number, record, name = waiting[pick % len(waiting)]
        data, version = self.tree.get(f"{paths.failed(number)}/{name}")[0], self.znode(f"{paths.failed(number)}/{name}")[1]
        first, count, attempt = paths.parse_failed_range(name)
        multi, _ = leader_ops.resubmit(record, first, count, attempt, decode_failed(data), version, gate=True, max_losses=3)
        self.actors[who].send(multi, lambda _: None)

    # -- Starters ---------------------------------------------------------------------------------------------------------------

    def register(self, node: str, fate: str) -> None:
        actor = self.actors[node]
        if actor.flying:
            return
        found = self.znode(paths.node(node))
        old = decode_record(found[0], NodeRecord) if found else None
        incarnation = old.incarnation + 1 if old else 1
        record = NodeRecord(
            node=node, incarnation=incarnation, state=NodeState.UP, guid=self.fresh(), capacity=Capacity(cores=2, memory_bytes=0)
        )
        entry = StarterEntry(guid=record.guid, nodes=(node,), endpoint="", host="", pid=0)
        actor.claimed.clear()
        actor.fence = None

        def landed(outcome: Outcome) -> None:
            if isinstance(outcome, Committed):
                actor.fence = 0 if found is None else found[1] + 1
                actor.incarnation = incarnation

        actor.send(ops.register([(record, found[1] if found else None)], entry), landed)
        self.meet(node, fate)

    def read_pending(self, node: str, pick: int) -> None:
        names = self.names(paths.pending(QUEUE))
        if names:
            name = names[pick % len(names)]
            data, version = self.znode(f"{paths.pending(QUEUE)}/{name}")
            self.actors[node].seen = (paths.parse_block(name), data, version)

    def claim(self, node: str, take: int, fate: str) -> None:
        actor = self.actors[node]
        if actor.seen is None or actor.fence is None:
            return
        key, raw, version = actor.seen
        actor.seen = None
        data = msgspec.structs.replace(decode_block(raw), incarnation=actor.incarnation, stamp=self.fresh())
        multi, mine = ops.claim(node, actor.fence, QUEUE, key, data, version, take=min(take, key.count))
        under = actor.fence

        def landed(outcome: Outcome) -> None:
            if isinstance(outcome, Committed) and actor.fence == under:
                actor.claimed[mine] = Held(mine, ops.cut(data, key.first, mine.first, mine.count))

        actor.send(multi, landed)
        self.meet(node, fate)

    def complete(self, node: str, pick: int, mask: int, ends_well: bool, fate: str) -> None:
        held = self.one_of(self.actors[node], pick)
        if held is None:
            return
        actor = self.actors[node]
        indices = [index for index in pending_indices(held.key, held.data.done) if mask >> (index - held.key.first) & 1]
        if not indices:
            return
        bits = sum(1 << (index - held.key.first) for index in indices)
        data = msgspec.structs.replace(held.data, done=held.data.done | bits, stamp=self.fresh())
        may_retry = held.data.failures < held.data.retries
        outcomes, failed = [], []
        for index in indices:
            value = f"{node}.{actor.incarnation}".encode()
            if ends_well or not may_retry:
                outcomes.append(TaskOutcome(index=index, state=State.COMPLETED if ends_well else State.FAILED, value=value))
            else:
                part = msgspec.structs.replace(ops.cut(held.data, held.key.first, index, 1), done=0)
                failed.append(
                    (
                        index,
                        1,
                        FailedRange(
                            queue=QUEUE, seq=held.key.seq, priority=0, cores=1, memory_mib=0, reason=Reason.EXIT_CODE,
                            block=ops.encode_block(part),
                        ),
                    )
                )
        fragment = Fragment(node=node, attempt=held.key.attempt, outcomes=tuple(outcomes)) if outcomes else None
        self.change(actor, held, data, ops.complete(node, actor.fence, held.key, data, held.version, fragment=fragment, failed=failed))
        self.meet(node, fate)

    def give_back(self, node: str, pick: int, fate: str) -> None:
        actor = self.actors[node]
        held = self.one_of(actor, pick)
        if held is None:
            return
        missing = pending_indices(held.key, held.data.done)
        first = missing[-1]
        if held.data.done >> (first - held.key.first):
            return  # something behind it is done or given back: only a clean tail can go
        stamped = msgspec.structs.replace(held.data, stamp=self.fresh())
        multi, rest = ops.give_back(node, actor.fence, QUEUE, held.key, stamped, held.version, first=first)
        done = stamped.done | ((1 << rest.count) - 1) << (first - held.key.first)
        self.change(actor, held, msgspec.structs.replace(stamped, done=done), multi)
        self.meet(node, fate)

    def stop(self, node: str, pick: int, fate: str) -> None:
        """A job is stopped to go on elsewhere: its block waits again as the next attempt."""
        actor = self.actors[node]
        held = self.one_of(actor, pick)
        if held is None or held.data.done:
            return
        past = PastAttempt(attempt=held.key.attempt, node=node, reason=Reason.MIGRATED)
        multi, _ = place_ops.stop(node, actor.fence, QUEUE, held.key, held.data, held.version, past=past, stamp=self.fresh())
        self.change(actor, held, msgspec.structs.replace(held.data, done=(1 << held.key.count) - 1), multi)
        self.meet(node, fate)

    def one_of(self, actor: Actor, pick: int) -> Held | None:
        ready = [held for held in actor.claimed.values() if not held.busy]
        return ready[pick % len(ready)] if ready and actor.fence is not None else None

    def change(self, actor: Actor, held: Held, data: BlockData, multi: Multi) -> None:
        held.busy = True

        def landed(outcome: Outcome) -> None:
            held.busy = False
            if not isinstance(outcome, Committed):
                actor.claimed.clear()  # fenced: everything here is somebody else's now
                actor.fence = None
            elif data.done == (1 << held.key.count) - 1:
                actor.claimed.pop(held.key, None)
            else:
                held.data, held.version = data, held.version + 1

        actor.send(multi, landed)

    # -- leaders --------------------------------------------------------------------------------------------------------------------

    def take_over(self, leader: str, fate: str) -> None:
        actor = self.actors[leader]
        if actor.flying:
            return
        session = actor.link.session_id
        candidate = f"n-{leader}-{0:010d}"
        self.tree.create(session, f"{paths.WATCHDOGS}/{candidate}")
        found = self.znode(paths.EPOCH)
        epoch = decode_record(found[0], EpochRecord).epoch + 1 if found else 1
        actor.fence = None
        version = found[1] if found else None

        def landed(outcome: Outcome) -> None:
            if isinstance(outcome, Committed):
                actor.fence = 0 if version is None else version + 1

        actor.send(leader_ops.take_over(candidate, EpochRecord(epoch=epoch, leader=leader + self.fresh()), version), landed)
        self.meet(leader, fate)

    def fence(self, leader: str, node: str, fate: str) -> None:
        actor = self.actors[leader]
        found = self.znode(paths.node(node))
        if actor.fence is None or found is None:
            return
        record = decode_record(found[0], NodeRecord)
        if record.state is NodeState.UP:
            actor.send(leader_ops.fence(actor.fence, record, found[1], f"silent {self.fresh()}"), lambda _: None)
            self.meet(leader, fate)

    def fail(self, leader: str, node: str, pick: int, fate: str) -> None:
        actor = self.actors[leader]
        names = self.names(paths.running_node(node))
        found = self.znode(paths.node(node))
        if actor.fence is None or not names or found is None or decode_record(found[0], NodeRecord).state is NodeState.UP:
            return
        self.fail_block(actor, leader_ops.epoch_check(actor.fence), node, names[pick % len(names)])
        self.meet(leader, fate)

    def clear_own_past(self, node: str, pick: int, fate: str) -> None:
        """A Starter that has registered again fails what its older incarnation left."""
        actor = self.actors[node]
        mine = {paths.block_name(key) for key in actor.claimed}
        names = [name for name in self.names(paths.running_node(node)) if name not in mine]
        if actor.fence is not None and names and not actor.flying:
            self.fail_block(actor, ops.fence_check(node, actor.fence), node, names[pick % len(names)])
            self.meet(node, fate)

    def fail_block(self, actor: Actor, guard: ops.Check, node: str, name: str) -> None:
        data, version = self.znode(f"{paths.running_node(node)}/{name}")
        multi = leader_ops.fail(guard, node, QUEUE, paths.parse_block(name), data, version, reason=Reason.NODE_LOST, now_us=1)
        actor.send(multi, lambda _: None)

    # -- everything heals: every task becomes final -----------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.tree.exists(paths.IDS) is None:
            return
        self.drain()
        for _ in range(200):
            if all(self.final(number) == tail.next for number, _, tail in self.submissions()):
                break
            self.step_to_the_end()
        for number, _, tail in self.submissions():
            assert self.final(number) == tail.next, "liveness: a task never became final after everything had healed"
        self.every_task_is_in_exactly_one_place()

    def drain(self) -> None:
        for actor in self.actors.values():
            actor.link.reconnect()
            actor.link.run()
            actor.settle()
            self.look()

    def step_to_the_end(self) -> None:
        if self.actors["w1"].fence is None or self.znode(paths.EPOCH)[1] != self.actors["w1"].fence:
            self.take_over("w1", "waits")
            self.drain()
        for node in NODES:
            found = self.znode(paths.node(node))
            actor = self.actors[node]
            if found is None or actor.fence != found[1] or decode_record(found[0], NodeRecord).state is not NodeState.UP:
                self.register(node, "waits")
                self.drain()
            self.meet_handed(node)
            self.clear_own_past(node, 0, "waits")
            self.read_pending(node, 0)
            self.drain()
            self.claim(node, 6, "waits")
            self.drain()
            self.complete(node, 0, 63, ends_well=True, fate="waits")
            self.drain()
        self.resubmit_one("w1", 0)
        self.drain()


Protocol.TestCase.settings = settings(max_examples=150, stateful_step_count=100, deadline=None, suppress_health_check=list(HealthCheck))
test_protocol_keeps_its_promises = Protocol.TestCase


def test_the_checks_notice_a_protocol_without_fences(monkeypatch) -> None:
    """A check that cannot fail proves nothing: without the Starter's fence a zombie's outcome must be noticed (I3)."""

    def zombie() -> None:
        machine = Protocol()
        machine.set_up()
        machine.submit(2, resubmit=True, retries=0, fate="through")
        machine.read_pending("n1", 0)
        machine.claim("n1", 2, "through")
        machine.fence("w1", "n1", "through")
        machine.complete("n1", 0, 3, ends_well=True, fate="through")
        assert machine.actors["n1"].fence is None, "the zombie has noticed"

    zombie()
    monkeypatch.setattr(ops, "fence_check", lambda node, _version: ops.Check(paths.node(node)))
    with pytest.raises(AssertionError, match="a fenced incarnation committed an outcome"):
        zombie()
