"""Values of calls: which fit an interface, and how they travel. Hostile ones: `property/test_decoders.py`, too."""

from __future__ import annotations

import builtins
import mmap
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rmgr.errors import UsageError, ValueTooLarge
from rmgr.model.arrays import MAGIC, PIECE_BYTES, ArraysError, decode, encode, fit_inputs, fit_outputs, header_of, pieces
from rmgr.model.interface import ITEM_BYTES, Interface, interface_of

np = pytest.importorskip("numpy", reason="arrays of calls; pip install '.[test]'")


def interface(*arguments: str, **fields: object) -> Interface:
    return interface_of({"name": "f", "arguments": list(arguments), **fields}, "test")


def travelled(*values: Any) -> list[Any]:
    return decode(b"".join(encode(values)))


LINSOLVE = interface("in A float64[n,n]", "in b float64[n]", "out x float64[n]", operations="2/3*n**3 + 2*n**2")


# -- the wire ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 5), (2, 0, 4), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_travel_as_they_are(dtype: str, shape: tuple[int, ...], order: str) -> None:
    sent = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, dtype, order=order)
    (got,) = travelled(sent)
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert np.array_equal(got, sent)
    assert got.flags.f_contiguous == sent.flags.f_contiguous


def test_scalars_travel() -> None:
    values = [7, -(1 << 63), 2.5, float("inf"), "Grüße", "", b"\x00\xff", b""]
    assert travelled(*values) == values
    assert travelled() == []
    for wrong in (1 << 63, True, None, [1], np.array([object()]), np.zeros(3, ">f8"), np.zeros(2, "datetime64[s]"), "\ud800"):
        with pytest.raises((UsageError, UnicodeEncodeError)):
            encode([wrong])


def test_nothing_is_copied_on_the_way_out_and_a_mapped_file_is_not_on_the_way_in(tmp_path: Path) -> None:
    sent = np.arange(6.0).reshape(2, 3)
    parts = encode(["x", sent])
    sent[0, 0] = 9
    path = tmp_path / "arguments"
    path.write_bytes(b"".join(parts))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        text, got = decode(mapped)
        assert (text, got[0, 0], got.flags.writeable, got.flags.aligned, got.flags.owndata) == ("x", 9, False, True, False)
        del got


def test_pieces_are_of_one_mebibyte_and_make_the_same_bytes() -> None:
    parts = encode([np.arange(300_000.0), "x" * 70, np.arange(200_000.0)])
    cut = list(pieces(parts))
    assert [len(piece) for piece in cut[:-1]] == [PIECE_BYTES] * (len(cut) - 1)
    assert b"".join(cut) == b"".join(parts)
    items, size = header_of(cut[0])
    assert ([item.type for item in items], size) == (["float64", "str", "float64"], sum(map(len, cut)))


def spoilt(*items: object, body: bytes = b"", pad: int = 64) -> bytes:
    header = msgspec.msgpack.encode(list(items))
    begin = MAGIC + len(header).to_bytes(4, "little") + header
    return begin + bytes(-len(begin) % pad) + body


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin"),
        (MAGIC, "does not begin"),
        (b"\x80\x04pickle" * 9, "does not begin"),
        (MAGIC + b"\xff\xff\xff\xff", "does not begin"),
        (spoilt(3), "does not decode"),
        (spoilt(["float64", [-1], "C", 8]), "has not 8 bytes"),
        (spoilt(["float64", [1 << 60, 0], "C", 0]), "has not 0 bytes"),
        (spoilt(["float64", [(1 << 47), 0, (1 << 47)], "C", 0]), "no array has shape"),
        (spoilt(["float64", [2], "C", 8], body=bytes(8)), "has not 8 bytes"),
        (spoilt(["float64", [1 << 40], "C", 1 << 43]), "announces more than"),
        (spoilt(["float64", [1], "C", 8], body=bytes(7)), "and announces"),
        (spoilt(["float64", [1], "C", 8], body=bytes(9)), "and announces"),
        (spoilt(["object", [1], "C", 8], body=bytes(8)), "no array has type object"),
        (spoilt(["float64", [1], "A", 8], body=bytes(8)), "no array has type"),
        (spoilt(["float64", [1] * 9, "C", 8], body=bytes(8)), "9 dimensions"),
        (spoilt(["int", [], "C", 9], body=bytes(9)), "of type int"),
        (spoilt(["str", [], "C", -5]), "of type str"),
        (spoilt(["str", [], "C", 1], body=b"\xff"), "no UTF-8"),
        (spoilt(["bool", [2], "C", 2], body=b"\x01\x07"), "neither 0 nor 1"),
        (spoilt(*[["bytes", [], "C", 0]] * 65), "65 values"),
        (spoilt(["str", [], "C", 0, [[[[[]]]]]]), "does not decode"),
    ],
)
def test_what_a_hostile_peer_sends_is_refused_before_anything_is_made(data: bytes, why: str) -> None:
    with pytest.raises(ArraysError, match=why):
        decode(data)


