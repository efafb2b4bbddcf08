"""Who reads the store for others says how much: `get_noted_many(largest=)`, `row_of`, `fetch(largest=)`, a stream, which comes in pieces.

Whole values are for those who own them. No thread that owns a mailbox reads any.
"""

from __future__ import annotations

import ast

from tests.places import ROOT

_WHOLE = {"get", "get_many", "get_noted"}
_STORES = {"store", "_store"}
#: Files that read values whole, whatever their size, and why they may.
MAY = {
    "adapters/gateway/rows.py": "it has asked for the size before; what does not fit a message goes in parts",
    "client/values.py": "values of the caller's own process, as large as it has asked for",
}


#: Files of daemons with a mailbox that ask a store which they keep, and on whose thread. All others get it as the argument of a job.
ELSEWHERE = {
    "daemons/leader/tree.py": "it gives it to jobs, on threads of its own",
    "daemons/service/keepers.py": "a thread of its own; at the start, before anything is served",
    "daemons/starter/checkpoint/directories.py": "it gives it to the thread of a checkpoint, also of one for another node",
    "daemons/starter/core/io.py": "it gives it to jobs, on threads of its own; what `put_soon` begins waits for nothing, and reads nothing",
    "daemons/starter/node/service.py": "the thread of a call",
    "daemons/starter/staging/outputs.py": "the store of a job",
    "daemons/starter/staging/inputs.py": "a job's",
}


def own_asks(source: str) -> list[int]:
    """Lines where a store that is kept is asked for something, or given to a function."""
    found: list[int] = []
    if "store" not in source:
        return found
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        makes = ast.unparse(call.func).rpartition(".")[2].lstrip("_")[:1].isupper()
        given = [] if makes else [*call.args, *(keyword.value for keyword in call.keywords)]
        kept = [one for one in (target, *given) if isinstance(one, ast.Attribute) and one.attr in _STORES]
        if any(not ast.unparse(one).startswith("config.") for one in kept):
            found.append(call.lineno)
    return found


def whole_reads(source: str) -> list[int]:
    """Lines where a store is asked for a value of any size."""
    tree = ast.parse(source if "store" in source else "")
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return [call.lineno for call in calls if call.func.attr in _WHOLE and ast.unparse(call.func.value).rpartition(".")[2] in _STORES]  # type: ignore[attr-defined]


def test_no_value_of_any_size_is_read_where_others_may_have_written_it() -> None:
    rooms = [ROOT / "rmgr" / room for room in ("adapters", "cli", "client", "daemons", "procedures", "runtime")]
    found = {str(path.relative_to(ROOT / "rmgr")): whole_reads(path.read_text()) for room in rooms for path in room.rglob("*.py")}
    wrong = {file: lines for file, lines in found.items() if lines and file not in MAY}
    assert not wrong, f"`procedures/bounded.py` reads within bounds: {wrong}"
    assert all(found[file] for file in MAY), "they read nothing whole any more"


def test_no_owner_of_a_mailbox_reads_the_store_or_decodes_its_rows() -> None:
    rooms = [ROOT / "rmgr" / "daemons" / room for room in ("leader", "service", "starter")]
    found = {str(path.relative_to(ROOT / "rmgr")): own_asks(path.read_text()) for room in rooms for path in room.rglob("*.py")}
    wrong = {file: lines for file, lines in found.items() if lines and file not in ELSEWHERE}
    assert not wrong, f"a row has up to 64 MiB: a job reads it, on another thread (`StoreIO.run`, `Calls.store`): {wrong}"
    assert all(found[file] for file in ELSEWHERE), "they ask nothing any more"


def test_a_store_that_is_kept_and_asked_is_seen() -> None:
    assert own_asks("x = self._store.get_noted_many(rows)\nfound = page_at(self._shared.store, 1, 2)\nrun(job, to=self.store)") == [1, 2, 3]
    assert not own_asks("store.head(key)\nself.io = StoreIO(self.store)\nio.run(lambda store: store.head(key))\nmeet(config.cluster.store)")


def test_a_whole_read_is_seen() -> None:
    assert whole_reads("x = self._store.get(key, timeout_s=1)\nstore.get_noted(row)\nopened.store.get_many(rows)") == [1, 2, 3]
    assert not whole_reads("store.get_noted_many([row], largest=9); values.get(key); coordinator.get(path)")
