"""Arguments, functions and modules on their way out, whole and in parts: what travels, and the errors for what cannot."""

from __future__ import annotations

import functools
import io
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmgr.client import content, pickling
from rmgr.client.content import SCATTER_BYTES, Scattered
from rmgr.client.pickling import Functions, dump_call, dump_initializer, dump_value, name_of
from rmgr.coord.contents import TRUSTED_S
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.records import decode_payloads
from rmgr.errors import NotFound, PickleFailed, UsageError, ValueTooLarge
from rmgr.runner.pickles import definitions
from tests.harness.memory_store import MemoryStore
from tests.places import ROOT

factor = 2


def scale(x: int) -> int:
    return x * factor


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"pickling-{request.node.name}")


def call(store: MemoryStore, digest: str, *args: object) -> object:
    blob = store.get(keys.function(digest))
    return pickle.loads(blob[0])(*args)


# -- arguments


def test_no_arguments_cost_no_bytes() -> None:
    assert dump_call((), {}, "f") == b""


def test_arguments_come_back() -> None:
    assert pickle.loads(dump_call((1, "a"), {"k": [2]}, "f")) == ((1, "a"), {"k": [2]})


def test_an_argument_that_plain_pickle_refuses_goes_by_cloudpickle() -> None:
    (function,), _ = pickle.loads(dump_call((lambda x: x + 1,), {}, "f"))
    assert function(1) == 2


def test_an_argument_that_cannot_travel_is_named() -> None:
    with pytest.raises(PickleFailed, match=r"argument 1 of simulate, a lock, cannot be pickled"):
        dump_call((1, threading.Lock()), {}, "simulate")
    with pytest.raises(pickle.PicklingError, match=r"argument 'log' of simulate"):
        dump_call((), {"log": threading.Lock()}, "simulate")


def test_arguments_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmgr.client.pickling.MAX_VALUE_BYTES", 1000)
    with pytest.raises(ValueTooLarge, match=r"arguments of f have \d+ bytes; the limit is 1000"):
        dump_call((bytes(2000),), {}, "f")
    with pytest.raises(ValueTooLarge, match="the value for 'k'"):
        dump_value(list(range(10_000)), "the value for 'k'")


