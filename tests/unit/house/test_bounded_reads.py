"""Who reads the store for others says how much: `get_noted_many(largest=)`, `row_of`, a stream. Whole values are for those who own them."""

from __future__ import annotations

import ast

from tests.places import ROOT

_WHOLE = {"get", "get_many", "get_noted"}
_STORES = {"store", "_store"}
#: Files that read values whole, whatever their size, and why they may.
MAY = {
    "adapters/gateway/rows.py": "it has asked for the size before; what does not fit a message goes in parts",
    "client/values/stored.py": "values of the caller's own process, as large as it has asked for",
    "daemons/gateway/values.py": "it passes on what `adapters/gateway/rows.py` asks for",
    "runtime/store_watch.py": "it is the port, and passes on what is asked",
}


def whole_reads(source: str) -> list[int]:
    """Lines where a store is asked for a value of any size."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return [call.lineno for call in calls if call.func.attr in _WHOLE and ast.unparse(call.func.value).rpartition(".")[2] in _STORES]  # type: ignore[attr-defined]


def test_no_value_of_any_size_is_read_where_others_may_have_written_it() -> None:
    rooms = [ROOT / "rmgr" / room for room in ("adapters", "cli", "client", "daemons", "procedures", "runtime")]
    found = {str(path.relative_to(ROOT / "rmgr")): whole_reads(path.read_text()) for room in rooms for path in room.rglob("*.py")}
    wrong = {file: lines for file, lines in found.items() if lines and file not in MAY}
    assert not wrong, f"`procedures/bounded.py` reads within bounds: {wrong}"
    assert all(found[file] for file in MAY), "they read nothing whole any more"


def test_a_whole_read_is_seen() -> None:
    assert whole_reads("x = self._store.get(key, timeout_s=1)\nstore.get_noted(row)\nopened.store.get_many(rows)") == [1, 2, 3]
    assert not whole_reads("store.get_noted_many([row], largest=9); values.get(key); coordinator.get(path)")
