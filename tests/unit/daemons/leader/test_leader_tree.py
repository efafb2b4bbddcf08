"""What the parts of a leadership share: stories that end with it, reads that wait while the session is in doubt, what is set aside."""

from __future__ import annotations

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.daemons.leader.tree import LeaderTree
from rmgr.errors import InvalidRecord, Unavailable
from rmgr.runtime.story import Pause, Story
from tests.harness.leader_bench import Bench


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
