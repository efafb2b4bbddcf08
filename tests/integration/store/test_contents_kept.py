"""Rows named by their content stay while a user needs them, and are removed afterwards: on every store and through a gateway."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from rmgr.adapters.gateway.store import GatewayStore
from rmgr.adapters.store_rules import CHUNK_BYTES
from rmgr.adapters.stores import open_store
from rmgr.client.content import put_content, renew_content
from rmgr.coord import contents
from rmgr.coord.contents import KEPT_S, RENEW_S
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.leader.submissions import actions
from rmgr.errors import PermissionDenied
from tests.harness.gateways import GatewayServer, OpenRows
from tests.harness.store_adapters import ADAPTERS, Adapter, pattern
from tests.places import ROOT

SIZES = [100, 3 * CHUNK_BYTES + 7]

#: Puts an upload as `rmgr submit --upload` does, and says so; the SUBMIT never comes.
CLIENT = """
import sys, time
from hashlib import sha256
from rmgr.adapters.stores import open_store
from rmgr.client.content import put_content
from rmgr.coord.protocol import keys
data = b"u" * int(sys.argv[2])
put_content(open_store(sys.argv[1]), keys.upload(sha256(data).hexdigest()), data, timeout_s=60.0)
print("put", flush=True)
time.sleep(600)
"""


def of(data: bytes) -> str:
    """Where it lies."""
    return keys.upload(sha256(data).hexdigest())


def look(store: Store, now_s: float) -> int:
    """What the leader does with files while there is no submission; how many are removed."""
    marks = actions._marks(store, prefix="file/", after="", now_s=now_s)
    old = {key: note for key, note in marks.items() if contents.is_old(note, now_s)}
    return actions.remove_contents(store, marks=old)


@pytest.mark.parametrize("adapter", sorted(name for name, one in ADAPTERS.items() if one.is_durable), indirect=True)
@pytest.mark.parametrize("size", SIZES)
def test_an_upload_whose_client_was_killed_before_it_submitted_goes(adapter: Adapter, tmp_path: Path, size: int) -> None:
    url = adapter.url(tmp_path)
    with open_store(url, **adapter.options) as store:
        client = subprocess.Popen([sys.executable, "-c", CLIENT, url, str(size)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            assert client.stdout is not None
            assert client.stdout.readline().strip() == "put"
            client.send_signal(signal.SIGKILL)
        finally:
            client.kill()
            client.wait(60)
        key = of(b"u" * size)
        now_s = time.time()
        assert look(store, now_s + KEPT_S - 60) == 0
        assert store.head(key) is not None
        assert look(store, now_s + KEPT_S + 60) == 1
        assert store.head(key) is None
        assert store.keys("file/") == []


@pytest.mark.parametrize("size", SIZES)
def test_who_needs_a_row_renews_it_once_in_a_while(store: Store, size: int) -> None:
    data = pattern(size)
    key = of(data)
    old, recent = contents.mark(time.time() - RENEW_S - 60), contents.mark(time.time() - RENEW_S + 600)
    for note, is_renewed in ((b"", True), (old, True), (recent, False)):
        for again in (lambda: put_content(store, key, data, timeout_s=60.0), lambda: renew_content(store, key, timeout_s=60.0)):
            store.put(key, data, note=note)
            again()
            found = store.get_noted(key)
            assert found is not None
            assert found[0] == data
            assert (found[1].note != note) == is_renewed
            assert look(store, time.time()) == 0
    assert not renew_content(store, of(b"never put"), timeout_s=60.0)


@pytest.mark.parametrize("size", SIZES)
def test_a_gateway_says_when_a_row_was_put_and_lets_none_expire(size: int) -> None:
    rows = OpenRows()
    server = GatewayServer(rows)
    data = pattern(size)
    key = of(data)
    try:
        with GatewayStore(server.endpoint) as store:
            store.put(key, data, note=contents.mark(1.0))
            found = rows.store.about(key)
            assert found is not None
            assert contents.is_fresh(found.note, time.time())
            with pytest.raises(PermissionDenied, match="does not expire"):
                store.put(key, data, ttl_s=1.0)
            with pytest.raises(PermissionDenied, match="does not expire"):
                store.put_many([(key, data)], ttl_s=1.0)
            store.put_many([(key, data), ("name/a", b"a")], notes=[contents.mark(1.0), b"mine"])
            found, other = rows.store.about(key), rows.store.about("name/a")
            assert found is not None
            assert other is not None
            assert contents.is_fresh(found.note, time.time())
            assert other.note == b"mine"
    finally:
        server.stop()
