"""No daemon dies of validly signed nonsense: living daemons get messages of their schemas, spoilt somewhere.

One side a test: what a worker says to its Starter, what stands in a spawner's place, who has a direct line, who calls a gateway, who writes
rows. After each batch every node serves another user (tests/harness/besieged.py says what else must hold). A batch a test; `tests/fuzz.sh`
goes on for as long as RMGR_FUZZ_SIDE_S says (s, each). A failure names its seed: RMGR_FUZZ_SEED=N sends the same batch first.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import cloudpickle
import grpc
import msgspec
import psutil
import pytest
from hypothesis import strategies as st

from rmgr.adapters.access.auth import open_channel
from rmgr.adapters.host.channel import Loop
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.line import dial
from rmgr.client.connection import connect
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import encode_keyed
from rmgr.daemons.starter.checkpoint.files import Manifest
from rmgr.errors import RmgrError
from rmgr.model import frames, line
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, Fragment, KeyedPayload, Outcome
from rmgr.model.identity import Role
from rmgr.model.submission import Command, PythonEnvironment, Submission, Work
from rmgr.runner.host import home
from rmgr.submitter import messages as m
from rmgr.submitter.questions import RIGHTS
from rmgr.v1 import gateway_pb2, join_pb2, leader_pb2, limits_pb2, node_pb2, terminal_pb2, tunnel_pb2, work_pb2, work_pb2_grpc
from tests.harness import hostile_spawner
from tests.harness.besieged import DEADLINE_S, LONGEST_S, NODES, TIMES, Besieged
from tests.harness.decoders import Form
from tests.harness.fair_time import FairTimer
from tests.harness.flooded import run_command
from tests.harness.fuzzing import HOSTILE, calls, drawn, framed, marked, spoils, written

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.xdist_group("attacks_behind"),
    # Hypothesis sees that `random` has moved while it drew: links of the clients here pause by chance, on threads of their own.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]
_SECONDS = float(os.environ.get("RMGR_FUZZ_SIDE_S", "0"))
_SEED = os.environ.get("RMGR_FUZZ_SEED", "")
_MIB = 1 << 20
#: What a daemon may grow by at its highest in a batch, and what it may have kept at the end (bytes). No message has more than 3 MiB.
_MAY_GROW, _MAY_KEEP = 200 * _MIB, 150 * _MIB
#: How long a batch is waited for (s): what then has not ended, is ended with the rest of mallory's.
_BATCH_S = 8.0
#: Words that mean something to a daemon.
_WORDS = ("n1", "stdout", "m/a", "../../etc/passwd", "/proc/self/environ", "/etc/shadow", "a\0b", "x" * 5000, "9" * 400, "٣", "1_1")
#: In a message, numbers that who sends it replaces by those of the moment.
_SEQ, _PID = marked(1), marked(2)


def _ended(made: Besieged, numbers: Sequence[int], tasks: int) -> None:
    """Waits for what ends by itself."""
    end_s = time.monotonic() + _BATCH_S
    for number in numbers:
        with contextlib.suppress(AssertionError):
            made.outcomes(number, tasks, deadline_s=max(0.1, end_s - time.monotonic()))


# -- a worker ------------------------------------------------------------------------------------------------------------------


def say(file: str, mark: bytes, way: int) -> None:
    """Sends its Starter the messages of a file, or leaves the last on its board. way: 0 then it ends, 1 goes on, 2 the board."""
    import gc
    import os as system
    import pickle
    from pathlib import Path as Place

    from rmgr.runner.python.worker import WorkerProcess

    messages: list[bytes] = pickle.loads(Place(file).read_bytes())
    gc.unfreeze()  # else what was there when the worker was forked is in no list
    worker = next(one for one in gc.get_objects() if isinstance(one, WorkerProcess))
    own = b"\xcf" + worker._seq.to_bytes(8, "big")
    worker._socket.setblocking(True)
    for message in messages[: len(messages) - (way == 2)]:
        worker._socket.sendall(message.replace(mark, own))
    if way == 2:
        body = messages[-1][4:].replace(mark, own)[: 200 * 1024]
        worker._board.view[4096 + 16 : 4096 + 16 + len(body)] = body
        worker._board.words[8] = len(body) << 32 | 1
    if way != 1:
        system._exit(3)
    worker._socket.setblocking(False)


def of_workers(made: Besieged, seed: int) -> int:
    """In turns: frames, and what lies on the board."""
    said = st.tuples(
        st.lists(framed(frames.FromWorker, ints=(_SEQ, 1, 2**53), texts=_WORDS), min_size=1, max_size=6), st.sampled_from((0, 0, 1))
    )
    left = st.tuples(st.lists(framed(frames.TaskEnd, ints=(_SEQ, 1), texts=_WORDS), min_size=1, max_size=1), st.just(2))
    batch = drawn(said | said | said | left, seed=seed, count=60)
    function = made.function(say)
    mark = b"\xcf" + _SEQ.to_bytes(8, "big")
    place = made.place / f"workers-{seed}"
    place.mkdir(mode=0o755)
    payloads = []
    for at, (messages, way) in enumerate(batch):
        (place / f"said{at}").write_bytes(pickle.dumps(messages))
        payloads.append(cloudpickle.dumps(((str(place / f"said{at}"), mark, way), {})))
    _ended(made, [made.attack(function, payloads)], len(batch))
    shutil.rmtree(place)
    return sum(len(messages) for messages, _ in batch)


# -- in the place of a spawner ---------------------------------------------------------------------------------------------------


def of_spawners(made: Besieged, seed: int) -> int:
    """Each is the interpreter of a submission of its own; its first message is mostly what an honest one says."""
    first = st.sampled_from((True, True, True, False))
    messages = st.lists(
        st.tuples(framed(frames.FromSpawner, ints=(_PID, 1, 2**53), texts=_WORDS), st.sampled_from((0, 0, 1, 2))), min_size=1, max_size=6
    )
    batch = drawn(st.tuples(first, messages), seed=seed, count=6)
    place = made.place / f"spawners-{seed}"
    place.mkdir(mode=0o755)
    (place / "hostile.py").write_text(Path(hostile_spawner.__file__).read_text())
    function = made.function(os.getpid)
    numbers = []
    for at, (is_up, said) in enumerate(batch):
        words = [hostile_spawner.Said(is_up=is_up, data=data.replace(*_as_pid()), fds=fds) for data, fds in said]
        (place / f"said{at}").write_bytes(msgspec.msgpack.encode(words))
        program = place / f"python{at}"
        program.write_text(f'#!/bin/sh\nLC_RMGR_ATTACK=said LC_RMGR_SAID={place}/said{at} exec {home.PYTHON} {place}/hostile.py "$@"\n')
        program.chmod(0o755)
        numbers.append(made.attack(function, python=PythonEnvironment(python=str(program))))
    _ended(made, numbers, 1)
    made.rmgr("cancel", "all")
    shutil.rmtree(place)
    return sum(len(said) for _, said in batch)


def _as_pid() -> tuple[bytes, bytes]:
    return b"\xcf" + _PID.to_bytes(8, "big"), hostile_spawner.OWN_PID


# -- a direct line ---------------------------------------------------------------------------------------------------------------


def on_lines(made: Besieged, seed: int) -> int:
    """A line for every few messages, to each node in turn."""
    held = made.attack(Command(argv=("true",)), [b""] * 3)
    name = f"0000000000.9999999999.{held:010d}.0000000000.1.1.1.0"
    each = st.lists(framed(line.Message, ints=(held,), texts=(*_WORDS, name), most=line.MAX_BYTES), min_size=1, max_size=8)
    batch = drawn(each, seed=seed, count=90)
    loop = Loop("mallory", on_crash=_deaf)
    records = list(made.cluster.snapshot(submissions=False).nodes.values())
    sent = 0
    try:
        for at, messages in enumerate(batch):
            record = records[at % len(records)]
            with contextlib.suppress(OSError, RmgrError):
                open_line = dial(record.line, credentials=made.credentials, key_id=record.key_id, loop=loop, on_message=_deaf, on_end=_deaf)
                for data in messages:
                    with open_line._lock:  # its loop reads: TLS on two threads at once ends the process
                        open_line._sock.send(data)
                    sent += 1
                if at % 3:
                    open_line.close()
    finally:
        loop.close()
    return sent


def _deaf(*_: object) -> None:
    """Hears nothing."""


# -- a gateway -------------------------------------------------------------------------------------------------------------------


_MODULES = (gateway_pb2, join_pb2, leader_pb2, limits_pb2, node_pb2, terminal_pb2, tunnel_pb2, work_pb2)
_METHODS = [
    method for module in _MODULES for service in module.DESCRIPTOR.services_by_name.values() for method in service.methods
]  # fmt: skip


def of_requests(made: Besieged, seed: int) -> int:
    """Calls of every method, words and questions, and real orders with other bytes in them."""
    number = made.attack(Command(argv=("true",)), [b""] * 2)
    texts = (
        *_WORDS, f"/subs/0/{number:010d}", "/config/cluster", "/queues/default/pending", "/nodes/n1", "name/m/a", f"args/{number:010d}/",
        "file/" + "0" * 64, "SUBMIT", "ENQUEUE", "GATE", "ORDER", "n2", f"log/{number:010d}/0000000000/00001/stdout/0000000000",
    )  # fmt: skip
    batch = drawn(calls(_METHODS, ints=(number, 1), texts=texts), seed=seed, count=250)
    channel = open_channel(made.gateway.endpoint, made.credentials, Role.SUBMITTER, OPTIONS)

    def call(path: str, messages: list[bytes]) -> None:
        over = threading.Event()

        def said() -> Iterator[bytes]:
            yield from messages
            over.wait(0.2)  # a session ends with its stream

        with contextlib.suppress(grpc.RpcError):
            for count, _ in enumerate(channel.stream_stream(path)(said(), timeout=2.0)):
                if count > 20:
                    break
        over.set()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda one: call(*one), batch))
    spoken = _words(made, channel, number, texts, seed)
    channel.close()
    return sum(len(messages) for _, messages in batch) + spoken


def _words(made: Besieged, channel: grpc.Channel, number: int, texts: tuple[str, ...], seed: int) -> int:
    """Words of its schema on streams that have begun, questions of theirs, and honest orders with other bytes in them."""
    said = st.lists(written(Form.MSGPACK, m.FromClient, ints=(number, 1, 2, 0), texts=(*texts, "0" * 32)), min_size=1, max_size=8)
    hello = m.encode(m.Hello(m.VERSION, "0123456789abcdef" * 2, made.mallory.name, "h", 1, 1))
    keep = m.encode(m.Keep(1, number, 0, False, False, False))
    stub = work_pb2_grpc.WorkStub(channel)
    streams = drawn(said, seed=seed, count=120)
    asked = drawn(written(Form.MSGPACK, reduce(or_, RIGHTS), ints=(number, 1), texts=texts), seed=seed, count=120)

    def talk(words: list[bytes]) -> None:
        over = threading.Event()

        def messages() -> Iterator[Any]:
            yield work_pb2.Words(words=[hello, keep])
            yield from (work_pb2.Words(words=[word]) for word in words)
            over.wait(0.2)

        with contextlib.suppress(grpc.RpcError):
            for count, _ in enumerate(stub.Talk(messages(), timeout=2.0)):
                if count > 20:
                    break
        over.set()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(talk, streams))
        list(pool.map(lambda data: talk([m.encode(m.Ask(1, data, 2000))]), asked))
    draft = Submission(id=0, name="spoilt", user=made.mallory.name, queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
    key = BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    how = drawn(spoils(HOSTILE[Form.JSON] + HOSTILE[Form.MSGPACK]), seed=seed, count=20)
    for at, spoil in enumerate(how):
        place = made.client.place(draft, [(key, BlockData(payloads=(b"x" * (at % 3),)))])
        [(name, data)] = place.blocks
        parts: dict[str, Any] = {"record": spoil(place.record)} if at % 2 else {"blocks": [(name, spoil(data))]}
        with contextlib.suppress(RmgrError, TimeoutError):
            made.client.order(msgspec.structs.replace(place, **parts), timeout_s=3.0)
    return sum(map(len, streams)) + len(asked) + len(how)


# -- rows ------------------------------------------------------------------------------------------------------------------------


def of_rows(made: Besieged, seed: int) -> int:
    """Rows that Starters read for her tasks, and that operators read of her submissions."""
    texts = (*_WORDS, "m/p")
    msgpack = lambda kind: written(Form.MSGPACK, kind, texts=texts)  # noqa: E731
    spec = written(Form.JSON, sample=b'{"command":{"argv":["true"],"env":{"A":"b"}}}')
    pointer = written(Form.JSON, keys.Pointer, ints=(1,))
    row = st.one_of(
        *(
            st.tuples(st.just(kind), strategy)
            for kind, strategy in {
                "row": msgpack(tuple[bytes, ...]),
                "keyed row": st.lists(msgpack(KeyedPayload), min_size=1, max_size=2).map(msgspec.msgpack.encode),
                "keyed": msgpack(KeyedPayload),
                "function": written(Form.BYTES, sample=cloudpickle.dumps(os.getpid)),
                "initializer": written(Form.BYTES, sample=cloudpickle.dumps((len, ("x",)))),
                "module": written(Form.BYTES, sample=b"PK\x05\x06" + bytes(18)),
                "script": written(Form.BYTES, sample=b"#!/bin/sh\necho x\n"),
                "specification": spec,
                "pointer": pointer,
                "stdout": written(Form.BYTES, sample=b"text\n"),
                "fragment": msgpack(tuple[Outcome, ...]),
                "page": msgpack(tuple[Fragment, ...]),
                "manifest": written(Form.JSON, Manifest, ints=(1,)),
                "share": written(Form.JSON, sample=b'{"owner":"m","user":"a","key":"k","write":true}'),
            }.items()
        )
    )
    batch = drawn(row, seed=seed, count=36)
    function = made.function(os.getpid)
    done = made.attack(Command(argv=("true",)))
    numbers = [done]
    for at, (kind, data) in enumerate(batch):
        with contextlib.suppress(RmgrError):
            number = _with_row(made, kind, data, at, function, done)
            numbers += [number] if number else []
    _ended(made, numbers, 1)
    for at, number in enumerate(dict.fromkeys((done, *numbers[-2:]))):
        for words in (("logs",), ("show",), ("explain",))[: 3 if not at else 2]:
            told = run_command(_as_operator(made), *words, str(number))
            assert "Traceback" not in told.stderr, (words, told.stderr)
    return len(batch)


def _with_row(made: Besieged, kind: str, data: bytes, at: int, function: str, done: int) -> int:
    """Writes it, and submits what reads it. Returns: its number, 0 when nobody need run."""
    put = made.rows.put
    match kind:
        case "row" | "keyed row":
            return made.attack(function, [b"x"], data={"keyed": kind == "keyed row"}, row=data or b"\xc1")
        case "keyed":
            return made.attack(function, [data], data={"keyed": True, "payloads": (data,)})
        case "function":
            return made.attack(made.row_of("fn", data))
        case "initializer":
            return made.attack(function, python=PythonEnvironment(initializer=made.row_of("fn", data), worker_group=f"g{at}"))
        case "module":
            return made.attack(function, python=PythonEnvironment(modules=(made.row_of("mod", data),)))
        case "script":
            return made.attack(Command(script_sha256=made.row_of("file", data), script_name="x"))
        case "specification":
            return made.attack(None, spec_sha256=made.row_of("file", data))
        case "pointer":
            put(keys.named(f"m/p{at}"), data, encoding=Encoding.POINTER)
            payload = encode_keyed(KeyedPayload(inputs=(f"m/p{at}",), outputs=()))
            return made.attack(function, [payload], data={"keyed": True})
        case "stdout":
            put(keys.log(done, 0, 1, keys.STREAMS[at % 2], at), data)
        case "fragment":
            put(keys.fragment(done, f"{at}"), data)
        case "page":
            put(keys.page(done, at), data)
        case "manifest":
            put(keys.Checkpoint(sub=done, index=0, attempt=1, n=at + 1).key, data)
        case "share":
            put(keys.share(made.mallory.name, made.ann.name, f"{at:064d}"), data)
    return 0


# -- what must hold --------------------------------------------------------------------------------------------------------------


def _as_operator(made: Besieged) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")} | made.cluster.environment()


def _serves(made: Besieged, longest_s: float) -> None:
    """Every node runs work of another user in time; what daemons have set aside is said."""
    assert made.cluster.security is not None
    security = SecurityConfig(dir=str(made.cluster.security.bundle(Role.USER, made.ann.name)))
    with connect(config=Config(cluster=ClusterConfig(gateway=made.gateway.endpoint), security=security)) as connection:
        for node in NODES:
            with FairTimer() as timer, TaskQueue(abs, connection=connection, features=(node,)) as queue:
                assert queue.submit_call(-42).result(DEADLINE_S) == 42, node
                assert timer.elapsed_s <= longest_s, node
    snapshot = made.cluster.snapshot()
    aside = dict(snapshot.troubles) | dict(snapshot.aside)
    if aside:
        for command in ("status", "doctor"):
            assert "aside" in run_command(_as_operator(made), command).stdout, (command, aside)
        raise AssertionError(f"daemons met what no code of them expects: {aside}")


def _sizes(made: Besieged) -> dict[str, int]:
    return {name: psutil.Process(pid).memory_info().rss for name, pid in made.daemons.items()}


SIDES: dict[str, Callable[[Besieged, int], int]] = {
    "workers": of_workers,
    "spawners": of_spawners,
    "lines": on_lines,
    "requests": of_requests,
    "rows": of_rows,
}


@pytest.mark.parametrize("side", SIDES)
def test_whatever_is_said_no_daemon_is_lost(sieges: Callable[[], Besieged], side: str) -> None:
    made = sieges()
    seed = int(_SEED or int.from_bytes(os.urandom(4), "big"))
    # A machine that is busy with other things answers late without any attack: then it is the ratio that counts.
    longest_s = max(LONGEST_S, TIMES * made.quiet_longest_s)
    sent = batches = 0
    before, end_s = _sizes(made), time.monotonic() + _SECONDS
    while True:
        try:
            with made.siege(longest_s=longest_s, grow=_MAY_GROW):
                sent += SIDES[side](made, seed)
                _serves(made, longest_s)
        except BaseException as error:
            error.add_note(f"the same messages again: RMGR_FUZZ_SEED={seed} python -m pytest {__file__} -k {side} -n 0")
            raise
        batches, seed = batches + 1, seed + 1
        if time.monotonic() > end_s:
            break
    after = _sizes(made)
    told = ", ".join(f"{name} {before[name] // _MIB} -> {size // _MIB} MiB" for name, size in after.items())
    print(f"\n{side}: {sent} messages in {batches} batches, the last of seed {seed - 1}, answers within {longest_s:.0f} s; {told}")
    assert all(size - before[name] < _MAY_KEEP for name, size in after.items()), told
