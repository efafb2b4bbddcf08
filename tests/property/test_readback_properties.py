"""Lost requests and answers, expired sessions and deadlines in any order never make a multi happen twice, lie or change places.

One client pipelines multis of the shapes that the protocol has; hypothesis moves the two queues of its link step by
step, cuts it anywhere, ends its session, moves a fence, lets deadlines pass. At the end everything is drained.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmgr.coord.protocol.multi import (
    Check,
    Committed,
    Conflict,
    Create,
    Delete,
    Exists,
    Gone,
    GoneOrHolds,
    Holds,
    Multi,
    Outcome,
    Set,
    Unknown,
)
from rmgr.coord.protocol.ports import SessionState
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree


@dataclass
class _Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Given:
    multi: Multi
    future: Future[Outcome]
    session: int  # the client's when it was given, 0 between two
    orphan: bool = False  # its session ended under it: Unknown is allowed


@dataclass
class _Block:
    """A znode that only the client changes: pipelined sets, each on the version that the one before leaves."""

    path: str
    version: int = 0
    sets: int = 0
    gone: bool = False
    claim: Future[Outcome] | None = None

    def known(self) -> bool:
        """Whether the client has been told that the znode exists: only then a proof by absence is allowed."""
        return self.claim is not None and self.claim.done() and isinstance(self.claim.result(0), Committed)


@dataclass
class _World:
    given: list[_Given] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)


class LostAnswers(RuleBasedStateMachine):
    @initialize(window=st.integers(1, 8), faults=st.sets(st.sampled_from(["expiry", "deadline", "fence"]), max_size=2))
    def start(self, window: int, faults: set[str]) -> None:
        self.faults = faults  # besides lost links: few kinds a run, else hardly anything is ever read back
        self.clock = _Clock()
        self.tree = MemoryTree()
        self.other = MemoryCoordinator(self.tree, guarded=False)
        self.other.ensure(["/names", "/queue", "/own", "/fence"])
        self.before = len(self.tree.commits)
        self.client = MemoryCoordinator(self.tree, auto=False, window=window, clock=self.clock)
        self.fence = 0  # the version that the client knows
        self.world = _World()
        self.made = 0
        self.states: list[SessionState] = []
        self.client.listen(self.states.append)

    def _give(self, *ops: object, proof: object, timeout_s: float = 10.0) -> None:
        self.made += 1
        guard = next((op for op in ops if isinstance(op, Check)), None)
        multi = Multi(name=f"M{self.made}", ops=tuple(ops), proof=proof, guard=guard)  # type: ignore[arg-type]
        orphan = not self.tree.is_alive(self.client.session_id)
        self.world.given.append(_Given(multi, self.client.commit(multi, timeout_s=timeout_s), self.client.session_id, orphan))

    # -- what the client does

    @rule(fenced=st.booleans(), timeout_s=st.sampled_from([10.0, 10.0, 3.0]))
    def enqueue(self, fenced: bool, timeout_s: float) -> None:
        name = f"/names/{self.made}"
        fences = (Check("/fence", self.fence),) if fenced else ()
        self._give(*fences, Create("/queue/k-", b"", sequence=True), Create(name), proof=Exists(name), timeout_s=timeout_s)

    @rule()
    def claim(self) -> None:
        path = f"/own/{self.made}"
        self._give(Check("/fence", self.fence), Create(path, b"0"), proof=Exists(path))
        self.world.blocks.append(_Block(path, claim=self.world.given[-1].future))

    @rule(sets=st.integers(1, 4))
    def claim_and_progress(self, sets: int) -> None:
        self.claim()
        block = self.world.blocks[-1]
        for number in range(sets):
            self._set(block, Holds, timeout_s=3.0 if number % 2 else 10.0)

    @precondition(lambda self: any(not b.gone for b in self.world.blocks))
    @rule(data=st.data(), by_absence=st.booleans(), same=st.booleans())
    def progress(self, data: st.DataObject, by_absence: bool, same: bool) -> None:
        block = data.draw(st.sampled_from([b for b in self.world.blocks if not b.gone]))
        kind = GoneOrHolds if by_absence and block.known() else Holds
        self._set(block, kind, same=same)

    def _set(self, block: _Block, kind: type[Holds | GoneOrHolds], *, same: bool = False, timeout_s: float = 10.0) -> None:
        block.sets += not same  # now and then the bytes that stand there already
        bytes_ = str(block.sets).encode()
        self._give(Check("/fence", self.fence), Set(block.path, bytes_, block.version), proof=kind(block.path, bytes_), timeout_s=timeout_s)
        block.version += 1

    @precondition(lambda self: any(not b.gone and b.known() for b in self.world.blocks))
    @rule(data=st.data(), kind=st.sampled_from(["gone", "gone or holds"]))
    def complete(self, data: st.DataObject, kind: str) -> None:
        block = data.draw(st.sampled_from([b for b in self.world.blocks if not b.gone and b.known()]))
        proof = Gone(block.path) if kind == "gone" else GoneOrHolds(block.path, b"never")
        self._give(Check("/fence", self.fence), Delete(block.path, block.version), Create("/queue/r-", b"", sequence=True), proof=proof)
        block.gone = True

    # -- what happens to it

    @rule(steps=st.integers(1, 6))
    def server(self, steps: int) -> None:
        for _ in range(steps):
            self.client.server_step()

    @rule(steps=st.integers(1, 6))
    def answers(self, steps: int) -> None:
        for _ in range(steps):
            self.client.client_step()

    @rule()
    def cut(self) -> None:
        self.client.cut()

    @rule(executed=st.integers(0, 6), back=st.booleans())
    def lose_answers(self, executed: int, back: bool) -> None:
        self.server(executed)
        self.client.cut()
        if back:
            self.client.reconnect()

    @rule()
    def reconnect(self) -> None:
        self.client.reconnect()

    @precondition(lambda self: "expiry" in self.faults)
    @rule()
    def expire(self) -> None:
        for given in self.world.given:
            given.orphan = True
        self.client.expire()

    @precondition(lambda self: "deadline" in self.faults)
    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.client.guard()

    @precondition(lambda self: "fence" in self.faults)
    @rule()
    def move_fence(self) -> None:
        multi = Multi(name="FENCE", ops=(Set("/fence", b"", -1),), proof=Exists("/fence"))
        assert isinstance(self.other.commit(multi).result(0), Committed)
        for name in self.other.children("/own").result(0) or []:  # as the leader, once it has fenced a node
            fail = Multi(name="FAIL", ops=(Delete(f"/own/{name}"),), proof=Gone(f"/own/{name}"))
            assert isinstance(self.other.commit(fail).result(0), Committed)

    @precondition(lambda self: "fence" in self.faults)
    @rule()
    def learn_fence(self) -> None:
        found = self.other.get("/fence").result(0)
        assert found is not None
        self.fence = found.version

    # -- what must hold

    @invariant()
    def nothing_happens_twice_and_no_answer_lies(self) -> None:
        if not hasattr(self, "world"):
            return
        applied = [m.name for _, m in self.tree.commits[self.before :] if m.name.startswith("M")]
        assert len(applied) == len(set(applied))
        for given in self.world.given:
            if not given.future.done():
                continue
            happened = given.multi.name in set(applied)
            match given.future.result(0):
                case Committed():
                    assert happened, given.multi
                case Conflict(path="/fence"):  # perhaps it happened before the fence moved: fenced either way
                    assert self.tree.get("/fence")[1].version > given.multi.ops[0].version
                case Conflict():
                    assert not happened, given.multi
                case Unknown(cause):
                    assert given.orphan or "deadline" in cause, (given.multi, cause)

    @invariant()
    def multis_happen_in_the_order_given(self) -> None:
        if hasattr(self, "tree"):
            applied = [int(m.name[1:]) for _, m in self.tree.commits[self.before :] if m.name.startswith("M")]
            assert applied == sorted(applied)

    @invariant()
    def nothing_is_repeated_in_another_session(self) -> None:
        if not hasattr(self, "world"):
            return
        by_name = {given.multi.name: given.session for given in self.world.given}
        for session, multi in self.tree.commits[self.before :]:
            assert by_name.get(multi.name, session) in {session, 0}

    @invariant()
    def a_new_session_is_always_announced(self) -> None:
        if hasattr(self, "states"):
            for before, after in zip(self.states, self.states[1:], strict=False):
                assert before is not after

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        self.client.reconnect()
        self.client.run()
        self.nothing_happens_twice_and_no_answer_lies()
        self.multis_happen_in_the_order_given()
        self.nothing_is_repeated_in_another_session()
        assert all(given.future.done() for given in self.world.given)
        self.client.close()
        self.other.close()


TestLostAnswers = LostAnswers.TestCase
TestLostAnswers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
