"""What init-store would do, and what the store sends: decided and written down without a Cassandra."""

from __future__ import annotations

import re

import pytest

from rmgr.adapters.cassandra.schema import MIGRATIONS, NEWEST, STATEMENTS, FoundSchema, advice, plan, version_problem
from rmgr.errors import ConfigError

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
