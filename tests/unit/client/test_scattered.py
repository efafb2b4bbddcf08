"""Pickles in parts: the same value, no copy of what is large, and nothing of `__main__` by name."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from rmgr.client import content
from rmgr.client.content import SCATTER_BYTES, Scattered
from rmgr.client.pickling import dump_call, dump_value
from rmgr.coord.protocol.records import decode_payloads

LARGE = SCATTER_BYTES + 3


def loaded(made: object) -> object:
    assert isinstance(made, Scattered)
    return pickle.loads(b"".join(made))


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"x" * LARGE,
        lambda: bytearray(b"y" * LARGE),
        lambda: [b"x" * LARGE, 3],
        lambda: {"a": b"x" * LARGE, "b": "c" * 70_000},
        lambda: np.arange(LARGE // 8 + 1),
        lambda: np.arange(LARGE // 4).reshape(2, -1)[:, ::2],
        lambda: np.asfortranarray(np.ones((4, LARGE // 32 + 1))),
    ],
    ids=["bytes", "bytearray", "list", "dict", "array", "strided", "fortran"],
)
def test_a_large_argument_comes_back_as_it_was(made: Callable[[], object]) -> None:
    value = made()
    ((back,), kwargs) = loaded(dump_call((value,), {}, "f"))
    assert type(back) is type(value)
    assert not kwargs
    assert np.array_equal(back, value) if isinstance(value, np.ndarray) else back == value


@pytest.mark.parametrize(
    "made", [lambda: b"x" * LARGE, lambda: bytearray(LARGE), lambda: np.zeros(LARGE // 8 + 1)], ids=["bytes", "bytearray", "ndarray"]
)
def test_what_is_large_is_not_copied(made: Callable[[], object]) -> None:
    value = made()
    tracemalloc.start()
    try:
        packed = dump_call((value,), {"k": 1}, "f")
        content.hash_of(content.parts_of((packed,)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(packed) > LARGE


def test_small_arguments_are_one_piece() -> None:
    assert isinstance(dump_call((b"x" * 1000, [1]), {"k": 2}, "f"), bytes)
    assert isinstance(dump_value({"a": 1}, "v"), bytes)


class Of:
    def __init__(self, data: bytes) -> None:
        self.data = data


def test_objects_of_main_travel_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    import __main__

    monkeypatch.setattr(Of, "__module__", "__main__")
    monkeypatch.setattr(__main__, "Of", Of, raising=False)
    made = dump_call((Of(b"x"), b"y" * LARGE), {}, "f")
    assert isinstance(made, Scattered)
    monkeypatch.delattr(__main__, "Of")
    (one, _), _ = pickle.loads(b"".join(made))
    assert one.data == b"x"


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(Exception, match="argument 1 of f, a lock, cannot be pickled"):
        dump_call((b"y" * LARGE, __import__("threading").Lock()), {}, "f")


def test_a_row_is_the_same_in_parts_and_in_one_piece() -> None:
    made = dump_call((b"x" * LARGE,), {}, "f")
    row = b"".join(content.parts_of((made, b"small")))
    assert decode_payloads(row) == (b"".join(made), b"small")
    assert content.whole([made, b"small"]) == [b"".join(made), b"small"]
