"""Large values of keyed calls on a real Starter: files from the store to the worker, and from the worker into the store."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from rmgr.adapters.sqlite.store import ValueFiles
from rmgr.coord.protocol import keys
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import KeyedPayload
from tests.harness.starter_rig import Rig
from tests.harness.store_adapters import flip_bit, value_file
from tests.harness.waiting import eventually


def test_inputs_travel_as_files(rig: Rig) -> None:
    rig.start()
    rig.store.put(keys.named("big"), b"B" * 3_000_000)
    number = rig.submit(len, keyed=[KeyedPayload(("big",), ("size",))] * 3)
    assert {outcome.state for outcome in rig.outcomes(number, 3).values()} == {State.COMPLETED}
    assert rig.spool_is_empty()


def test_an_input_that_is_damaged_fails_its_task_and_names_the_key(rig: Rig) -> None:
    rig.start()
    for key in ("good", "bad"):
        rig.store.put(keys.named(key), b"B" * 1_000_000)
    damaged = value_file(rig.directory / "store.db", keys.named("bad"))
    assert damaged is not None
    flip_bit(damaged, 999_999)
    number = rig.submit(len, keyed=[KeyedPayload(("bad",), ("o/1",)), KeyedPayload(("good",), ("o/2",))], resubmit=False)
    found = rig.outcomes(number, 2)
    assert (found[0].state, found[0].reason) == (State.FAILED, Reason.DATA_LOST)
    assert "'bad'" in found[0].error
    assert "the hash differs" in found[0].error
    assert found[1].state is State.COMPLETED


def test_outputs_become_values_without_being_copied(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.start()
    monkeypatch.setattr(ValueFiles, "put", lambda *_, **__: pytest.fail("a result is written a second time"))
    number = rig.submit(lambda: (b"a" * 600_000, ["b" * 600_000], b"c" * 2_000_000), keyed=[KeyedPayload((), ("x", "y", "z"))])
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED
    rows = [keys.output(number, 0, 1, n) for n in range(3)]
    found = [rig.store.get(row) for row in rows]
    assert [value if encoding == "raw" else pickle.loads(value) for value, encoding in filter(None, found)] == [
        b"a" * 600_000, ["b" * 600_000], b"c" * 2_000_000
    ]  # fmt: skip
    files = [value_file(rig.directory / "store.db", row) for row in rows]
    eventually(lambda: [file.stat().st_nlink for file in files if file is not None] == [1, 1, 1], "no other name left")
    assert {file.stat().st_mode & 0o777 for file in files if file is not None} == {0o400}
    number = rig.submit(lambda: b"c" * 2_000_000)  # nor where it stands under no key
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.value_size, outcome.value_sha256) == (2_000_000, hashlib.sha256(b"c" * 2_000_000).digest())
    assert rig.store.get(keys.output(number, 0, 1)) == (b"c" * 2_000_000, "raw")
    assert rig.spool_is_empty()
