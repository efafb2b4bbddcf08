"""Paper 002: table 1 slot by slot, quantities of section 3, task allocation policies of section 4, buddies (papers.md 3.2, 3.3)."""

from __future__ import annotations

import pytest

from rmgr.sched.policies.buddy_fcfs import Buddies
from rmgr.sched.tree.rotation import Rotation
from rmgr.sched.tree.shape import (
    AllocationRule,
    Loads,
    Tree,
    choose,
    is_balanced,
    is_fulfilled,
    longest_branch,
    tqlb,
)
from rmgr.sim.gangs import Stepped

#: Figure 1: node -> entries of its queue.
QUEUES = {0: 2, 1: 2, 2: 1, 3: 1, 4: 2, 5: 3, 6: 2}
#: Table 1: of each slot, Q_i(j) on every processor.
TABLE = """
    0(0) 0(0) 0(0) 0(0)
    0(1) 0(1) 0(1) 0(1)
    1(0) 1(0) 2(0) 2(0)
    1(1) 1(1) 5(0) 6(0)
    3(0) 4(0) 5(1) 6(1)
    3(0) 4(1) 5(2) 6(0)
    0(0) 0(0) 0(0) 0(0)
    0(1) 0(1) 0(1) 0(1)
    1(0) 1(0) 2(0) 2(0)
    1(1) 1(1) 5(0) 6(1)
    3(0) 4(0) 5(1) 6(0)
    3(0) 4(1) 5(2) 6(1)
    0(0) 0(0) 0(0) 0(0)
"""


def on_processors(tree: Tree, row: list[tuple[int, int]]) -> str:
    cells = ["idle"] * tree.leaves
    for node, task in row:
        low, high = tree.span(node)
        cells[low:high] = [f"{node}({task % 10})"] * (high - low)
    return " ".join(cells)


def test_table_1_comes_out_slot_by_slot_stepped_and_skipped() -> None:
    """C2.1."""
    tree = Tree(2, 4)
    stepped, rotation = Stepped(tree), Rotation(tree)
    for node, length in QUEUES.items():
        for j in range(length):
            stepped.add(10 * node + j, node, 100)
            rotation.add(10 * node + j, node, 100)
    expected = [" ".join(line.split()) for line in TABLE.strip().splitlines()]
    found, skipped = [], []
    for _ in expected:
        skipped.append(on_processors(tree, rotation.row()))
        rotation.advance(1)
        found.append(on_processors(tree, stepped.slot()))
    assert found == expected
    assert skipped == expected
    jumped = Rotation(tree)
    for node, length in QUEUES.items():
        for j in range(length):
            jumped.add(10 * node + j, node, 100)
    jumped.advance(10)
    assert on_processors(tree, jumped.row()) == expected[10]  # without a look at the slots before


def test_nodes_are_numbered_breadth_first_and_leaves_are_processors() -> None:
    for width, leaves, nodes in ((2, 8, 15), (3, 9, 13), (4, 64, 85)):
        tree = Tree(width, leaves)
        assert (tree.nodes, tree.sizes[0]) == (nodes, leaves)
        for node in range(1, nodes):
            assert node in tree.children(tree.parent(node))
            assert sum(tree.sizes[child] for child in tree.children(tree.parent(node))) == tree.sizes[tree.parent(node)]


def test_phantom_and_closed_leaves_count_nothing_and_get_nothing() -> None:
    tree = Tree(2, 5, closed={1})
    assert (tree.height, tree.processors) == (3, 4)
    assert tree.sizes[:7] == [4, 3, 1, 1, 2, 1, 0]
    loads = Loads(tree)
    homes = {size: choose(loads, size, AllocationRule.APA, {}) for size in (1, 2, 3, 4, 5)}
    assert homes == {1: 7, 2: 4, 3: 1, 4: 0, 5: None}


def test_quantities_of_figure_1() -> None:
    """Section 3: B, M, N, A by hand."""
    tree = Tree(2, 4)
    assert tqlb(tree, QUEUES) == [2, 4, 3, 5, 6, 6, 5]
    assert longest_branch(tree, QUEUES) == [6, 4, 4, 1, 2, 3, 2]
    loads = Loads(tree)
    for node, length in QUEUES.items():
        loads.change(node, length)
    assert loads.shortest == [5, 3, 3, 1, 2, 3, 2]
    assert loads.apa == [8 + 7 + 7, 4 + 3, 2 + 5, 1, 2, 3, 2]
    assert not is_balanced(tree, QUEUES)
    assert is_fulfilled(tree, QUEUES)
    assert is_balanced(tree, {0: 1, 1: 2, 2: 1, 5: 1, 6: 1})
    assert not is_fulfilled(tree, {1: 1})


