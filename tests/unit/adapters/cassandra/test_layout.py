"""Where rows lie: partitions of the index and of chunks, order of listings, timestamps."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from rmgr.adapters.cassandra import schema
from rmgr.adapters.store_rules import CHUNK_BYTES, MAX_VALUE_BYTES
from rmgr.coord.protocol import keys

TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=8)
KEYS = st.one_of(
    TEXT, st.builds("{}/{}".format, st.sampled_from(["out", "name", "log", "é"]), TEXT), st.just("out/42/7"), st.just("out/42x")
)


def test_a_partition_of_chunks_stays_below_10_mb() -> None:
    places = [schema.chunk_place(uuid4(), number) for number in range(MAX_VALUE_BYTES // CHUNK_BYTES)]
    assert schema.CHUNKS_PER_PARTITION * CHUNK_BYTES < 10_000_000
    assert places[15][1:] == (0, 15)
    assert places[16][1:] == (1, 16)


def test_submissions_and_users_have_scopes_of_their_own() -> None:
    assert schema.scope_of(keys.output(42, 7, 1)) == "out/0000000042/"
    assert schema.scope_of(keys.history_of_user("ann", 3)) == "histu/ann/"
    assert schema.scope_of(keys.history(3)) == "hist/"
    assert schema.scope_of(keys.named("out/0000000042/x")) == "name/"
    assert schema.scope_of("plain") == schema.NO_FAMILY
    assert schema.register_of("out/0000000042/") == "out/"
    assert schema.register_of("name/") == schema.FAMILIES


def test_every_family_of_a_submission_is_divided() -> None:
    assert {prefix.partition("/")[0] for prefix in keys.prefixes_of(1)} <= schema.DIVIDED


@given(KEYS)
def test_all_keys_of_a_scope_with_a_family_begin_with_it(key: str) -> None:
    scope = schema.scope_of(key)
    assert key.startswith(scope) or scope == schema.NO_FAMILY


@given(KEYS, st.integers(0, 8))
def test_a_scope_is_looked_at_for_every_prefix_of_its_keys(key: str, length: int) -> None:
    assert schema.may_hold(schema.scope_of(key), key[:length])


@given(KEYS, KEYS, st.one_of(st.just(""), KEYS))
def test_a_span_holds_exactly_the_keys_that_are_asked_for(key: str, prefix: str, after: str) -> None:
    start, end = schema.span(prefix, after)
    assert (start <= key < end) == (key.startswith(prefix) and key > after)


def test_mutable_families_are_told_from_those_whose_keys_name_their_content() -> None:
    assert schema.is_immutable(keys.function("0" * 64))
    assert not schema.is_immutable(keys.named("x"))
    assert not schema.is_immutable("meta/cluster_id")
    assert not schema.is_immutable("plain")


def test_timestamps_never_repeat_and_go_above_what_was_seen() -> None:
    clock = schema.WriteClock()
    stamps = [clock.next_us() for _ in range(1000)]
    assert sorted(set(stamps)) == stamps
    future_us = stamps[-1] + 60_000_000  # somebody whose clock is a minute ahead
    assert clock.next_us(future_us) > future_us
    assert clock.next_us() > future_us
