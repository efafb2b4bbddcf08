"""Output keys are created once: several clients that claim the same keys get one owner for each, on every store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from rmgr.client.values import Values
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.errors import KeyExists
from rmgr.procedures.output_keys import Fates, claim_pointers, look
from tests.harness.store_adapters import Adapter, run_threads
from tests.harness.store_ways import WAYS, opened


@pytest.fixture(params=WAYS)
def store(adapter: Adapter, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(adapter, request.param, tmp_path) as made:
        yield made


def test_a_value_is_replaced_only_while_it_is_the_one_that_was_seen(store: Store) -> None:
    store.put_many([("name/a", b"old"), ("name/b", b"other")])
    seen = {"name/a": sha256(b"old").digest(), "name/c": sha256(b"").digest()}
    store.put_many([("name/a", b"new"), ("name/c", b"fresh")], overwrite=False, replaces=seen)
    assert store.get_many(["name/a", "name/b", "name/c"]) == {
        "name/a": (b"new", Encoding.RAW),
        "name/b": (b"other", Encoding.RAW),
        "name/c": (b"fresh", Encoding.RAW),
    }
    for rows in ([("name/a", b"newer")], [("name/d", b"1"), ("name/a", b"newer")]):
        with pytest.raises(KeyExists, match="'name/a'"):
            store.put_many(rows, overwrite=False, replaces=seen)
    assert store.get_many(["name/a", "name/d"]) == {"name/a": (b"new", Encoding.RAW)}


def test_of_clients_that_want_the_same_keys_each_key_has_one_winner(store: Store) -> None:
    """Half of the keys are free, half were left by tasks that are gone without a value: those may be taken, once."""
    names = [f"out/{n:03d}" for n in range(40)]
    gone = [(keys.named(name), keys.encode_pointer(Pointer(sub=1, index=n, by="gone"))) for n, name in enumerate(names[::2])]
    store.put_many(gone, encoding=Encoding.POINTER)
    barrier = threading.Barrier(3)
    won: dict[str, list[int]] = {name: [] for name in names}

    def client(number: int) -> None:
        values = Values(store, Fates(store, _Nothing()))  # type: ignore[arg-type]
        wanted = [(name, Pointer(sub=10 + number, index=n, by=f"c{number}")) for n, name in enumerate(names)]
        wanted = wanted[number * 13 :] + wanted[: number * 13]
        barrier.wait(60)
        refused: dict[int, object] = {}
        for at in range(0, len(wanted), 10):
            refused |= claim_pointers(values, wanted[at : at + 10], overwrite=False)
        for name, pointer in wanted:
            if pointer.index not in refused:
                won[name].append(pointer.sub)

    run_threads(client, 3)
    assert {name: len(subs) for name, subs in won.items()} == dict.fromkeys(names, 1)
    there = store.get_many([keys.named(name) for name in names])
    assert {name: keys.decode_pointer(there[keys.named(name)][0]).sub for name in names} == {name: subs[0] for name, subs in won.items()}


def test_a_claim_that_is_repeated_finds_its_own(store: Store) -> None:
    values = Values(store, Fates(store, _Nothing()))  # type: ignore[arg-type]
    wanted = [(f"out/{n}", Pointer(sub=12, index=n, by="me")) for n in range(5)]
    assert values.claim_pointers(wanted[:3], overwrite=False) == {}
    assert values.claim_pointers(wanted, overwrite=False) == {}
    assert look(values, list(wanted), overwrite=False).ours == {key for key, _ in wanted}
    assert "out/4" in values.seen


class _Nothing:
    """A coordinator whose submissions from 10 on are there and open; those below are gone."""

    def get(self, path: str, **_: object) -> object:
        from concurrent.futures import Future

        from rmgr.coord.protocol import paths
        from rmgr.coord.protocol.multi import Stamped, Stat
        from rmgr.coord.protocol.records import encode_record
        from rmgr.model.tasks.submission import Tail

        future: Future[Stamped | None] = Future()
        number = next((n for n in range(10, 14) if path in (paths.tail(n), paths.done(n))), None)
        data = encode_record(Tail(next=100, reigns=((0, f"c{number - 10}"),))) if number and path == paths.tail(number) else b""
        future.set_result(None if number is None else Stamped(data, Stat(0, 0, 0, 0, 0, 0)))
        return future
