"""Direct lines between clients and Starters: who may open one, that no message counts by itself, and who loses a line."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.host.channel import Loop
from rmgr.adapters.identity.credentials import context_of
from rmgr.adapters.rpc import line as rpc_line
from rmgr.adapters.rpc.line import HANDSHAKES_AT_ONCE, HANDSHAKES_PER_S, DirectLine, LineServer, dial
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.client.submission.engine import engine_here
from rmgr.client.submission.packing import TaskSpec
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.records import decode_fragment, decode_record, encode_block
from rmgr.errors import PermissionDenied
from rmgr.model.base import Capacity
from rmgr.model.block import BlockData, BlockKey, Fragment, Outcome
from rmgr.model.identity import Role
from rmgr.model.line import Ahead, Claimed, ClaimStage, Hint, Message, Told
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.states import State
from rmgr.model.submission import Command, Submission, Tail, Work
from rmgr.submitter.direct import DirectWork
from rmgr.submitter.handing import Lines
from tests.harness.bundles import session_bundles
from tests.harness.ended_sessions import LONG_S
from tests.harness.starter_rig import Rig
from tests.harness.waiting import eventually


class Post:
    """Records the messages that came on lines, and the lines that ended."""

    def __init__(self) -> None:
        self.came: list[Message] = []
        self.ended: list[DirectLine] = []

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {"on_message": lambda _line, message: self.came.append(message), "on_end": self.ended.append}


@contextmanager
def sound_loop() -> Iterator[Loop]:
    """Yields a loop for lines; fails if anything in it has raised."""
    crashes: list[BaseException] = []
    made = Loop("lines", on_crash=crashes.append)
    yield made
    made.close()
    assert not crashes


def call(server: LineServer, loop: Loop, role: Role, name: str, post: Post, *, key_id: str = "", cluster: str = "") -> DirectLine:
    expected = key_id or session_bundles().credentials(Role.STARTER).identity.key_id
    bundles = session_bundles(cluster) if cluster else session_bundles()
    return dial(f"127.0.0.1:{server.port}", credentials=bundles.credentials(role, name), key_id=expected, loop=loop, **post.callbacks())


@pytest.fixture
def loop() -> Iterator[Loop]:
    with sound_loop() as made:
        yield made


# -- who may have one ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(loop: Loop) -> Iterator[tuple[LineServer, Post, set[str]]]:
    """A Starter's end in a secured cluster; a set of key ids to revoke."""
    post, revoked = Post(), set[str]()
    starter = session_bundles().credentials(Role.STARTER)
    heard = post.callbacks()["on_message"]
    made = LineServer(("127.0.0.1", 0), loop=loop, credentials=starter, is_revoked=revoked.__contains__, on_message=heard)
    yield made, post, revoked
    made.close()


@pytest.mark.parametrize(("role", "name"), [(Role.USER, "ann"), (Role.SUBMITTER, "gate")])
def test_who_submits_is_heard_until_the_key_is_revoked(
    server: tuple[LineServer, Post, set[str]], loop: Loop, role: Role, name: str
) -> None:
    called, post, revoked = server
    mine = Post()
    line = call(called, loop, role, name, mine)
    assert line.send(Hint("n1", "block", b"data"))
    eventually(lambda: post.came == [Hint("n1", "block", b"data")], "the hint")
    revoked.add(session_bundles().credentials(role, name).identity.key_id)
    line.send(Hint("n1", "block", b"more"))
    eventually(lambda: mine.ended, "the end of the line")
    assert len(post.came) == 1
    again = Post()
    turned_away = call(called, loop, role, name, again)  # TLS 1.3: refused behind the client's part of the handshake
    eventually(lambda: again.ended, "the end of the second one")
    assert not turned_away.is_open


def test_a_line_on_which_nothing_is_said_ends_with_its_key(server: tuple[LineServer, Post, set[str]], loop: Loop) -> None:
    called, _, revoked = server
    anns, bobs = Post(), Post()
    call(called, loop, Role.USER, "ann", anns)
    other = call(called, loop, Role.USER, "bob", bobs)
    revoked.add(session_bundles().credentials(Role.USER, "ann").identity.key_id)
    eventually(lambda: anns.ended, "the end of hers")
    assert other.is_open


@pytest.mark.parametrize(("role", "cluster"), [(Role.STARTER, ""), (Role.WATCHDOG, ""), (Role.USER, "elsewhere")])
def test_others_are_turned_away(server: tuple[LineServer, Post, set[str]], loop: Loop, role: Role, cluster: str) -> None:
    called, post, _ = server
    mine = Post()
    try:
        line = call(called, loop, role, "somebody", mine, cluster=cluster)
    except OSError:
        return  # the client itself does not believe a server of another authority
    line.send(Hint("n1", "block", b"data"))
    eventually(lambda: mine.ended, "the end of the line")
    assert not post.came


