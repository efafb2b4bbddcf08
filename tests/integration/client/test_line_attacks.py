"""Direct lines under attack: floods and unreadable messages end only the line on which they came."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmgr.adapters.host.channel import Loop
from rmgr.adapters.rpc import line as rpc_line
from rmgr.adapters.rpc.line import LineServer, dial
from rmgr.model.cluster.identity import Role
from rmgr.model.wire.line import Hint
from tests.harness.bundles import session_bundles
from tests.harness.line_ends import Post, call, sound_loop
from tests.harness.waiting import eventually


@pytest.fixture
def loop() -> Iterator[Loop]:
    with sound_loop() as made:
        yield made


def test_who_floods_a_line_loses_it_and_others_keep_theirs(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_line, "MESSAGES_AT_ONCE", 50.0)
    monkeypatch.setattr(rpc_line, "MESSAGES_PER_S", 0.001)
    post, eves, anns = Post(), Post(), Post()
    on_message, credentials = post.callbacks()["on_message"], session_bundles().credentials(Role.STARTER, "starter")
    made = LineServer(("127.0.0.1", 0), loop=loop, credentials=credentials, is_revoked=lambda _: False, on_message=on_message)
    ann, eve = call(made, loop, Role.USER, "ann", anns), call(made, loop, Role.USER, "eve", eves)
    for _ in range(60):
        eve.send(Hint("n1", "block", b""))
    eventually(lambda: eves.ended == [eve], "the end of the line")
    assert len(post.came) == 50
    assert ann.send(Hint("n1", "block", b""))
    eventually(lambda: len(post.came) == 51, "what the other says")
    assert anns.ended == []
    made.close()


def test_what_no_decoder_reads_ends_its_line_and_no_other(loop: Loop) -> None:
    post, mine, others = Post(), Post(), Post()
    server = LineServer(
        ("127.0.0.1", 0), loop=loop, credentials=None, is_revoked=lambda _: False, on_message=post.callbacks()["on_message"]
    )
    other = dial(f"127.0.0.1:{server.port}", credentials=None, key_id="", loop=loop, **others.callbacks())
    no_text = b"\x94\x01\xa2\xff\xfe\xa1b\xc4\x00"
    nested = b"\x95\x03\x01\x01\x01" + b"\x91" * 20_000 + b"\x01"
    for number, body in enumerate((no_text, nested), 1):
        line = dial(f"127.0.0.1:{server.port}", credentials=None, key_id="", loop=loop, **mine.callbacks())
        line._sock.send(len(body).to_bytes(4, "little") + body)
        eventually(lambda number=number: len(mine.ended) == number, "the end of the line")  # type: ignore[misc]
    assert other.send(Hint("n1", "block", b""))
    eventually(lambda: post.came, "what the other says")
    assert others.ended == []
    server.close()
