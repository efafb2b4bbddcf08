"""`init-store` on Cassandra, the places of rows in it, and the URL that names it."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.adapters.cassandra import schema
from rmgr.adapters.cassandra.schema import MIGRATIONS, NEWEST, STATEMENTS, FoundSchema, advice, plan, version_problem
from rmgr.adapters.cassandra.url import PASSWORD_FILE_VARIABLE, parse_url
from rmgr.adapters.store_rules import CHUNK_BYTES, MAX_VALUE_BYTES
from rmgr.adapters.stores import check_url
from rmgr.coord.protocol import keys
from rmgr.errors import ConfigError, UsageError

FRESH = FoundSchema(nodes_up=3, datacenters=("dc1",))
TABLES = {table.name: table for migration in MIGRATIONS for table in migration.tables}


def steps(found: FoundSchema, *, factor: int = 3, change: bool = False, force: bool = False) -> list[str]:
    planned = plan(found, keyspace="ks", local_dc="dc1", replication_factor=factor, change_replication=change, force=force)
    return [step.cql or f"version {step.version}" for step in planned]


def test_a_fresh_cluster_gets_keyspace_tables_and_versions_in_order() -> None:
    todo = steps(FRESH)
    assert todo[0].startswith("CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
    assert [line for line in todo if line.startswith("version")] == [f"version {n}" for n in range(1, NEWEST + 1)]
    assert todo[-1] == f"version {NEWEST}"
    assert all("IF NOT EXISTS" in line for line in todo if line.startswith("CREATE"))


def test_the_newest_schema_needs_nothing() -> None:
    assert steps(FoundSchema(nodes_up=3, datacenters=("dc1",), replication={"dc1": 3}, version=NEWEST)) == []


def test_an_older_schema_gets_only_what_is_missing() -> None:
    todo = steps(FoundSchema(nodes_up=3, datacenters=("dc1",), replication={"dc1": 3}, version=1))
    assert not any("ks.value " in line for line in todo)
    assert any("ks.claim " in line for line in todo)


def test_a_table_has_the_same_id_wherever_and_whenever_it_is_made() -> None:
    ids = [re.search(r"WITH ID = (\S+)", table.cql("ks")) for table in TABLES.values()]
    assert len({found[1] for found in ids if found}) == len(TABLES)
    assert TABLES["value"].cql("ks") == TABLES["value"].cql("ks")
    assert TABLES["value"].cql("other") != TABLES["value"].cql("ks")


def test_more_copies_than_nodes_are_refused_unless_forced() -> None:
    with pytest.raises(ConfigError, match="3 nodes are up in dc1, replication factor 5") as caught:
        steps(FRESH, factor=5)
    assert "--force" in caught.value.hint
    assert "'dc1': 5" in steps(FRESH, factor=5, force=True)[0]


def test_the_replication_of_a_keyspace_changes_only_when_asked_and_then_needs_a_repair() -> None:
    found = FoundSchema(nodes_up=3, datacenters=("dc1", "dc2"), replication={"dc1": 1, "dc2": 2}, version=NEWEST)
    assert steps(found) == []
    (altered,) = steps(found, change=True)
    assert altered.startswith("ALTER KEYSPACE ks")
    assert "'dc1': 3, 'dc2': 2" in altered
    (told, *_) = advice(found, keyspace="ks", local_dc="dc1", wanted=3, effective=1)
    assert "--replication-factor 3" in told
    (told, *_) = advice(found, keyspace="ks", local_dc="dc1", wanted=3, effective=3)
    assert "nodetool repair -full ks" in told


def test_logins_that_hang_on_one_node_are_worth_a_word() -> None:
    found = FoundSchema(nodes_up=3, datacenters=("dc1",), replication={"dc1": 3}, version=NEWEST, auth_replication=1)
    assert any("system_auth" in line for line in advice(found, keyspace="ks", local_dc="dc1", wanted=3, effective=3))


def test_a_data_centre_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="no data centre 'dc1': it has east, west"):
        steps(FoundSchema(nodes_up=3, datacenters=("east", "west")))


def test_daemons_refuse_another_version_and_say_what_to_type() -> None:
    assert version_problem("ks", NEWEST) is None
    for version, says in ((0, "no tables"), (NEWEST - 1, f"needs {NEWEST}")):
        problem = version_problem("ks", version)
        assert problem is not None
        assert says in problem.message
        assert "rmgr admin init-store" in problem.hint
    problem = version_problem("ks", NEWEST + 1)
    assert problem is not None
    assert "upgrade rmgr" in problem.hint
    with pytest.raises(ConfigError, match="knows"):
        steps(FoundSchema(nodes_up=3, datacenters=("dc1",), replication={"dc1": 3}, version=NEWEST + 1))


# -- statements ----------------------------------------------------------------------------------------------------------------


def test_nothing_is_deleted_compared_or_scanned() -> None:
    for statement in STATEMENTS.values():
        assert not re.search(r"\b(DELETE|IF|TRUNCATE|ALLOW|BATCH|UPDATE|IN)\b", statement.cql)


def test_every_read_names_its_whole_partition_and_every_write_its_time() -> None:
    for statement in STATEMENTS.values():
        table = re.search(r"\{ks\}\.(\w+)", statement.cql)
        assert table is not None
        key = re.search(r"PRIMARY KEY \((?:\(([^)]*)\)|(\w+))|(\w+) \w+ PRIMARY KEY", TABLES[table[1]].columns)
        assert key is not None
        partition = (key[1] or key[2] or key[3]).split(", ")
        if statement.is_write:
            assert statement.cql.endswith("USING TIMESTAMP ? AND TTL ?")
            assert all(column in statement.cql for column in partition)
        else:
            assert all(f"{column} = ?" in statement.cql for column in partition)


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


def test_everything_that_a_url_may_say() -> None:
    target = parse_url(
        "cassandra://h1,h2,10.0.0.3:9142/my_keys?replication_factor=5&local_dc=Berlin-1&consistency=quorum&user=me&password_file=/p"
        "&ca=/ca.pem&cert=/c.pem&key=/k.pem&check_hostname=0&request_timeout=3.5&connect_timeout=2s"
    )
    assert (target.hosts, target.port, target.keyspace) == (("h1", "h2", "10.0.0.3"), 9142, "my_keys")
    assert (target.replication_factor, target.local_dc, target.consistency) == (5, "Berlin-1", "QUORUM")
    assert (target.user, target.password_file) == ("me", "/p")
    assert (target.tls, target.ca, target.cert, target.key, target.check_hostname) == (True, "/ca.pem", "/c.pem", "/k.pem", False)
    assert (target.request_timeout_s, target.connect_timeout_s) == (3.5, 2.0)


def test_what_a_url_need_not_say() -> None:
    target = parse_url("cassandra://host/rmgr", environ={})
    assert (target.port, target.replication_factor, target.local_dc, target.consistency) == (9042, 3, "datacenter1", "LOCAL_QUORUM")
    assert (target.tls, target.check_hostname, target.user) == (False, True, "")
    assert target.where == "host (port 9042)"
    assert parse_url("cassandra://[::1]:9043/rmgr").hosts == ("::1",)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("cassandra:host/rmgr", "cassandra://"),
        ("cassandra:///rmgr", "no host"),
        ("cassandra://h1,,h2/rmgr", "no host"),
        ("cassandra://h 1/rmgr", "'h 1'"),
        ("cassandra://host", "no keyspace"),
        ("cassandra://host/Big", "'Big'"),
        ("cassandra://host/a/b", "'a/b'"),
        ("cassandra://host/rmgr;DROP", "keyspace"),
        ("cassandra://host:port/rmgr", "'port'"),
        ("cassandra://host:0/rmgr", "'0'"),
        ("cassandra://h1:1,h2:2/rmgr", "one port"),
        ("cassandra://host/rmgr?colour=red", "no option 'colour'"),
        ("cassandra://host/rmgr?user", "name=value"),
        ("cassandra://host/rmgr?user=", "has no value"),
        ("cassandra://host/rmgr?local_dc=a&local_dc=b", "twice"),
        ("cassandra://host/rmgr?replication_factor=0", "replication_factor=0"),
        ("cassandra://host/rmgr?consistency=MOST", "consistency=MOST"),
        ("cassandra://host/rmgr?request_timeout=soon", "request_timeout=soon"),
        ("cassandra://host/rmgr?check_hostname=maybe", "check_hostname=maybe"),
        ("cassandra://host/rmgr?user=me", "no password file for user 'me'"),
        ("cassandra://host/rmgr?password_file=/p", "no user"),
        ("cassandra://host/rmgr?cert=/c", "belong together"),
        ("cassandra://host/rmgr?ca=/c&tls=0", "tls=0"),
    ],
)
def test_what_is_wrong_is_named(url: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url, environ={})
    assert says in caught.value.message
    with pytest.raises(UsageError):
        check_url(url)


def test_an_unknown_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        parse_url("cassandra://host/rmgr?colour=red")
    for name in ("replication_factor", "local_dc", "password_file", "request_timeout"):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    "url", ["cassandra://me:geheim@host/rmgr", "cassandra://host/rmgr?user=me&password=geheim", "cassandra://host/rmgr?pwd=geheim"]
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "geheim" not in f"{caught.value.message} {caught.value.hint}"
    assert "password_file" in caught.value.hint


def test_a_password_comes_from_a_file_of_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("geheim\n")
    file.chmod(0o600)
    target = parse_url("cassandra://host/rmgr?user=me", environ={PASSWORD_FILE_VARIABLE: str(file)})
    assert target.password() == "geheim"
    assert "geheim" not in repr(target)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0640") as caught:
        target.password()
    assert caught.value.hint == f"chmod 600 {file}"
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        target.password()