def test_who_makes_handshakes_as_fast_as_he_can_gets_a_few_and_others_go_on(server: tuple[LineServer, Post, set[str]], loop: Loop) -> None:
    called, _, _ = server
    begun_s = time.monotonic()
    answered = refused = 0
    hello = _hello()
    while not refused or time.monotonic() - begun_s < 1.0:
        assert time.monotonic() - begun_s < 60
        with socket.create_connection(("127.0.0.1", called.port), 10) as sock:
            sock.settimeout(10)
            sock.sendall(hello)
            with contextlib.suppress(OSError):
                if sock.recv(10):
                    answered += 1
                    continue
            refused += 1
    most = HANDSHAKES_AT_ONCE + HANDSHAKES_PER_S * (time.monotonic() - begun_s) + 1
    assert answered <= most
    bare = socket.create_connection(("127.0.0.1", called.port), 10, source_address=("127.0.0.2", 0))
    ann = context_of(session_bundles().credentials(Role.USER, "ann"), ssl.PROTOCOL_TLS_CLIENT)
    with ann.wrap_socket(bare, server_hostname="starter.rmgr") as line:  # from elsewhere
        line.sendall(b"")
        line.settimeout(0.2)
        with pytest.raises(TimeoutError):  # it stays
            line.recv(1)


def _hello() -> bytes:
    """What a client says first, and again."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = context_of(session_bundles().credentials(Role.USER, "ann"), ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(into, out, server_hostname="starter.rmgr").do_handshake()
    return out.read()


def test_a_client_talks_to_the_starter_that_registered_the_node_and_to_nobody_else(
    server: tuple[LineServer, Post, set[str]], loop: Loop
) -> None:
    with pytest.raises(PermissionDenied, match="not by the Starter that registered it"):
        call(server[0], loop, Role.USER, "ann", Post(), key_id="0" * 32)


def test_who_sends_nonsense_or_does_not_read_loses_the_line(loop: Loop) -> None:
    post, mine = Post(), Post()
    server = LineServer(
        ("127.0.0.1", 0), loop=loop, credentials=None, is_revoked=lambda _: False, on_message=post.callbacks()["on_message"]
    )
    line = dial(f"127.0.0.1:{server.port}", credentials=None, key_id="", loop=loop, **mine.callbacks())
    line._sock.send(b"\xff\xff\xff\xffnonsense")
    eventually(lambda: mine.ended == [line], "the end of the line")
    assert not line.send(Hint("n1", "block", b""))
    deaf = dial(f"127.0.0.1:{server.port}", credentials=None, key_id="", loop=loop, **Post().callbacks())
    blocked = threading.Event()
    loop.call(lambda: blocked.wait(60))  # nobody reads
    try:
        sent = 0
        while deaf.send(Hint("n1", "block", bytes(60_000))):  # never waits
            sent += 1
            assert sent < 10_000
    finally:
        blocked.set()
    eventually(lambda: not deaf.is_open, "the end of the other")
    server.close()


# -- what a line may not do to its process ---------------------------------------------------------------------------------------


@pytest.fixture
def opened(loop: Loop) -> Iterator[tuple[LineServer, Post]]:
    """A Starter's end in an open cluster."""
    post = Post()
    made = LineServer(("127.0.0.1", 0), loop=loop, credentials=None, is_revoked=lambda _: False, on_message=post.callbacks()["on_message"])
    yield made, post
    made.close()


def plain(server: LineServer, loop: Loop) -> DirectLine:
    return dial(f"127.0.0.1:{server.port}", credentials=None, key_id="", loop=loop, **Post().callbacks())


def test_a_line_dialled_while_its_connection_is_closed_ends_and_writes_into_nobodys_file(
    opened: tuple[LineServer, Post], loop: Loop, tmp_path: Path
) -> None:
    ended = Loop("ended", on_crash=lambda _: None)
    ended.close()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((tmp_path / str(at)).open("wb", buffering=0)) for at in range(8)]  # they get the loop's descriptors
        line = plain(opened[0], ended)
        assert not line.is_open
        assert not line.send(Hint("n1", "block", b""))
        line.close()
        assert not ended.call(lambda: None)
        assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 8
    eventually(lambda: not opened[0]._lines, "the Starter knows that it has ended")


