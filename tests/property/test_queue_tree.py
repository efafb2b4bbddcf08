"""The queue tree under random tasks and as `dqt`: skipping equals stepping, laws of states, shares and waits hold; schedules are sound."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from rmgr.model.states import State
from rmgr.sched.catalogue import policy_named
from rmgr.sched.policy import Stage
from rmgr.sched.tree.rotation import Newcomers, Rotation, TreeNodeState, phases_below, states_of
from rmgr.sched.tree.shape import (
    AllocationRule,
    Loads,
    Tree,
    choose,
    is_balanced,
    is_fulfilled,
    longest_branch,
)
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.engine.validate import violations
from rmgr.sim.gangs import Stepped
from rmgr.sim.workload.events import Cancel, Event, FailOver, NodesFail, NodesRepaired
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob
from tests.places import ROOT


def small_tree(chance: Random) -> Tree:
    width = chance.choice([2, 2, 3, 4])
    full = width ** chance.randint(1, 4 if width == 2 else 2)
    return Tree(width, full - chance.randint(0, full // 2))


def filled(chance: Random, tree: Tree, most: int = 3) -> dict[int, int]:
    """Random lengths of queues; about every second one is empty."""
    return {node: length for node in range(tree.nodes) if tree.sizes[node] and (length := chance.randint(-most, most)) > 0}


def put(tree: Tree, lengths: dict[int, int], quanta: int = 10**9) -> tuple[Stepped, Rotation, dict[int, list[int]]]:
    stepped, rotation, tasks, task = Stepped(tree), Rotation(tree), {}, 0
    for node, length in lengths.items():
        for _ in range(length):
            task += 1
            tasks.setdefault(node, []).append(task)
    for node, found in tasks.items():
        for one in found:
            stepped.add(one, node, quanta)
            rotation.add(one, node, quanta)
    return stepped, rotation, tasks


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("newcomers", list(Newcomers))
def test_skipping_to_the_next_end_equals_stepping(newcomers: Newcomers, cancels: bool) -> None:
    for seed in range(60):
        _compare(Random(f"{newcomers} {cancels} {seed}"), newcomers, cancels)


def _compare(chance: Random, newcomers: Newcomers, cancels: bool) -> None:
    """Arrivals, ends and removals at random; every end in its slot; now and then the row of a slot, the lengths, the front as values."""
    tree = small_tree(chance)
    plain, fast = Stepped(tree, newcomers), Rotation(tree, newcomers)
    nodes = [node for node in range(tree.nodes) if tree.sizes[node]]
    most, heaviest = chance.choice([3, 30, 200]), chance.choice([1, 1, 3])
    task = 0
    for until in [*sorted(chance.randint(0, 400) for _ in range(chance.randint(1, 60))), 1500]:
        while fast.now < until:
            slots = fast.next_end(until - fast.now) or until - fast.now
            run = chance.randint(1, slots)
            before = set(plain.rest)
            for slot in range(run):
                if not chance.randrange(9):
                    mine = sorted(fast.row())
                    assert mine == sorted(plain.slot())
                    assert slot == run - 1 or set(plain.rest) == before
                    fast.advance(1)
                    continue
                plain.slot()
                assert slot == slots - 1 or set(plain.rest) == before, "an end that was not foreseen"
                fast.advance(1)
            assert set(fast.finish()) == before - set(plain.rest)
        if cancels and plain.rest and not chance.randrange(3):
            gone = chance.choice(sorted(plain.rest))
            left = plain.rest[gone]
            plain.remove(gone)
            assert fast.remove(gone) == left
        else:
            task += 1
            added = task, chance.choice(nodes), chance.randint(1, most), chance.randint(1, heaviest)
            plain.add(*added)
            fast.add(*added)
        if not chance.randrange(5):
            assert fast.lengths() == {node: len(queue) for node, queue in enumerate(plain.queues) if queue}
            fast.stand(fast.front())


def test_the_phases_of_a_child_are_those_of_the_paper_s_rule() -> None:
    assert phases_below(14, 2, 6) == [(4, 2)]
    assert phases_below(15, 2, 6) == [(4, 2), (1, 1)]


def folded(tree: Tree, own: list[int], fold: Callable[[list[int]], int]) -> list[int]:
    found = [0] * tree.nodes
    for node in reversed(range(tree.nodes)):
        found[node] = own[node] + fold([found[child] for child in tree.children(node) if tree.sizes[child]] or [0])
    return found


def test_loads_kept_up_to_date_are_the_quantities_counted_anew() -> None:
    for seed in range(40):
        chance = Random(seed)
        tree = small_tree(chance)
        loads = Loads(tree)
        tasks: list[int] = []
        for _ in range(60):
            if tasks and not chance.randrange(3):
                loads.change(tasks.pop(chance.randrange(len(tasks))), -1)
            else:
                size = chance.randint(1, tree.processors)
                node = choose(loads, size, chance.choice(list(AllocationRule)), {})
                assert node is not None
                assert tree.sizes[node] >= size
                assert all(tree.sizes[child] < size for child in tree.children(node))  # a smallest partition that has room
                loads.change(node, 1)
                tasks.append(node)
            assert loads.apa == folded(tree, [length * size for length, size in zip(loads.lengths, tree.sizes, strict=True)], sum)
            assert loads.longest == folded(tree, loads.lengths, max)
            assert loads.shortest == folded(tree, loads.lengths, min)
            plain = min(loads.lengths[node] for node in range(tree.nodes) if _is_target(tree, node, 1))
            assert loads.shortest_queue(0, 1, None) == plain == loads.shortest_queue(0, 1, lambda _node: True)


def _is_target(tree: Tree, node: int, size: int) -> bool:
    return tree.sizes[node] >= size and all(tree.sizes[child] < size for child in tree.children(node))


def test_every_task_runs_in_every_window_of_max_tqlb_slots_and_balance_and_fulfilment_keep_their_promises() -> None:
    """C2.10; section 3 of the paper."""
    seen = {"balanced": 0, "fulfilled": 0}
    for seed in range(300):
        chance = Random(seed)
        tree = small_tree(chance)
        lengths = filled(chance, tree)
        if seed % 4 == 0:  # the same length on a level: balanced
            level = [chance.randint(0, 2) for _ in range(tree.height + 1)]
            lengths = {node: level[tree.depth[node]] for node in range(tree.nodes) if tree.sizes[node] and level[tree.depth[node]]}
        if not lengths:
            continue
        _, rotation, tasks = put(tree, lengths)
        longest = longest_branch(tree, lengths)[0]
        assert rotation.rounds[0] == longest
        rotation.advance(chance.randint(longest, 5 * longest))
        seen_at: dict[int, list[int]] = {task: [] for queue in tasks.values() for task in queue}
        used = []
        for slot in range(4 * longest):
            row = rotation.row()
            used.append(sum(tree.sizes[node] for node, _ in row))
            for _, task in row:
                seen_at[task].append(slot)
            rotation.advance(1)
        for slots in seen_at.values():
            gaps = [later - earlier for earlier, later in zip([-1, *slots], [*slots, 4 * longest], strict=True)]
            assert max(gaps) <= longest
        if is_fulfilled(tree, lengths):
            seen["fulfilled"] += 1
            assert set(used) == {tree.processors}
        if is_balanced(tree, lengths):
            seen["balanced"] += 1
            assert set(used) == {tree.processors}
            assert {len(slots) for slots in seen_at.values()} == {4}
    assert min(seen.values()) > 20


def test_jobs_of_a_queue_get_quanta_by_their_weight_in_every_window_of_its_entries() -> None:
    rotation = Rotation(Tree(2, 2))
    for task, weight in ((1, 4), (2, 1), (3, 2)):
        rotation.add(task, 0, 10**6, weight)
    rows = []
    for _ in range(70):
        rows += [task for _, task in rotation.row()]
        rotation.advance(1)
    for start in range(len(rows) - 7):
        assert [rows[start : start + 7].count(task) for task in (1, 2, 3)] == [4, 1, 2]


def test_a_stream_of_arrivals_starves_nobody_for_positions_survive() -> None:
    """A task comes in every slot or so; still everybody runs again within two rounds of the longest kind."""
    for seed in range(60):
        chance = Random(seed)
        tree = small_tree(chance)
        rotation = Rotation(tree)
        nodes = [node for node in range(tree.nodes) if tree.sizes[node]]
        last: dict[int, int] = {}
        gaps, longest = [0], 0
        for slot in range(300):
            if chance.random() < 0.8:
                rotation.add(slot, chance.choice(nodes), chance.randint(1, 12))
                last[slot] = slot
            longest = max(longest, rotation.rounds[0])
            for _, task in rotation.row():
                gaps.append(slot - last[task])
                last[task] = slot
            rotation.advance(1)
            rotation.finish()
        gaps += [300 - last[task] for task in rotation.home]
        assert max(gaps) <= 2 * longest


@pytest.mark.parametrize("newcomers", list(Newcomers))
def test_node_states_follow_the_diagram_and_the_front_parts_rounded_from_ready(newcomers: Newcomers) -> None:
    """Figure 2: the changes are the edges of the document's diagram; with tasks above the front Rounded, below it Ready."""
    seen: set[tuple[TreeNodeState, TreeNodeState]] = set()
    for seed in range(150):
        chance = Random(seed)
        tree = small_tree(chance)
        rotation = Rotation(tree, newcomers)
        nodes = [node for node in range(tree.nodes) if tree.sizes[node]]
        before = states_of(rotation)
        for step in range(60):
            if not chance.randrange(3):
                if rotation.home and not chance.randrange(3):
                    rotation.remove(chance.choice(sorted(rotation.home)))
                else:
                    rotation.add(step + 1, chance.choice(nodes), chance.randint(1, 9))
            elif rotation.rounds[0]:
                rotation.advance(1)
                rotation.finish()
            after = states_of(rotation)
            seen |= {edge for edge in zip(before, after, strict=True) if edge[0] is not edge[1]}
            before = after
            late = {node for _, node, _ in rotation.late_tasks()}
            front = [node for node in nodes if after[node] is TreeNodeState.ROUNDING]
            for node in front:
                assert {after[at] for at in tree.path(node)[:-1]} <= {TreeNodeState.ROUNDED, TreeNodeState.IDLE}
                below = [at for at in nodes if at != node and node in tree.path(at) and rotation.queues[at]]
                assert {after[at] for at in below} <= {TreeNodeState.READY}
            assert all(after[node] is TreeNodeState.ROUNDED for node in late)
            if step % 2:  # whoever runs is Rounding, and nobody else
                assert {node for node, _ in rotation.row()} == {
                    node for node, state in enumerate(states_of(rotation)) if state is TreeNodeState.ROUNDING
                }
                before = states_of(rotation)
    _, _, diagram = (ROOT / "rmgr/docs/policies.md").read_text().partition("stateDiagram-v2")
    edges = [tuple(TreeNodeState(one) for one in pair) for pair in re.findall(r"^    (\w+) --> (\w+):", diagram, re.MULTILINE)]
    assert len(edges) == len(set(edges)) == 10
    assert seen == set(edges)


