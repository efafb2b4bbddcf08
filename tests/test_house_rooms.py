"""Each room of the package is small, and says what it is and what it may touch."""

from __future__ import annotations

import ast
from collections import Counter

from tests.test_house import sources, tree_of
from tests.test_house_ratchets import module_of

MOST = 18  #: modules of a room, its `__init__` aside


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
    assert sorted(full_rooms()) == [], f"a room of more than {MOST} modules: split it by idea"


def test_every_room_says_what_it_is_and_what_it_may_touch() -> None:
    assert sorted(silent_rooms()) == [], "its docstring: what the room is, what it may touch and what not, in at least two sentences"


def test_sentences_are_counted() -> None:
    assert [sentences(text) for text in ("", "client", "A room.", "A room. It may touch `model`.", "Of one: two; three")] == [0, 1, 1, 2, 1]