class Full:
    """The listening socket of a process that has no descriptor left."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.is_full = True
        self.tries = 0

    def accept(self) -> Any:
        self.tries += 1
        if self.is_full:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._sock.accept()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


def test_a_starter_without_a_free_descriptor_rests_and_lets_in_who_called_meanwhile(
    opened: tuple[LineServer, Post], loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, post = opened
    monkeypatch.setattr("rmgr.adapters.rpc.line._NO_ROOM_S", 0.05)
    full: Any = Full(server._sock)
    server._sock = full
    begun = time.monotonic()
    line = plain(server, loop)
    assert line.send(Hint("n1", "block", b"data"))
    eventually(lambda: full.tries >= 3, "some tries")
    assert full.tries <= 2 + (time.monotonic() - begun) / 0.05
    full.is_full = False
    eventually(lambda: post.came == [Hint("n1", "block", b"data")], "the hint")
    (theirs,) = server._lines
    assert all(end._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for end in (line, theirs))  # dead machines are found out
    line.close()


def test_who_has_no_descriptor_or_thread_left_goes_on_without_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("rmgr.adapters.host.channel.Loop", none_left)
    nobody: Any = None  # nothing may be asked of it
    lines = Lines(nobody, nobody, None)
    record = NodeRecord(
        node="n1", incarnation=1, state=NodeState.UP, guid="g", capacity=Capacity(cores=1, memory_bytes=1), line="127.0.0.1:1"
    )
    lines.want(record)
    assert lines.of(record) is None
    lines.close()


# -- what is said ------------------------------------------------------------------------------------------------------------------


def line_to(rig: Rig, loop: Loop, post: Post) -> DirectLine:
    record = eventually(rig.record, "the node's record")
    return dial(record.line, credentials=None, key_id="", loop=loop, **post.callbacks())


def wait_for_mark(rig: Rig) -> None:
    eventually(lambda: rig.zk.stat(paths.idle("n1")).result(60) is not None, "the mark")


def prepared(rig: Rig, number: int) -> tuple[BlockKey, BlockData, Callable[[], Any]]:
    """The next task of a submission: its key, what stands in its znode, and its HAND."""
    found = rig.zk.get(paths.tail(number)).result(60)
    tail = decode_record(found.data, Tail)
    key = BlockKey(priority=0, seq=ops.HANDED_SEQ, submission=number, first=tail.next, count=1, attempt=1, cores=1, memory_mib=0)
    data = BlockData(base=key.first)

    def commit() -> Any:
        fence = rig.zk.stat(paths.node("n1")).result(60).version
        grown = Tail(next=tail.next + 1, complete=True, enqueued=str(found.version))
        multi = ops.hand(number, tail=grown, tail_version=found.version, key=key, data=data, node="n1", node_version=fence)
        return rig.zk.commit(multi).result(60)

    return key, data, commit


def test_what_is_announced_runs_and_its_outcome_is_told_with_its_number(rig: Rig, loop: Loop) -> None:
    rig.spawn()
    post = Post()
    line = line_to(rig, loop, post)
    number = rig.submit(Command(argv=("true",)))
    rig.outcomes(number, 1)
    for at in range(1, 4):
        wait_for_mark(rig)
        key, data, commit = prepared(rig, number)
        hint = Hint("n1", paths.block_name(key), encode_block(data))
        assert line.send(hint)  # too early: it is found as without a line, or on the second
        assert isinstance(commit(), Committed)
        line.send(hint)
        rig.outcomes(number, at + 1)
    eventually(lambda: len([one for one in post.came if isinstance(one, Told)]) >= 1, "news")
    ahead = {one.serial: one for one in post.came if isinstance(one, Ahead)}
    for told in [one for one in post.came if isinstance(one, Told)]:
        fragment = rig.zk.get(paths.fragment(number, told.number)).result(60)
        assert fragment.data == ahead[told.serial].fragment
        assert told.submission == number


def test_what_was_announced_and_not_handed_over_never_runs(rig: Rig, loop: Loop, tmp_path: Path) -> None:
    rig.spawn()
    line = line_to(rig, loop, Post())
    number = rig.submit(Command(argv=("sh", "-c", f'echo "$RMGR_ARRAY_INDEX" >> {tmp_path / "ran"}')))
    rig.outcomes(number, 1)
    wait_for_mark(rig)
    key, data, commit = prepared(rig, number)
    for _ in range(20):
        line.send(Hint("n1", paths.block_name(key), encode_block(data)))
    other = replace(key, first=7)
    line.send(Hint("n1", paths.block_name(other), encode_block(BlockData(base=7))))
    again = rig.submit(Command(argv=("true",)))
    rig.outcomes(again, 1)  # it has long looked by now
    assert (tmp_path / "ran").read_text() == "0\n"
    wait_for_mark(rig)
    assert isinstance(commit(), Committed)
    rig.outcomes(number, 2)
    assert (tmp_path / "ran").read_text() == "0\n1\n"


def test_what_stands_in_the_tree_is_run_whatever_was_announced(rig: Rig, loop: Loop) -> None:
    rig.spawn()
    post = Post()
    line = line_to(rig, loop, post)
    number = rig.submit(Command(argv=("true",)))
    rig.outcomes(number, 1)
    wait_for_mark(rig)
    key, data, commit = prepared(rig, number)
    line.send(Hint("n1", paths.block_name(key), encode_block(replace_function(data))))
    assert isinstance(commit(), Committed)
    line.send(Hint("n1", paths.block_name(key), encode_block(replace_function(data))))
    assert rig.outcomes(number, 2)[1].state is State.COMPLETED
    eventually(lambda: not rig.running(), "nothing left over")
    assert not post.came  # who announced something else is told nothing


def replace_function(data: BlockData) -> BlockData:
    import msgspec

    return msgspec.structs.replace(data, function="0" * 64, retries=3)


@pytest.mark.parametrize(
    "hint",
    [
        Hint("nobody", "x", b""),
        Hint("n1", "x", b""),
        Told(1, 2, 3),
        Claimed("nobody", "x", ClaimStage.MADE),
        Claimed("n1", "x", ClaimStage.MADE),
    ],
)
def test_who_says_what_cannot_be_loses_the_line_and_the_node_works_on(rig: Rig, loop: Loop, hint: Any) -> None:
    rig.spawn()
    post = Post()
    line = line_to(rig, loop, post)
    line.send(hint)
    eventually(lambda: post.ended, "the end of the line")
    rig.outcomes(rig.submit(Command(argv=("true",))), 1)


# -- a client's end to end -----------------------------------------------------------------------------------------------------------


class Results:
    """A listener: outcomes in the order in which they came."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.dead: list[Exception] = []

    def on_outcomes(self, _fragment: Fragment, outcomes: Any) -> None:
        self.outcomes += outcomes

    def on_progress(self) -> None: ...

    def on_dead(self, error: Exception) -> None:
        self.dead.append(error)