@pytest.mark.parametrize("upsets", [False, True])
def test_no_core_is_given_twice_in_a_slot_and_every_job_runs_as_long_as_it_needs(upsets: bool) -> None:
    for seed in range(60):
        chance = Random(f"gangs {seed}")
        nodes, cores = chance.randint(1, 7), chance.choice([1, 1, 2, 4])
        workload = Workload(name="drawn", jobs=jobs_of(chance, nodes * cores), processors=nodes * cores)
        params = {
            "quantum": chance.choice(["1s", "2s", "7s"]),
            "newcomers": chance.choice(["this_round", "next_round"]),
            "width": chance.choice("23"),
            "most_jobs": chance.choice("0128"),
            "allocation": chance.choice(list(AllocationRule)),
        }
        events = events_of(chance, nodes, len(workload.jobs)) if upsets else ()
        ends = []
        for spells in (True, False):
            stages = (Stage(policy_named("dqt", params)),)
            setting = Setting(nodes=nodes, cores=cores, pipeline=stages, policy="dqt", spells=spells, events=events)
            result = simulate(workload, setting)
            assert result.faults == ()
            assert violations(result, workload, setting) == []
            done = [outcome for outcome in result.outcomes if outcome.state is State.COMPLETED]
            ends.append([(outcome.job.number, outcome.end_us, 0 if upsets else outcome.ran_us, outcome.turns) for outcome in done])
        assert ends[0] == ends[1]