def test_a_policy_picks_the_child_with_the_least_of_its_quantity_and_the_first_of_equals() -> None:
    """Section 4: left half long but thin, right half short but wide."""
    tree = Tree(2, 4)
    loads = Loads(tree)
    for node, entries in ((3, 3), (2, 2)):
        loads.change(node, entries)
    chosen = {policy: choose(loads, 1, policy, {}) for policy in AllocationRule}
    # M: 3 against 2; N: 0 against 2; A: 3 against 4; BF: shortest leaf queue is 0 on both sides
    assert chosen == {
        AllocationRule.RR: 3,
        AllocationRule.MAX: 5,
        AllocationRule.MIN: 4,
        AllocationRule.APA: 4,
        AllocationRule.BF: 4,
        AllocationRule.BF_APA: 4,
    }
    loads.change(4, 1)
    assert choose(loads, 1, AllocationRule.BF, {}) == 5  # 1 against 0
    assert choose(loads, 2, AllocationRule.BF, {}) == 1  # 0 against 2


def test_rr_gives_to_the_children_of_each_node_in_turn() -> None:
    cursors: dict[int, int] = {}
    loads = Loads(Tree(2, 4))
    assert [choose(loads, 1, AllocationRule.RR, cursors) for _ in range(5)] == [3, 5, 4, 6, 3]


def test_buddies_split_the_smallest_block_leftmost_and_merge() -> None:
    """Section 5.3."""
    free = Buddies(2, 8)
    assert [free.take(size) for size in (1, 2, 3, 1)] == [0, 2, 4, 1]
    assert free.take(1) is None
    free.give(2, 2)
    assert free.take(1) == 2
    for first, size in ((2, 1), (0, 1), (1, 1), (4, 3)):
        free.give(first, size)
    assert free.free() == [(0, 8)]
    odd = Buddies(2, 5)
    assert [odd.take(size) for size in (2, 1, 2, 1)] == [0, 2, None, 3]  # 4 is real, 5 is none
    assert odd.take(1) == 4
    assert odd.take(1) is None


@pytest.mark.parametrize(("first", "size", "left"), [(4, 2, [(0, 4), (6, 2)]), (3, 1, [(0, 2), (2, 1), (4, 4)])])
def test_a_named_block_is_cut_out_of_the_free_one_around_it(first: int, size: int, left: list[tuple[int, int]]) -> None:
    free = Buddies(2, 8)
    assert free.take_at(first, size)
    assert not free.take_at(first, size)
    assert free.free() == left
    free.give(first, size)
    assert free.free() == [(0, 8)]


def test_an_impossible_tree_is_refused_with_its_number() -> None:
    for width, leaves, said in ((1, 4, "width of the tree is 1"), (2, 0, "0 leaves")):
        with pytest.raises(ValueError, match=said):
            Tree(width, leaves)


def test_an_arrival_may_delay_others_by_more_than_its_own_quanta_where_a_subtree_goes_round_again() -> None:
    """Of the paper's rule itself, by hand. The children of the root go on for 2 slots a phase, for two tasks stand in node 2; task 4 in
    node 3 is early and has both. A newcomer to node 1 above it, of 2 quanta, takes one of the two in each phase: the third of task 4
    is 3 slots later, for the root is served once more in between.
    """
    ends: dict[bool, int] = {}
    for comes in (False, True):
        rotation = Rotation(Tree(2, 4))
        for task, node, quanta in ((1, 2, 3), (2, 0, 3), (3, 2, 2), (4, 3, 3)):
            rotation.add(task, node, quanta)
        if comes:
            rotation.add(5, 1, 2)
        left, slot = 3, 0
        while left:
            left -= any(task == 4 for _, task in rotation.row())
            slot += 1
            rotation.advance(1)
            rotation.finish()
        ends[comes] = slot
    assert ends == {False: 5, True: 8}