class Client:
    """One command at a time through a real engine with lines."""

    def __init__(self, rig: Rig) -> None:
        zk = ZkCoordinator.connect(rig.hosts, rig.chroot, session_timeout_s=LONG_S)
        from rmgr.adapters.stores import open_store

        self.engine = engine_here(zk, open_store(rig.store_url), lines=lambda thread, hear: Lines(thread, hear, None))
        self.results = Results()
        draft = Submission(id=0, name="one", user="tester", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
        self.handle = self.engine.open(draft, self.results, timeout_s=30)

    def one(self) -> None:
        count = len(self.results.outcomes)
        self.handle.add(TaskSpec(), [b""])
        eventually(lambda: len(self.results.outcomes) > count or self.results.dead, "an outcome")
        assert not self.results.dead
        assert self.results.outcomes[-1].index == count
        assert self.results.outcomes[-1].state is State.COMPLETED

    @property
    def lines(self) -> list[DirectLine]:
        assert isinstance(self.engine.work, DirectWork)
        assert self.engine.work.submitter.lines is not None
        return list(self.engine.work.submitter.lines._lines.values())


@pytest.fixture
def client(rig: Rig) -> Iterator[Client]:
    rig.spawn()
    eventually(rig.record, "the node's record")
    made = Client(rig)
    yield made
    made.engine.close()


def test_one_task_after_another_gets_a_line_and_survives_its_end(client: Client, rig: Rig) -> None:
    def until_a_line_is_there() -> bool:
        client.one()
        return bool(client.lines)

    eventually(until_a_line_is_there, "a line")
    for _ in range(10):
        client.one()
    (line,) = client.lines
    line._sock.shutdown(2)
    for _ in range(5):
        client.one()
    eventually(lambda: line not in client.lines, "the end of the line is known")
    count = len(client.results.outcomes)
    assert [one.index for one in client.results.outcomes] == list(range(count))
    number = client.handle.number
    committed = [decode_fragment(rig.zk.get(paths.fragment(number, at)).result(60).data).outcomes for at in range(count)]
    assert [one.index for outcomes in committed for one in outcomes] == list(range(count))


@pytest.mark.parametrize("where", ["starter.before_complete", "starter.after_complete"])
def test_a_starter_killed_between_its_news_loses_nothing(rig: Rig, where: str) -> None:
    """Announced and not committed, or committed and not told."""
    process = rig.spawn(env={"RMGR_FAILPOINT": f"{where}:12=kill"})
    eventually(rig.record, "the node's record")
    client = Client(rig)
    try:
        while process.poll() is None:
            client.handle.add(TaskSpec(), [b""])
            goal = client.handle.next_index
            eventually(lambda goal=goal: len(client.results.outcomes) >= goal or process.poll() is not None, "the outcome, or the end")
        rig.spawn()  # it fails what the dead one left; the engine submits that again
        goal = client.handle.next_index
        eventually(lambda: len(client.results.outcomes) >= goal, "the rest")
        assert [one.index for one in client.results.outcomes] == list(range(goal))
    finally:
        client.engine.close()


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
