"""Hostile content behind a valid signature (records, rows, frames, files of work) stops only the work it belongs to.

Each attack is mallory's, on a cluster whose root Starters run work as its users, and each is made while ann works beside it
(tests/harness/besieged.py says what must hold). Sizes are the smallest at which the attack once succeeded; RMGR_ATTACKS=full takes those
with which it was found, which need 16 GiB of memory and half an hour.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from rmgr.adapters.host.channel import Loop
from rmgr.adapters.rpc.line import dial
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.records import encode_keyed
from rmgr.errors import InvalidRecord, RmgrError, UsageError
from rmgr.model.base import Request
from rmgr.model.block import KeyedPayload
from rmgr.model.line import Hint
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, PythonEnvironment
from rmgr.submitter.questions import CancelTasks
from tests.harness.besieged import CORES, NODES, Besieged
from tests.harness.fair_time import undisturbed

cloudpickle.register_pickle_by_value(sys.modules[__name__])
FULL = os.environ.get("RMGR_ATTACKS") == "full"
pytestmark = [pytest.mark.xdist_group("attacks_behind"), *([pytest.mark.long] if FULL else [])]
MIB = 1 << 20
#: Bytes of a row that was read whole and copied some times, of a frame.
ROW, FRAME = (1200 * MIB, 60 * MIB) if FULL else (80 * MIB, 24 * MIB)


def sh(script: str, **more: Any) -> Command:
    return Command(argv=("/bin/sh", "-c", script), **more)


def ended(made: Besieged, number: int, *reasons: Reason, count: int = 1) -> None:
    """All its tasks have failed for one of these reasons."""
    outcomes = made.outcomes(number, count)
    assert {one.state for one in outcomes} == {State.FAILED}, outcomes[:2]
    assert {one.reason for one in outcomes} <= set(reasons), [(one.reason, one.error) for one in outcomes[:3]]


# -- critical ------------------------------------------------------------------------------------------------------------------


def bad_outputs(made: Besieged, *paths: str, script: str = "true", tasks: int = 6) -> None:
    """Files of these names are refused when they are asked for, or end their tasks BAD_OUTPUT."""
    numbers = []
    for path in paths:
        with contextlib.suppress(InvalidRecord, UsageError):
            numbers.append(made.attack(sh(script, output_files=(("m/out", path),)), [b""] * tasks))
    for number in numbers:
        ended(made, number, Reason.BAD_OUTPUT, count=tasks)


def outputs_of_root(made: Besieged) -> None:
    bad_outputs(made, f"{pwd.getpwuid(0).pw_dir}/x")


def outputs_with_long_names(made: Besieged) -> None:
    bad_outputs(made, "x" * 300, "d/" * 3000, "a\0b")


def outputs_in_closed_directories(made: Besieged) -> None:
    bad_outputs(made, "d/f", script="mkdir d; echo x > d/f; chmod 000 d")


def a_large_initializer(made: Besieged) -> None:
    digest = made.row_of("fn", cloudpickle.dumps((len, (b"x" * (70 * MIB),))))
    environment = PythonEnvironment(initializer=digest, worker_group="g")
    ended(made, made.attack(made.function(os.getpid), python=environment), Reason.START_FAILED)


NO_KEYS = {
    "a pickle": cloudpickle.dumps((1, {})),
    "empty": b"",
    "nested": b"\x92" + b"\x91" * 9000 + b"\x01\x90",
    "no text": b"\x92\x91\xa2\xff\xfe\x90",
    "surrogate": b"\x92\x91\xa3\xed\xa0\x80\x90",
    "numbers": b"\x92\x01\x02",
}


def arguments_that_are_no_keys(made: Besieged) -> None:
    function = made.function(os.getpid)
    numbers = [made.attack(function, [payload], data={"keyed": True, "payloads": (payload,)}) for payload in NO_KEYS.values()]
    for number in numbers:
        ended(made, number, Reason.UNTRUSTED, Reason.DATA_LOST)


def rows_that_hold_no_keys(made: Besieged) -> None:
    function = made.function(os.getpid)
    rows = [msgspec.msgpack.encode([payload] * 3) for payload in NO_KEYS.values()]
    rows += [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc1"]
    for number in [made.attack(function, [b"x"] * 3, data={"keyed": True}, row=row) for row in rows]:
        ended(made, number, Reason.UNTRUSTED, Reason.DATA_LOST, count=3)


def speak(kind: str, size: int) -> None:
    """Sends its Starter what no worker says."""
    import gc
    import os as system

    from rmgr.model.frames import Output, TaskEnd, TaskEnds, TaskExtra, Value
    from rmgr.model.stream import encode
    from rmgr.runner.python.worker import WorkerProcess

    gc.unfreeze()  # else what was there when the worker was forked is in no list
    worker = next(one for one in gc.get_objects() if isinstance(one, WorkerProcess))
    deep = b"\x91" * 100_000 + b"\x01"

    def framed(body: bytes) -> bytes:
        return len(body).to_bytes(4, "little") + body

    def end(**extra: Any) -> bytes:
        return bytes(encode(TaskEnds((TaskEnd(worker._seq, 1, 1, 1, b"", True, TaskExtra(**extra)),))))

    if kind == "deep board":
        body = msgspec.msgpack.encode((worker._seq, 1, 1, 1, b"", True, None, msgspec.Raw(deep)))
        worker._board.view[4096 + 16 : 4096 + 16 + len(body)] = body
        worker._board.words[8] = len(body) << 32 | 1
    else:
        worker._socket.setblocking(True)
        worker._socket.sendall(
            {
                "no text": lambda: framed(b"\x93\x3f\xc4\x00\xa2\xff\xfe"),
                "surrogate": lambda: framed(b"\x93\x3f\xc4\x00\xa3\xed\xa0\x80"),
                "deep": lambda: framed(b"\x93\x3e\x01" + deep),
                "NUL in an output": lambda: end(out=Output(size=10, path="a\0b")),
                "NUL in a value": lambda: end(value=Value(path="a\0b", size=10)),
                "long path": lambda: end(value=Value(path="x" * 5000, size=10)),
                "negative": lambda: end(value=Value(path="x", size=-10)),
                "tiny values": lambda: framed(b"\x92\x3c\xdd" + (size // 2).to_bytes(4, "big") + b"\x91\x90" * (size // 2)),
            }[kind]()
        )
    system._exit(3)


SAID = ("no text", "surrogate", "deep", "deep board")


def frames_of_a_worker(made: Besieged, *kinds: str) -> None:
    function = made.function(speak)
    numbers = [made.attack(function, [cloudpickle.dumps(((kind, FRAME), {}))]) for kind in kinds]
    for number in numbers:
        [outcome] = made.outcomes(number)
        assert outcome.state is State.FAILED, outcome
        assert outcome.reason is not Reason.EXCEPTION, "it has said nothing"


def babble(seed: int) -> None:
    """Sends its Starter frames of every kind, spoilt by chance."""
    import gc
    import os as system
    import random

    from rmgr.model import frames
    from rmgr.model.stream import encode
    from rmgr.runner.python.worker import WorkerProcess

    gc.unfreeze()
    worker = next(one for one in gc.get_objects() if isinstance(one, WorkerProcess))
    chance = random.Random(seed)
    end = frames.TaskEnd(worker._seq, 1, 1, 1, b"", True, frames.TaskExtra(error=b"x", summary="y"))
    kinds = (
        frames.TaskEnds((end, end)), frames.Skipped((7, 8)), frames.Blocked(worker._seq), frames.Unblocking(worker._seq),
        frames.WorkerUp(1), frames.WorkerRefused(error=b"", summary="z"), frames.Leaving("x"),
    )  # fmt: skip
    spoils = (b"\x91" * 5000, b"\xa2\xff\xfe", b"\xdd\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\xc1", b"\xa3\xed\xa0\x80", b"")
    worker._socket.setblocking(True)
    for _ in range(chance.randrange(1, 6)):
        body = bytearray(bytes(encode(chance.choice(kinds)))[4:])
        for _ in range(chance.randrange(0, 4)):
            at = chance.randrange(len(body) + 1)
            body[at : at + chance.randrange(0, 6)] = chance.choice((*spoils, chance.randbytes(3)))
        length = chance.choice((len(body), len(body), len(body), len(body) + 1, 0, 2**32 - 1))
        worker._socket.sendall(length.to_bytes(4, "little") + bytes(body))
    system._exit(3)


def whatever_a_worker_says(made: Besieged) -> None:
    """RMGR_FUZZ_S: goes on for so many seconds."""
    function, seed = made.function(babble), int.from_bytes(os.urandom(4), "big")
    end_s = time.monotonic() + float(os.environ.get("RMGR_FUZZ_S", "0"))
    while True:
        number = made.attack(function, [cloudpickle.dumps(((seed + at,), {})) for at in range(24)])
        made.outcomes(number, 24, deadline_s=120.0)  # whatever they are: none is left
        seed += 24
        if time.monotonic() > end_s:
            return


def messages_on_direct_lines(made: Besieged) -> None:
    loop = Loop("mallory", on_crash=deaf)
    no_text, nested = b"\x94\x01\xa2\xff\xfe\xa1b\xc4\x00", b"\x95\x03\x01\x01\x01" + b"\x91" * 20_000 + b"\x01"
    try:
        for record in made.cluster.snapshot(submissions=False).nodes.values():
            for body in (no_text, nested, b"\x94\x01\xa3\xed\xa0\x80\xa1b\xc4\x00"):
                gone = threading.Event()
                line = dial(
                    record.line, credentials=made.credentials, key_id=record.key_id, loop=loop,
                    on_message=deaf, on_end=lambda _, gone=gone: gone.set(),
                )  # fmt: skip
                line._sock.send(len(body).to_bytes(4, "little") + body)
                assert gone.wait(60), "the line on which that came has ended"
    finally:
        loop.close()


# -- high ----------------------------------------------------------------------------------------------------------------------


def a_script_of_a_gigabyte(made: Besieged) -> None:
    number = made.attack(Command(script_sha256=made.row_of("file", b"#!/bin/sh\n" + b"#" * ROW), script_name="x"))
    ended(made, number, Reason.START_FAILED, Reason.DATA_LOST)


def a_function_of_a_gigabyte(made: Besieged) -> None:
    ended(made, made.attack(made.row_of("fn", b"x" * ROW)), Reason.START_FAILED, Reason.DATA_LOST, Reason.EXCEPTION)


def a_share_of_a_gigabyte(made: Besieged) -> None:
    mine, key = made.mallory.name, "m/shared"
    with contextlib.suppress(RmgrError):  # a gateway may refuse it
        made.rows.put(keys.share(mine, made.ann.name, hashlib.sha256(key.encode()).hexdigest()), b" " * ROW)
    asked = made.rmgr_of(made.ann, "store", "get", key)
    assert asked.returncode != 0


def a_specification_of_millions(made: Besieged) -> None:
    names = 6_000_000 if FULL else 800_000
    entries = b",".join(b'"V%d":"x"' % at for at in range(names))
    digest = made.row_of("file", b'{"command":{"argv":["true"],"env":{' + entries + b"}}}")
    numbers = [made.attack(None, spec_sha256=digest) for _ in range(3)]
    for number in numbers:
        [outcome] = made.outcomes(number)
        assert outcome.state is State.FAILED, outcome


def a_specification_of_nothing(made: Besieged) -> None:
    texts = (b"[" * 100_000, b'{"command":' + b"[" * 50_000, b"\xff\xfe", b'{"command":{"argv":["\\ud800"]}}', b"", b"7" * 5000)
    for number in [made.attack(None, spec_sha256=made.row_of("file", text)) for text in texts]:
        [outcome] = made.outcomes(number)
        assert outcome.state is State.FAILED, outcome


def millions_of_inputs(made: Besieged) -> None:
    names = 1_500_000 if FULL else 150_000
    payload = encode_keyed(KeyedPayload(inputs=tuple(f"none/{at}" for at in range(names)), outputs=()))
    function = made.function(os.getpid)
    numbers = [made.attack(function, [b"x"], data={"keyed": True}, row=msgspec.msgpack.encode([payload])) for _ in range(6)]
    for number in numbers:
        made.outcomes(number)


def floods_of_output(made: Besieged) -> None:
    seconds = 60 if FULL else 2
    number = made.attack(sh(f"timeout {seconds} yes 0123456789abcdef"), [b""] * 6)
    made.outcomes(number, 6, deadline_s=seconds + 60)
    stored = made.store.usage(f"log/{number:010d}/")[1]
    assert stored <= 6 * (4 + 2) * MIB, f"{stored >> 20} MiB, and each may keep 4 MiB and what is being stored"


def sparse_output_files(made: Besieged) -> None:
    size = "1G" if FULL else "100M"
    number = made.attack(sh(f"truncate -s {size} f", output_files=(("m/sparse", "f"),)), [b""] * 3)
    made.outcomes(number, 3, deadline_s=180.0)


def bad_output_keys_in_a_batch(made: Besieged) -> None:
    function = made.function(os.getpid)
    names = ("", "a\0b", "x" * 5000, "name/" * 400)
    payloads = [encode_keyed(KeyedPayload(inputs=(), outputs=(name,), claims_by="0" * 16)) for name in names]
    numbers = [made.attack(function, [payload], data={"keyed": True}) for payload in payloads]
    for number in numbers:
        [outcome] = made.outcomes(number)
        assert outcome.state is State.FAILED, outcome


def gaps_of_its_own(made: Besieged) -> None:
    line = "[rmgr: %s bytes of output dropped here, the limit is 5]"
    script = f"yes 0123456789abcdef | head -c 6000000; printf '\\n{line % ('9' * 5000)}\\n'; yes x | head -c 6000000"
    for outcome in made.outcomes(made.attack(sh(script), [b""] * 3), 3):
        assert outcome.state is State.COMPLETED, outcome
    assert not made.cluster.snapshot(submissions=False).troubles


def cancels_without_end(made: Besieged) -> None:
    tasks, times = (1_000_000, 60) if FULL else (100_000, 20)
    number = int(made.rmgr("submit", "--hold", "--parsable", "--array", f"0-{tasks - 1}", "--", "true"))

    def ask() -> None:
        with contextlib.suppress(RmgrError):
            made.client.ask(CancelTasks(number=number, ranges=((0, tasks),)))

    threads = [threading.Thread(target=ask) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


# -- medium --------------------------------------------------------------------------------------------------------------------


def outputs_of_the_starters_own(made: Besieged) -> None:
    own = ("/proc/self/maps", "/proc/self/environ", "/proc/1/../self/maps", "/proc/thread-self/maps", "/dev/fd/0", "/dev/stdin")
    bad_outputs(made, *own, tasks=1)
    bad_outputs(made, "d/maps", script="ln -s /proc/self d", tasks=1)


def burn(seconds: float, say: bool) -> None:
    """Computes, and says first that it waits."""
    from pathlib import Path as Place
    from time import monotonic
    from uuid import uuid4

    from rmgr.runner.current import gate

    if say and gate.seq is not None:
        gate.block(gate.seq())
    burns = Place.home().joinpath(f"burns-{uuid4()}")
    burns.touch()
    end = monotonic() + seconds
    while monotonic() < end:
        pass
    burns.unlink()


def work_that_says_it_waits(made: Besieged) -> None:
    tasks, seconds = (60, 20.0) if FULL else (24, 5.0)
    home = Path(made.mallory.home)

    @undisturbed
    def few_begin() -> None:
        number = made.attack(made.function(burn), [cloudpickle.dumps(((seconds, True), {}))] * tasks, request=Request(features=("n3",)))
        made.until("some of it runs", lambda: list(home.glob("burns-*")))
        time.sleep(seconds / 2)  # the time in which all would have begun
        began = len(list(home.glob("burns-*")))
        made.rmgr("cancel", str(number))
        made.until("her work is gone", lambda: not made.hers())
        for left in home.glob("burns-*"):
            left.unlink()
        assert began <= 3 * CORES, f"{began} of {tasks} burn at once on {CORES} cores"

    few_begin()


def deaf(*_: object) -> None:
    """Hears nothing."""


def hints_without_end(made: Besieged) -> None:
    lines, seconds = (100, 60.0) if FULL else (12, 2.0)
    loop = Loop("mallory", on_crash=deaf)
    records = list(made.cluster.snapshot(submissions=False).nodes.values())
    name = "0000000000.9999999999.0000000001.0000000000.1.1.1.0"
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s:
            open_lines = []
            for at in range(lines):
                record = records[at % len(records)]
                with contextlib.suppress(OSError, RmgrError):
                    open_lines.append(
                        dial(record.line, credentials=made.credentials, key_id=record.key_id, loop=loop, on_message=deaf, on_end=deaf)
                    )
            for _ in range(20_000 // max(1, len(open_lines))):
                for line in open_lines:
                    line.send(Hint("n1", name, b"x"))
            for line in open_lines:
                line.close()
    finally:
        loop.close()


def many_values_at_once(made: Besieged) -> None:
    readers = 64 if FULL else 16
    names = [f"m/value{at}" for at in range(16)]
    with made.connection() as connection:
        connection.store.put_many({name: os.urandom(2 * MIB - 4096) for name in names}, overwrite=True)
    rows = [keys.named(name) for name in names]

    def read() -> None:
        with contextlib.suppress(RmgrError):
            made.rows.get_noted_many(rows, largest=4 * MIB, timeout_s=60.0)

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


def closed_directories(made: Besieged) -> None:
    made.outcomes(made.attack(sh("mkdir -p d/e/f; touch d/e/f/g; chmod 000 d/e/f d/e d; chmod 000 ."), [b""] * 6), 6)
    work = made.place / "cluster" / "work"

    def left() -> list[str]:
        found = []
        for above, names, _ in os.walk(work):
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.stat(os.path.join(above, name))
                    if status.st_uid == made.mallory.uid and not status.st_mode & 0o777:
                        found.append(os.path.join(above, name))
        return found

    made.until("nothing of it is left", lambda: not left(), deadline_s=30.0)


ATTACKS: dict[str, Callable[[Besieged], None]] = {
    "outputs of root": outputs_of_root,
    "outputs with long names": outputs_with_long_names,
    "outputs in closed directories": outputs_in_closed_directories,
    "a large initializer": a_large_initializer,
    "arguments that are no keys": arguments_that_are_no_keys,
    "rows that hold no keys": rows_that_hold_no_keys,
    "frames that nobody reads": lambda made: frames_of_a_worker(made, *SAID),
    "whatever a worker says": whatever_a_worker_says,
    "messages on direct lines": messages_on_direct_lines,
    "a script of a gigabyte": a_script_of_a_gigabyte,
    "a function of a gigabyte": a_function_of_a_gigabyte,
    "a share of a gigabyte": a_share_of_a_gigabyte,
    "a specification of millions": a_specification_of_millions,
    "a specification of nothing": a_specification_of_nothing,
    "millions of inputs": millions_of_inputs,
    "floods of output": floods_of_output,
    "sparse output files": sparse_output_files,
    "bad output keys in a batch": bad_output_keys_in_a_batch,
    "gaps of its own": gaps_of_its_own,
    "paths that are none": lambda made: frames_of_a_worker(made, "NUL in an output", "NUL in a value", "long path", "negative"),
    "a frame of tiny values": lambda made: frames_of_a_worker(made, "tiny values"),
    "cancels without end": cancels_without_end,
    "outputs of the Starter's own": outputs_of_the_starters_own,
    "work that says it waits": work_that_says_it_waits,
    "hints without end": hints_without_end,
    "many values at once": many_values_at_once,
    "closed directories": closed_directories,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_who_attacks_from_behind_the_signature_stops_nobody_else(sieges: Callable[[], Besieged], attack: str) -> None:
    made = sieges()
    assert len(made.daemons) == 2 + len(NODES)
    with made.siege():
        ATTACKS[attack](made)
