"""Each room of the package is small, and says what it is and what it may touch. What is not yet so is listed; the lists only shrink."""

from __future__ import annotations

import ast
from collections import Counter

from tests.test_house import sources, tree_of
from tests.test_house_ratchets import module_of

MOST = 18  #: modules of a room, its `__init__` aside

#: Rooms with more.
FULL: frozenset[str] = frozenset(
    {
        "rmgr.sim.plots",
    }
)

#: Rooms whose docstring does not yet say in two sentences what they are, and what they may touch.
SILENT: frozenset[str] = frozenset(
    {
        "rmgr.dev",
        "rmgr.runtime",
        "rmgr.sched.policies",
        "rmgr.sim.models",
        "rmgr.sim.papers.paper001",
    }
)


def sentences(text: str) -> int:
    """Sentences of a docstring: its words that end with a full stop, and what has none at its end."""
    words = text.split()
    ended = [word.rstrip("`)\"'").endswith((".", "!", "?")) for word in words]
    return sum(ended) + (bool(words) and not ended[-1])


def full_rooms() -> set[str]:
    counts = Counter(module_of(path).rpartition(".")[0] for path in sources() if path.name != "__init__.py")
    return {room for room, count in counts.items() if count > MOST}


def silent_rooms() -> set[str]:
    said = {module_of(path): ast.get_docstring(tree_of(path)) or "" for path in sources() if path.name == "__init__.py"}
    return {room for room, text in said.items() if sentences(text) < 2 or "TODO" in text}


def test_no_room_is_too_full() -> None:
    full = full_rooms()
    assert sorted(full - FULL) == [], f"a room of more than {MOST} modules: split it by idea"
    assert sorted(FULL - full) == [], "take these rooms off FULL"


def test_every_room_says_what_it_is_and_what_it_may_touch() -> None:
    silent = silent_rooms()
    assert sorted(silent - SILENT) == [], "its docstring: what the room is, what it may touch and what not, in at least two sentences"
    assert sorted(SILENT - silent) == [], "take these rooms off SILENT"


def test_sentences_are_counted() -> None:
    assert [sentences(text) for text in ("", "client", "A room.", "A room. It may touch `model`.", "Of one: two; three")] == [0, 1, 1, 2, 1]
