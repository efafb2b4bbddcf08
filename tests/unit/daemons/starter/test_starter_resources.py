"""Other resources on a node: each piece belongs to one task or reservation; a waiting task holds up only tasks with the same need."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.adapters.host.process import gpus_here
from rmgr.adapters.host.slot import WorkerSpec
from rmgr.config import Config, StarterConfig, check_file, load
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.facts import Names
from rmgr.daemons.leader.placement.job_table import JobTable
from rmgr.daemons.leader.placement.orders import Promises
from rmgr.daemons.starter import main as starter
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.shares import Caps
from rmgr.daemons.starter.core.submissions import Info
from rmgr.daemons.starter.core.tree import IdleMark
from rmgr.daemons.starter.execution.holds import Promise, Reservations
from rmgr.daemons.starter.execution.lanes import Lanes, WorkerLane
from rmgr.daemons.starter.pull.board import BlockCandidate, CandidateStage
from rmgr.daemons.starter.pull.pull import Puller
from rmgr.errors import ConfigError, UsageError
from rmgr.model.base import Capacity, Needs, NodeAttributes, Request, checked_resources, lent_variables
from rmgr.model.block import BlockData, Reserved
from rmgr.model.queue import QueueSpec
from rmgr.model.submission import PythonEnvironment, Submission, Work
from rmgr.runner.ranks.ranks import own_share
from rmgr.sched.job import Job
from rmgr.sched.records import Hold, Share
from tests.harness.claimed import a_key
from tests.unit.daemons.starter.execution.test_lanes import BLOCK, SPEC, FakeRunner

HAS = {"gpu": 4, "licence": 1}


def info(number: int = 1, **resources: int) -> Info:
    record = Submission(
        id=number, name="x", user="u", queue="q", work=Work.PYTHON, python=PythonEnvironment(), request=Request(resources=resources)
    )
    return Info(record, QueueSpec(name="q"), None)


def lanes(cores: int = 8) -> Lanes:
    return Lanes(FakeRunner(), cores=cores, memory_mib=1000, resources=HAS)


def open_one(node: Lanes, needs: Needs, seq: int, spec: WorkerSpec | None = SPEC) -> WorkerLane | None:
    lane = node.open_for(info(), spec, 1, 0, needs)
    if lane is not None:
        lane.tasks[seq] = (BLOCK, seq)
    return lane


def test_pieces_are_lent_to_one_at_a_time_whatever_comes_and_goes() -> None:
    chance, node = random.Random(1), lanes()
    held: list[tuple[WorkerLane, int]] = []
    for seq in range(1, 2000):
        if held and chance.random() < 0.5:
            lane, its = held.pop(chance.randrange(len(held)))
            if chance.random() < 0.3:
                node.block(lane, its)  # its cores are free; what it has of other things it keeps
                assert lane.lent or not lane.shape[2]
            node.ended(lane, [its], 1.0)
            assert not lane.lent
        else:
            needs = tuple((name, count) for name, count in (("gpu", chance.randint(0, 3)), ("licence", chance.randint(0, 1))) if count)
            fits = node.fits(1, 0, needs)
            lane = open_one(node, needs, seq, chance.choice((SPEC, None)))
            assert (lane is not None) is fits
            if lane is not None:
                assert {name: len(pieces) for name, pieces in lane.lent.items()} == dict(needs)
                held.append((lane, seq))
        for name, count in HAS.items():
            lent = [piece for lane, _ in held for piece in lane.lent.get(name, ())]
            assert len(lent) == len(set(lent)) == count - node.free_of(name)
            assert set(lent) <= set(range(count))


def test_a_worker_is_used_again_only_with_the_pieces_that_it_has_seen() -> None:
    node = lanes()
    first = open_one(node, (("gpu", 1),), 1)
    second = open_one(node, (("gpu", 1),), 2)
    assert (first.variables["CUDA_VISIBLE_DEVICES"], second.variables["CUDA_VISIBLE_DEVICES"]) == ("0", "1")
    assert first.spec.environ["RMGR_RESOURCE_GPU"] == "0"
    workers = first.worker, second.worker
    node.ended(first, [1], 1.0)
    node.ended(second, [2], 1.0)
    plain, again, both = open_one(node, (), 3), open_one(node, (("gpu", 1),), 4), open_one(node, (("gpu", 2),), 5)
    assert plain.worker not in workers, "it has seen a GPU that is not this task's"
    assert again.worker is workers[0]
    assert both.worker not in workers
    assert again.is_for(again.info, SPEC, 1, 0, (("gpu", 1),)), "more of its kind may be queued behind it"
    assert not again.is_for(again.info, SPEC, 1, 0), "but none that needs none"


class Board:
    """The candidates of a queue, in order."""

    spec = QueueSpec(name="q")
    since = 0
    is_current, is_reading, is_shared = True, False, False

    def __init__(self, candidates: Sequence[BlockCandidate]) -> None:
        self.candidates = list(candidates)

    def pick(self, _now_s: float, passed: set[str], without: set[int], _barred: set[str]) -> BlockCandidate | None:
        left = (
            candidate
            for candidate in self.candidates
            if candidate.name not in passed and candidate.key.submission not in without and candidate.stage is CandidateStage.WAITS
        )
        return next(left, None)

    def take(self, candidate: BlockCandidate, _rest: object) -> None:
        self.candidates.remove(candidate)

    def fetch_ahead(self, _count: int) -> list[BlockCandidate]:
        return []

    def belongs(self, _candidate: BlockCandidate, _user: str, _now_s: float) -> bool:
        return False

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_words: None


def claimed(wants: dict[int, dict[str, int]], *, resources: dict[str, int] | None = None, cores: int = 8) -> list[int]:
    """Submissions, one task each and in this order, of which a node claims the block."""
    infos = {number: info(number, **need) for number, need in wants.items()}
    candidates = [BlockCandidate(name=str(number), key=a_key(seq=number, submission=number), data=BlockData()) for number in wants]
    has = HAS if resources is None else resources
    node = SimpleNamespace(
        name="n1", incarnation=1, lanes=Lanes(FakeRunner(), cores=cores, memory_mib=0, resources=has), blocks={}, idle=IdleMark(),
        hands=None, works_ahead=lambda: False, capacity=Capacity(cores=cores, memory_bytes=0, resources=has), attributes=NodeAttributes(),
        accounts=None, stager=SimpleNamespace(meet=lambda _block: None),
    )
    times = SimpleNamespace(of=lambda _kind: None, ended=lambda _kind: 0)
    committer = SimpleNamespace(fence=lambda _node: 1, commit=lambda *_: None)
    node.shared = SimpleNamespace(committer=committer, records=infos, times=times, gate=None, caps=Caps())
    puller = Puller(node)
    board = Board(candidates)
    puller.run([board], 1.0)
    return [number for number in wants if not any(candidate.key.submission == number for candidate in board.candidates)]


def test_what_a_node_does_not_have_is_never_claimed_there() -> None:
    assert claimed({1: {"gpu": 1}, 2: {}, 3: {"gpu": 5}, 4: {"tape": 1}}) == [1, 2]
    assert claimed({1: {"gpu": 1}, 2: {}}, resources={}) == [2]


def test_who_waits_for_a_resource_holds_up_only_who_needs_the_same() -> None:
    wants: dict[int, dict[str, int]] = {1: {"gpu": 3}, 2: {"gpu": 2}, 3: {"gpu": 1}, 4: {}, 5: {"licence": 1}, 6: {"licence": 1, "gpu": 1}}
    assert claimed(wants) == [1, 4, 5], "the third does not slip past the second, for which two GPUs have to come together"
    assert claimed({1: {"licence": 1}, 2: {"licence": 1}, 3: {"gpu": 1}, 4: {}}) == [1, 3, 4]


def test_ranks_find_their_own_part() -> None:
    node = lent_variables({"gpu": [1, 3, 4, 6], "licence.x": [0, 1]}) | {"RMGR_RESOURCES": "RMGR_RESOURCE_GPU=2,RMGR_RESOURCE_LICENCE_X=1"}
    assert own_share(node, 1) == {"RMGR_RESOURCE_GPU": "4,6", "CUDA_VISIBLE_DEVICES": "4,6", "RMGR_RESOURCE_LICENCE_X": "1"}
    assert own_share({}, 0) == {}


def test_a_node_offers_what_is_configured_and_the_gpus_that_it_has(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus_here(str(tmp_path)) == 2
    assert gpus_here(str(tmp_path / "none")) == 0
    monkeypatch.setattr(starter, "gpus_here", lambda: 2)
    for config, found in (
        (StarterConfig(), {"gpu": 2}),
        (StarterConfig(resources={"tape": 1}), {"gpu": 2, "tape": 1}),
        (StarterConfig(resources={"gpu": 0}), {}),
        (StarterConfig(nodes=4), {}),
        (StarterConfig(nodes=4, resources={"gpu": 1}), {"gpu": 1}),
    ):
        assert starter.capacity_of(config).resources == found, config


def test_cores_kept_for_calls_are_not_offered_and_at_least_one_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter.os, "sched_getaffinity", lambda _: set(range(8)))
    for config, cores in ((StarterConfig(call_cores=3), 5), (StarterConfig(cores=4, call_cores=3), 1), (StarterConfig(cores=4), 4)):
        assert starter.capacity_of(config).cores == cores, config
    for config, told in (
        (StarterConfig(call_cores=9), "call_cores = 9 of a node of 8 cores"),
        (StarterConfig(cores=4, call_cores=4), "call_cores = 4 of a node of 4 cores: one at least is left for its work"),
        (StarterConfig(call_cores=-1), "call_cores = -1"),
    ):
        with pytest.raises(ConfigError, match=told) as refused:
            starter.capacity_of(config)
        assert "a machine for calls alone needs rmgr server and no Starter" in refused.value.hint
    with pytest.raises(ConfigError, match="call_cores = 9"):
        starter.run(Config(starter=StarterConfig(call_cores=9)))  # before it looks for a cluster


def test_the_partition_of_calls_is_refused_wherever_it_is_said(tmp_path: Any) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[starter]\ncores = 2\npartition = "calls"\n')
    tries: tuple[tuple[str, Any], ...] = (
        (f"{file}:3: partition = 'calls' is not valid: partition calls is for calls", lambda: load(file=str(file), env={})),
        (f"{file}:3: partition", lambda: check_file(file)),
        ("variable RMGR_STARTER_PARTITION", lambda: load(env={"RMGR_STARTER_PARTITION": "calls"})),
        ("option --partition", lambda: load({"starter": {"partition": "calls"}}, env={})),
    )
    for told, attempt in tries:
        with pytest.raises(ConfigError) as refused:
            attempt()
        assert refused.value.message.startswith(told), refused.value.message
        assert "call_cores = K" in refused.value.hint


def test_resources_in_configuration_are_a_table_pairs_or_words(tmp_path: Any) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[starter]\nresources = { gpu = 2, tape = 1 }\n")
    assert load(file=str(file), env={}).starter.resources == {"gpu": 2, "tape": 1}
    assert load(env={"RMGR_STARTER_RESOURCES": "gpu=2, tape=1"}).starter.resources == {"gpu": 2, "tape": 1}
    assert load({"starter": {"resources": (("gpu", 1),)}}, file=str(file), env={}).starter.resources == {"gpu": 1}
    for wrong in ('"gpu"', "{ gpu = -1 }", '{ "a b" = 1 }', "3"):
        file.write_text(f"[starter]\nresources = {wrong}\n")
        with pytest.raises(ConfigError, match="resources"):
            load(file=str(file), env={})
    with pytest.raises(UsageError, match="twice"):
        checked_resources((("gpu", 1), ("gpu", 2)))


def test_blocks_say_what_they_need_here() -> None:
    block = ClaimedBlock.claimed("n1", "q", BLOCK.key, BlockData())
    block.info = info(gpu=2, tape=0)
    assert block.size == (1, 0, (("gpu", 2),))


def test_the_leader_writes_what_its_processes_on_each_node_need() -> None:
    names: Any = Names()
    names.learn(("n1", "n2"))
    job = Job(id=7 << 20, submit_us=0, processes=3, threads=2, memory_bytes=3 << 20, resources=(("gpu", 2),))
    hold = Hold(job.id, (Share(1, ((0, 0, 3),)),), (Share(2, ((0, 1, 1),)),))
    placer: Any = SimpleNamespace(term=None, job_table=JobTable(), names=names)
    records = Promises(placer).records_of(job, hold)
    found = {node: decode_record(data, Reserved, node) for node, data in records.items()}
    assert {node: (one.memory_mib, one.resources) for node, one in found.items()} == {"n1": (6, (("gpu", 4),)), "n2": (0, ())}


def test_a_starter_keeps_as_much_of_them_as_of_the_cores_that_are_free_by_now() -> None:
    runs: set[str] = {"1.0.1"}
    jobs = SimpleNamespace(holds=SimpleNamespace(has=runs.__contains__), is_taking=lambda _number: False)
    shared = SimpleNamespace(after=lambda _delay_s, _what: None)
    node: Any = SimpleNamespace(orders=SimpleNamespace(is_settled=True), jobs=jobs, shared=shared)
    kept = Reservations(node)
    record = Reserved(shares=(("1.0.1", 2), ("", 2)), memory_mib=100, resources=(("gpu", 3),))
    promise = Promise(name="r-7.0", submission=7, index=0, record=record)
    assert kept.wanted(promise, record, set()) == (2, 50, (("gpu", 1),))
    runs.clear()
    assert kept.wanted(promise, record, set()) == (4, 100, (("gpu", 3),))
    assert kept.wanted(promise, Reserved(), set()) == (0, 0, ())