def jobs_of(chance: Random, processors: int) -> tuple[WorkloadJob, ...]:
    """Some of them whole seconds long, so that they end where slots do."""
    jobs = []
    for number, submit in enumerate(sorted(chance.randint(0, 100) for _ in range(chance.randint(1, 20))), 1):
        size = chance.randint(1, processors)
        run_us = chance.randint(1, 30) * SECOND if chance.random() < 0.5 else chance.randint(1, 30 * SECOND)
        times = {"submit_us": submit * SECOND, "run_us": run_us, "estimate_us": 40 * SECOND}
        jobs.append(WorkloadJob(number=number, processors=size, processes=size, **times))
    return tuple(jobs)


def events_of(chance: Random, nodes: int, jobs: int) -> tuple[Event, ...]:
    found: list[Event] = []
    for _ in range(chance.randint(1, 4)):
        at, node = chance.randint(1, 150) * SECOND // chance.choice([1, 3]), chance.randrange(nodes)
        match chance.randrange(3):
            case 0:
                found += [NodesFail(at, ((node, node),)), NodesRepaired(at + chance.randint(1, 20) * SECOND, ((node, node),))]
            case 1:
                found.append(FailOver(at, chance.choice([0, 5 * SECOND])))
            case _:
                found.append(Cancel(at, chance.randint(1, jobs)))
    return tuple(sorted(found, key=lambda event: event.at_us))