def test_classes_of_the_main_program_travel_by_value() -> None:
    program = """
        import pickle
        from rmgr.client.pickling import dump_call
        class Point:
            def __init__(self, x): self.x = x
        data = dump_call((Point(3),), {}, "f")
        import sys, types
        sys.modules["__main__"] = types.ModuleType("__main__")   # as in a worker
        print(pickle.loads(data)[0][0].x)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True
    )
    assert ended.stdout.strip() == "3"


# -- functions


def test_a_function_is_stored_once_by_its_content(store: MemoryStore) -> None:
    functions = Functions(store)
    digest = functions.register(scale)
    assert functions.register(scale) == digest
    assert Functions(store).register(scale) == digest
    assert call(store, digest, 4) == 8
    assert store.keys("fn/") == [keys.function(digest)]


def test_an_initializer_has_a_limit_of_its_own(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions(store)
    digest = functions.initializer(b"i" * 100)
    assert store.keys("fn/") == [keys.function(digest)]
    monkeypatch.setattr("rmgr.client.pickling.MAX_INITIALIZER_BYTES", 99)
    with pytest.raises(ValueTooLarge, match="the initializer has 100 bytes with its arguments; the limit is 99"):
        functions.initializer(b"i" * 100)


def test_whatever_can_be_called_can_be_registered(store: MemoryStore) -> None:
    class Adder:
        def __init__(self, n: int) -> None:
            self.n = n

        def add(self, x: int) -> int:
            return x + self.n

        def __call__(self, x: int) -> int:
            return x + self.n

    n = 10
    functions = Functions(store)
    for function in (lambda x: x + n, functools.partial(Adder(7).add), Adder(10).add, Adder(10), functools.partial(max, 12)):
        assert isinstance(call(store, functions.register(function), 2), int)  # type: ignore[arg-type]


def test_a_closure_whose_variable_was_bound_anew_is_pickled_again(store: MemoryStore) -> None:
    functions = Functions(store)
    n = 1

    def add(x: int) -> int:
        return x + n

    first = functions.register(add)
    n = 5
    second = functions.register(add)
    assert first != second
    assert (call(store, first, 1), call(store, second, 1)) == (2, 6)


def test_a_closure_whose_variable_was_changed_in_place_is_pickled_again_for_the_next_executor(store: MemoryStore) -> None:
    functions = Functions(store)
    items = [1]

    def add(x: int) -> int:
        return x + len(items)

    first = functions.register(add)
    items.append(2)
    definitions().look_again()
    second = functions.register(add)
    assert (call(store, first, 1), call(store, second, 1)) == (2, 3)


def test_a_bound_method_is_not_kept_alive(store: MemoryStore) -> None:
    import weakref

    class Thing:
        def work(self) -> int:
            return 1

    thing = Thing()
    gone = weakref.ref(thing)
    Functions(store).register(thing.work)
    del thing
    assert gone() is None


def test_a_function_that_cannot_travel_is_named(store: MemoryStore) -> None:
    lock = threading.Lock()

    def guarded() -> None:
        lock.acquire()

    with pytest.raises(PickleFailed, match=r"function .*guarded cannot be pickled"):
        Functions(store).register(guarded)
    with pytest.raises(UsageError, match="is not a function"):
        Functions(store).register(42)  # type: ignore[arg-type]


def test_an_initializer_that_cannot_travel_is_named_with_its_argument() -> None:
    lock = threading.Lock()
    with pytest.raises(PickleFailed, match=r"argument 1 of the initializer .*scale, a lock, cannot be pickled"):
        dump_initializer(scale, (1, lock))
    with pytest.raises(PickleFailed, match=r"the function .*<lambda> cannot be pickled"):
        dump_initializer(lambda: lock, ())


def test_an_unknown_function_id_is_refused(store: MemoryStore) -> None:
    with pytest.raises(NotFound, match="there is no function"):
        Functions(store).check("0" * 64)


def test_names_of_functions_are_those_of_their_source() -> None:
    assert name_of(functools.partial(functools.partial(scale, 1), 2)).endswith(".scale")
    assert name_of(len) == "len"


# -- modules


def test_a_package_is_shipped_the_same_every_time(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shipped_pkg"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 1\n")
    (package / "sub" / "__init__.py").write_text("")
    (package / "sub" / "data.txt").write_text("data")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "junk.pyc").write_bytes(b"junk")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = pickling.pack("shipped_pkg")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == ["shipped_pkg/__init__.py", "shipped_pkg/sub/__init__.py", "shipped_pkg/sub/data.txt"]
    assert pickling.pack(sys.modules["shipped_pkg"]) == data
    (digest,) = pickling.ship(store, ["shipped_pkg"])
    assert store.keys("mod/") == [keys.module(digest)]


def test_a_module_of_an_archive_says_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("module_of_an_archive.py", "VALUE = 1\n")
    monkeypatch.syspath_prepend(archive)
    with pytest.raises(UsageError, match=r"the module module_of_an_archive cannot be shipped: it lies in the archive .*app\.pyz"):
        pickling.pack("module_of_an_archive")


def test_a_module_that_cannot_be_shipped_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be imported here"):
        pickling.pack("no_such_module_anywhere")
    with pytest.raises(UsageError, match="has no source file"):
        pickling.pack(sys)
    import msgspec

    with pytest.raises(UsageError, match="is compiled"):
        pickling.pack(msgspec)


def test_a_process_makes_sure_once_a_day_of_what_it_has_stored(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions(store)
    digest = functions.register(scale)
    store.delete(keys.function(digest))
    assert functions.register(scale) == digest
    assert functions.check(digest) == digest
    assert store.keys("fn/") == [], "it was there a moment ago"
    now_s = time.monotonic()
    monkeypatch.setattr("rmgr.client.pickling.machine.monotonic", lambda: now_s + TRUSTED_S + 1)
    with pytest.raises(NotFound):
        functions.check(digest)
    assert functions.register(scale) == digest
    assert store.keys("fn/") == [keys.function(digest)]


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


class Unbound:
    """As proxies of web frameworks outside of a request."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__qualname__":
            raise AttributeError(name)
        raise RuntimeError(f"outside of a request: {name}")

    def __call__(self) -> None: ...


def test_nothing_but_pickling_looks_up_attributes_of_what_travels() -> None:
    args, kwargs = pickle.loads(dump_call((Unbound(),), {"key": [Unbound()]}, name_of(Unbound())))
    assert type(args[0]) is type(kwargs["key"][0]) is Unbound
    assert name_of(Unbound()) == f"{__name__}.Unbound"


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