def test_a_header_that_lies_costs_no_memory() -> None:
    data = spoilt(*[["float64", [1 << 20], "C", 8 << 20]] * 64)
    tracemalloc.start()
    with pytest.raises(ArraysError):
        decode(data)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_more_than_is_allowed_is_not_sent() -> None:
    with pytest.raises(ValueTooLarge, match="have 8064 bytes, 8000 are allowed"):
        encode([np.zeros(1000)], max_bytes=8000)
    with pytest.raises(UsageError, match="at most 64"):
        encode([1] * 65)


# -- what fits -----------------------------------------------------------------------------------------------------------------


def test_arguments_bind_sizes_and_cost() -> None:
    fitting = fit_inputs(LINSOLVE, [np.eye(600), np.ones(600)])
    assert (fitting.sizes, fitting.operations, fitting.bytes) == ({"n": 600}, 144_720_000, 8 * (600 * 600 + 1200))
    texts = fit_inputs(interface("in s str", "in k int", "out y float64[2*k]"), ["Grüße", np.int32(4)])
    assert (texts.values, texts.sizes, texts.bytes) == (("Grüße", 4), {"k": 4}, 5 + 8 + 64)


def test_what_numpy_casts_safely_is_cast() -> None:
    given = np.asfortranarray(np.ones((3, 3), "int32"))
    matrix, vector = fit_inputs(LINSOLVE, [given, [1, 2, 3]]).values
    assert (matrix.dtype, vector.dtype, matrix.flags.f_contiguous) == (np.float64, np.float64, True)
    swapped, sliced = fit_inputs(LINSOLVE, [np.ones((2, 2), ">f8"), np.arange(9.0)[::8]]).values
    assert (swapped.dtype.isnative, sliced.tolist(), sliced.flags.c_contiguous) == (True, [0.0, 8.0], True)
    assert travelled(swapped, sliced)[1].tolist() == [0.0, 8.0]
    same = np.eye(2)
    assert fit_inputs(LINSOLVE, [same, same[0]]).values[0] is same


