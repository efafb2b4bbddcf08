"""What the parts of a leadership share: stories that end with it, reads that wait while the session is in doubt, what is set aside."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Exists, Multi, Op, Set
from rmgr.daemons.leader.tree import LeaderTree
from rmgr.errors import InvalidRecord, Unavailable
from rmgr.runtime.story import Pause, Story
from tests.harness.leader_bench import Bench, committed


def tree_of(bench: Bench) -> LeaderTree:
    return bench.lead().context.tree


def test_a_story_reads_and_commits_under_the_fence_and_ends_with_the_leadership(bench: Bench) -> None:
    tree, told = tree_of(bench), []

    def story() -> Story[None]:
        told.append((yield tree.get("/nothing")))
        told.append(type((yield tree.commit(Multi(name="MAKE", ops=(Create("/made"),), proof=Exists("/made"))))))
        yield Pause(5.0)
        told.append("never")

    tree.tell(story(), "a test")
    bench.advance(1.0)
    assert told == [None, Committed]
    assert bench.leader is not None
    bench.leader.close()
    bench.advance(10.0)
    assert (told, len(tree.stories)) == ([None, Committed], 0)


def test_what_escapes_from_a_story_sets_aside_what_it_is_about_until_one_of_it_ends_well(bench: Bench) -> None:
    tree, aside = tree_of(bench), bench.leader.aside  # type: ignore[union-attr]

    def story(error: Exception | None) -> Story[None]:
        yield Pause(0.0)
        if error is not None:
            raise error

    tree.tell(story(InvalidRecord("what stands there is none")), "a block")
    tree.tell(story(Unavailable("no answer")), "a list")
    tree.tell(story(ZeroDivisionError("by zero")), "a number")
    bench.advance(1.0)
    assert aside.told() == {"a block": "InvalidRecord: what stands there is none", "a number": "ZeroDivisionError: by zero"}
    tree.tell(story(None), "a block")
    bench.advance(1.0)
    assert list(aside.told()) == ["a number"]


def test_while_the_session_is_in_doubt_reads_and_commits_wait_in_their_order(bench: Bench) -> None:
    tree, told = tree_of(bench), []

    def story() -> Story[None]:
        found = yield tree.stat(paths.EPOCH)
        told.append(found is not None)
        told.append(type((yield tree.commit(Multi(name="MAKE", ops=(Create("/made"),), proof=Exists("/made"))))))

    tree.pause()
    tree.tell(story(), "a test")
    bench.advance(1.0)
    assert told == []
    tree.resume()
    bench.advance(1.0)
    assert told == [True, Committed]


def do(bench: Bench, *ops: Op) -> None:
    committed(bench.outside, Multi(name="TEST", ops=ops, proof=Exists("/no")))
    bench.advance(0.1)


def test_the_mirror_tells_each_child_that_comes_is_another_is_made_anew_or_goes(bench: Bench) -> None:
    tree = tree_of(bench)
    do(bench, Create("/kept"), Create("/kept/a", b"1"))
    first: list[str] = []
    second: list[str] = []
    kept = tree.mirror.below("/kept", first.append)
    assert tree.mirror.below("/kept", second.append) is kept
    kept.refresh()
    bench.advance(0.1)
    do(bench, Create("/kept/b", b"2"))
    do(bench, Set("/kept/a", b"3", -1))
    do(bench, Delete("/kept/b"), Create("/kept/b", b"4"))
    assert {name: found.data for name, found in kept.values.items()} == {"a": b"3", "b": b"4"}
    do(bench, Delete("/kept/a"))
    assert (kept.names, list(kept.values)) == (["b"], ["b"])
    assert first == second
    assert (first[:3], first[-1]) == (["a", "b", "a"], "a")
    assert tree.mirror.hurry()


def test_what_the_mirror_could_not_read_it_reads_again(bench: Bench) -> None:
    tree, left = tree_of(bench), [2]
    do(bench, Create("/kept"), Create("/kept/a", b"1"))
    get = bench.leader_coordinator.get

    def getting(path: str, **options: Any) -> Future[Any]:
        if path != "/kept/a" or not left[0]:
            return get(path, **options)
        left[0] -= 1
        answer: Future[Any] = Future()
        answer.set_exception(Unavailable("not now"))
        return answer

    bench.leader_coordinator.get = getting  # type: ignore[method-assign]
    kept = tree.mirror.below("/kept", lambda _: None)
    kept.refresh()
    bench.advance(0.1)
    assert kept.values == {}
    bench.advance(5.0)
    assert kept.values["a"].data == b"1"


def test_watches_that_were_lost_are_made_up_for_when_the_mirror_is_read_again(bench: Bench) -> None:
    tree = tree_of(bench)
    do(bench, Create("/kept"), Create("/kept/a", b"1"))
    kept = tree.mirror.below("/kept", lambda _: None)
    kept.refresh()
    bench.advance(0.1)
    bench.tree.drop_watches(bench.leader_coordinator._link)
    do(bench, Set("/kept/a", b"2", -1), Create("/kept/b", b"3"))
    assert {name: found.data for name, found in kept.values.items()} == {"a": b"1"}
    bench.advance(31.0)
    assert {name: found.data for name, found in kept.values.items()} == {"a": b"2", "b": b"3"}
