"""Real Cassandra nodes start as `rmgr dev` and the tests start them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.dev.cassandra import CassandraNode, missing_parts
from rmgr.errors import Unavailable
from tests.harness.cassandra_nodes import SharedNode


def test_the_shared_node_serves_and_is_one_process_for_the_run(cassandra: SharedNode) -> None:
    assert cassandra.is_alive()
    assert CassandraNode("/nonexistent", address=cassandra.host, port=cassandra.port).is_serving()


def test_a_node_that_cannot_start_says_the_last_lines_of_its_log(cassandra_parts: None, tmp_path: Path) -> None:
    node = CassandraNode(tmp_path, settings={"no_such_setting": 1}, die_with_parent=True)
    with pytest.raises(Unavailable, match="no_such_setting") as caught:
        node.start(wait_s=30)
    assert str(node.log_file) in (caught.value.hint or "")
    assert not node.running


def test_missing_jars_are_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RMGR_CASSANDRA_LIB", str(tmp_path))
    found = missing_parts() or ""
    assert "RMGR_CASSANDRA_LIB" in found
    assert "unset it" in found
    monkeypatch.delenv("RMGR_CASSANDRA_LIB")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "-m rmgr.dev.jars cassandra-5.0" in (missing_parts() or "")