@pytest.mark.parametrize(
    ("arguments", "values", "why"),
    [
        ((), [1], "f@1 takes 0 values, not 1"),
        (("in A float64[n,n]", "in b float64[n]"), [np.eye(3)], "f@1 takes 2 values, not 1"),
        (("in A float64[n,n]",), [np.ones((3, 4))], r"argument A is float64\[3,4\], float64\[n,n\] with n = 3 is wanted"),
        (("in A float64[n,n]", "in b float64[n]"), [np.eye(3), np.ones(4)], r"argument b is float64\[4\], float64\[n\] with n = 3"),
        (("in b float64[n]", "in n int"), [np.ones(4), 5], r"argument b is float64\[4\], float64\[n\] with n = 5"),
        (("in k int", "in b float64[2*k+1]"), [3, np.ones(6)], r"argument b is float64\[6\], float64\[2\*k \+ 1\] with 2\*k \+ 1 = 7"),
        (("in b float64[n,3]",), [np.ones((2, 4))], r"with 3 = 3"),
        (("in b float64[n]",), [np.ones((3, 3))], r"argument b is float64\[3,3\], float64\[n\] is wanted"),
        (("in b float64[n]",), [3.0], r"argument b is float64\[\], float64\[n\] is wanted"),
        (("in b int32[n]",), [np.ones(3)], r"argument b is float64\[3\], int32\[n\] is wanted"),
        (("in b float64[n]",), [np.array([object()])], r"argument b is an array of objects \(object\[1\]\)"),
        (("in b float64[n]",), [[[1], [1, 2]]], "argument b is list that is no array|array of objects"),
        (("in b float64[n]",), ["text"], r"argument b is <U4\[\], float64\[n\] is wanted"),
        (("in b float64[n]",), [None], "argument b is an array of objects"),
        (("in k int",), [2.5], "argument k is float, int is wanted"),
        (("in k int",), [True], "argument k is bool, int is wanted"),
        (("in k int",), [1 << 70], "argument k is int|an int beyond 64 bits"),
        (("in x float",), ["3"], "argument x is str, float is wanted"),
        (("in s str",), [b"x"], "argument s is bytes, str is wanted"),
        (("in s str",), ["\ud800"], "argument s is str, str is wanted"),
        (("in s bytes",), ["x"], "argument s is str, bytes is wanted"),
    ],
)
def test_what_does_not_fit_is_told(arguments: tuple[str, ...], values: list[Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        fit_inputs(interface(*arguments), values)


def test_costs_that_are_none_are_refused() -> None:
    for operations in ("x", "0 - n", "1/(n-3)"):
        with pytest.raises(UsageError):
            fit_inputs(interface("in x float", "in b float64[n]", operations=operations), [float("nan"), np.ones(3)])
    assert fit_inputs(interface("in tol float"), [float("nan")]).operations == 0


def test_arguments_and_promised_answers_are_bounded() -> None:
    with pytest.raises(ValueTooLarge, match="its arguments would have 8,000 bytes, 100 are allowed"):
        fit_inputs(interface("in b float64[n]"), [np.ones(1000)], max_bytes=100)
    with pytest.raises(ValueTooLarge, match="its answer would have 800,000,000,000 bytes"):
        fit_inputs(interface("in n int", "out x float64[n]"), [10**11])
    with pytest.raises(UsageError):
        fit_inputs(interface("in n int", "out x float64[n]"), [-1])


def test_answers_are_held_to_the_sizes_of_their_call() -> None:
    fit = fit_outputs(LINSOLVE, [[1, 2, 3]], {"n": 3})
    assert fit[0].tolist() == [1.0, 2.0, 3.0]
    for wrong in ([np.ones(4)], [np.ones(3), 1], [None], []):
        with pytest.raises(UsageError, match=r"f@1"):
            fit_outputs(LINSOLVE, wrong, {"n": 3})
    both = interface("inout b float64[n]", "out k int")
    assert fit_outputs(both, [np.ones(2), 7], {"n": 2})[1] == 7
    with pytest.raises(UsageError, match=r"argument b is float64\[3\]"):
        fit_outputs(both, [np.ones(3), 7], {"n": 2})


def test_without_numpy_scalars_travel_and_arrays_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def none(name: str, *rest: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return real(name, *rest)

    data = b"".join(encode([np.ones(2)]))
    monkeypatch.setattr(builtins, "__import__", none)
    assert travelled(1, "x") == [1, "x"]
    assert fit_inputs(interface("in k int"), [3]).values == (3,)
    for needs in (lambda: decode(data), lambda: fit_inputs(interface("in b float64[n]"), [[1.0]])):
        with pytest.raises(UsageError) as caught:
            needs()
        assert caught.value.hint == "pip install 'numpy>=1.24'"
