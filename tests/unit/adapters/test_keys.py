"""The table of store keys: built keys parse back, sort as they should, and families never meet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.adapters.store_rules import MAX_KEY_BYTES, check_key
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import CLUSTER_ID_KEY
from rmgr.errors import DataLost, UsageError

NUMBERS = st.integers(0, 9_999_999_999)
SHORT = st.integers(0, 99_999)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(NUMBERS, NUMBERS, SHORT, SHORT)
def test_an_output_key_is_parsed_back(sub: int, index: int, attempt: int, n: int) -> None:
    key = keys.output(sub, index, attempt, n)
    assert keys.parse_output(key) == keys.OutputKey(sub=sub, index=index, attempt=attempt, n=n)
    assert key.startswith(keys.outputs_of(sub, index, attempt))
    assert key.startswith(keys.outputs_of(sub))


@given(NUMBERS, NUMBERS, SHORT, st.sampled_from(keys.STREAMS), NUMBERS)
def test_a_log_key_begins_as_its_stream(sub: int, index: int, attempt: int, stream: str, part: int) -> None:
    assert keys.log(sub, index, attempt, stream, part).startswith(keys.logs_of(sub, index, attempt, stream))


@given(st.lists(st.tuples(NUMBERS, NUMBERS, SHORT), unique=True))
def test_output_keys_sort_as_their_numbers(tasks: list[tuple[int, int, int]]) -> None:
    assert sorted(keys.output(*task) for task in tasks) == [keys.output(*task) for task in sorted(tasks)]


@given(st.lists(NUMBERS, unique=True))
def test_history_lists_the_newest_first(subs: list[int]) -> None:
    listed = sorted(keys.history(sub) for sub in subs)
    assert [keys.parse_history(key) for key in listed] == sorted(subs, reverse=True)
    assert all(key.startswith(keys.history_prefix()) for key in listed)
    of_user = sorted(keys.history_of_user("ann", sub) for sub in subs)
    assert [keys.parse_history(key) for key in of_user] == sorted(subs, reverse=True)
    assert all(key.startswith(keys.history_prefix("ann")) and not key.startswith(keys.history_prefix()) for key in of_user)


@given(TEXT)
def test_a_users_key_stands_whole_in_its_family(user_key: str) -> None:
    assert keys.user_key(keys.named(user_key)) == user_key
    assert keys.named(user_key).startswith(keys.named_prefix(user_key[:1]))


def test_the_longest_key_of_a_user_is_a_key_of_the_store() -> None:
    longest = "é" * (keys.MAX_USER_KEY_BYTES // 2)
    assert len(check_key(keys.named(longest)).encode()) <= MAX_KEY_BYTES


@pytest.mark.parametrize("user_key", ["", "a\0", "x" * 1001, "é" * 501, "\ud800", 7])
def test_what_is_no_users_key_is_refused(user_key: str) -> None:
    with pytest.raises(UsageError, match="key"):
        keys.named(user_key)


def test_no_family_is_the_beginning_of_another() -> None:
    built = [
        keys.function("0" * 64),
        keys.module("0" * 64),
        keys.upload("0" * 64),
        keys.arguments(1, 2, "g"),
        keys.fragment(1, "g"),
        keys.output(1, 2, 3),
        keys.log(1, 2, 3, "stdout", 0),
        keys.page(1, 0),
        keys.named("k"),
        keys.final(keys.Pointer(sub=1, index=2)),
        keys.history(1),
        keys.history_of_user("u", 1),
        keys.metric("n1", 1),
        CLUSTER_ID_KEY,
    ]
    families = [key.partition("/")[0] + "/" for key in built]
    assert len(set(families)) == len(families)
    assert keys.__doc__ is not None
    assert all(f"| `{family}" in keys.__doc__ for family in families), "the table names each family"


def test_what_goes_with_a_submission_is_all_below_its_prefixes() -> None:
    saved = keys.Checkpoint(sub=42, index=7, attempt=2, n=3)
    assert keys.parse_checkpoint(saved.key) == saved
    assert keys.parse_checkpoint(keys.checkpoint_piece(42, 7, 2, "0" * 64)) is None
    mine = [saved.key, keys.checkpoint_piece(42, 7, 2, "0" * 64)]
    mine += [keys.arguments(42, 0, "g"), keys.fragment(42, "g"), keys.output(42, 7, 1), keys.log(42, 7, 1, "stderr", 3), keys.page(42, 0)]
    other = [keys.output(420, 7, 1), keys.output(4, 2, 1), keys.history(42), keys.named("out/42"), keys.function("0" * 64)]
    assert all(key.startswith(keys.prefixes_of(42)) for key in mine)
    assert not any(key.startswith(keys.prefixes_of(42)) for key in other)


@given(NUMBERS, NUMBERS, st.integers(0, 2**31))
def test_a_pointer_is_read_back(sub: int, index: int, n: int) -> None:
    pointer = keys.Pointer(sub=sub, index=index, n=n)
    assert keys.decode_pointer(keys.encode_pointer(pointer)) == pointer


def test_final_values_of_different_pointers_never_meet() -> None:
    pointers = [
        keys.Pointer(sub=1, index=2),
        keys.Pointer(sub=1, index=2, n=1),
        keys.Pointer(sub=1, index=2, by="a"),
        keys.Pointer(sub=12, index=2),
    ]
    assert len({keys.final(pointer) for pointer in pointers}) == len(pointers)


def test_a_pointer_is_canonical_json() -> None:
    assert keys.encode_pointer(keys.Pointer(sub=42, index=7)) == b'{"by":"","index":7,"n":0,"sub":42}'


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"sub":"x","index":1}', b"\xff"])
def test_what_is_no_pointer_is_data_lost(data: bytes) -> None:
    with pytest.raises(DataLost):
        keys.decode_pointer(data)


@pytest.mark.parametrize(
    "build",
    [
        lambda: keys.function("abc"),
        lambda: keys.function("A" * 64),
        lambda: keys.arguments(-1, 0, "g"),
        lambda: keys.arguments(1, 0, "a/b"),
        lambda: keys.arguments(1, 0, ""),
        lambda: keys.page(10**10, 0),
        lambda: keys.output(1, 2, 100_000),
        lambda: keys.log(1, 2, 3, "stdin", 0),
        lambda: keys.history_of_user("a/b", 1),
        lambda: keys.parse_output("out/1/2/3"),
        lambda: keys.parse_output("log/1/2/3/4"),
        lambda: keys.parse_output("out/1/2/3/x"),
        lambda: keys.parse_history("hist/12"),
        lambda: keys.parse_history("page/9999999999"),
        lambda: keys.user_key("out/1"),
        lambda: keys.user_key("name/"),
    ],
)
def test_what_is_no_key_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        build()


@given(st.text(max_size=4), st.text(max_size=6))
def test_prefix_end_bounds_exactly_the_texts_with_the_prefix(prefix: str, text: str) -> None:
    end = keys.prefix_end(prefix)
    assert text.startswith(prefix) == (prefix <= text and (end is None or text < end))


def test_prefix_end_steps_over_surrogates_and_the_last_character() -> None:
    assert keys.prefix_end("a/") == "a0"
    assert keys.prefix_end("\ud7ff") == "\ue000"
    assert keys.prefix_end("a\U0010ffff") == "b"
    assert keys.prefix_end("\U0010ffff") is None
    assert keys.prefix_end("") is None
