"""One of each record as release 0.1.0 wrote it: `golden(name)` returns its bytes, `RECORDS` holds what they must always mean.

Release 0.1.0 itself made the bytes in tests/golden/records from these values. They are never made again: a later release
that cannot read them cannot run beside 0.1.0. The values name only fields that 0.1.0 had.
"""

from __future__ import annotations

from typing import Any

from rmgr.model.base import Capacity, NodeAttributes, Request
from rmgr.model.block import BlockData, FailedRange, Fragment, KeyedPayload, Outcome, PastAttempt
from rmgr.model.node import Drain, EpochRecord, InboxOrder, Meta, NodeRecord, NodeState, OrderKind, StarterEntry
from rmgr.model.queue import ClusterSettings, Dispatch, QueueSpec
from rmgr.model.states import Reason, State
from rmgr.model.submission import (
    Command,
    Condition,
    Dependency,
    OnDisconnect,
    Paged,
    Phase,
    PythonEnvironment,
    Submission,
    Tail,
    Upload,
    Work,
)
from tests.places import GOLDEN

_PAST = PastAttempt(1, "n1", Reason.NODE_LOST, None, 1_700_000_000_000_000, 1_700_000_001_000_000, "node n1 was lost")
BLOCK = BlockData(
    function="f" * 64, resubmit=False, retries=3, losses=1, failures=2, base=10, payloads=(b"one", b"", b"three"), row="args/42/10", done=5,
    incarnation=7, started=2, keyed=True, serial=True, claimed_us=1_700_000_000_000_000, past=(_PAST,), stamp="abc",
)  # fmt: skip
WIDE_BLOCK = BlockData(function="f" * 64, done=(1 << 200) | 1, stamp="wide")
OUTCOME = Outcome(
    index=7, state=State.FAILED, started_us=5, elapsed_us=1_000_000, value=b"\x00\x01", pickled=False, cpu_us=900_000, max_rss_kib=1024,
    reason=Reason.EXIT_CODE, exit_code=3, value_size=70_000, error="ValueError: no", log=(b"out", b"err"), log_parts=(1, 2), outputs=2,
    attempt=2, past=(_PAST,),
)  # fmt: skip
FRAGMENT = Fragment(
    node="n1", attempt=2, base_us=1_700_000_000_000_000, outcomes=(OUTCOME, Outcome(index=8)), row="frag/42/x",
    ranges=((State.COMPLETED, 0, 7), (State.FAILED, 7, 1)),
)  # fmt: skip

#: JSON records.
RECORDS: dict[str, Any] = {
    "submission_command": Submission(
        id=42, name="sim", user="ana", queue="batch", work=Work.COMMAND,
        request=Request(cores=4, memory_bytes=1 << 30, time_limit_us=60_000_000, features=("gpu", "ssd"), resources={"licence": 2}),
        priority=-5, resubmit=False, retries=2, backoff_us=1_000_000, on_disconnect=OnDisconnect.EXCLUSIVE,
        after=(Dependency(condition=Condition.OK, submission=41),), phase=Phase.HELD, reason="DEPENDENCY", reason_detail="waits",
        owner="g1", token="t", submitted_us=1_700_000_000_000_000, closed_us=0, array="1-100:2", max_running=8,
        command=Command(
            argv=("sh", "-c", "echo $X"), script_sha256="a" * 64, script_name="job.sh", env={"X": "1"}, cwd="/srv/x", out="out-%j",
            err="err-%j", stdin_sha256="b" * 64,
            uploads=(Upload(name="lib", sha256="c" * 64, is_dir=True), Upload(name="one", sha256="d" * 64)),
            input_files=(("in/1", "one.txt"),), output_files=(("out/1", "two.txt"),),
        ),
        account="proj", host="login1", grace_us=2_000_000, spec_sha256="e" * 64,
    ),
    "submission_python": Submission(
        id=43, name="q", user="ana", queue="default", work=Work.PYTHON, function="f" * 64,
        python=PythonEnvironment(
            python="/opt/py/bin/python", version="3.11", sys_path=("/home/ana",), modules=("m" * 64,), initializer="i" * 64,
            worker_group="g",
        ),
    ),
    "tail": Tail(next=17, complete=True, enqueued="guid-3", reigns=((0, "a"), (9, "b"))),
    "paged": Paged(base=500, counts={"COMPLETED": 490, "FAILED": 10}),
    "node": NodeRecord(
        node="n1", incarnation=3, state=NodeState.FENCED, guid="g", capacity=Capacity(cores=8, memory_bytes=1 << 34, resources={"gpu": 1}),
        attributes=NodeAttributes(partition="p", site="s", speed=1.5, features=("ssd",)), endpoint="10.0.0.1:7070", host="h", pid=77,
        registered_us=1_700_000_000_000_000, reason="its entry is gone", version="0.1.0",
    ),
    "starter_entry": StarterEntry(guid="g", nodes=("n1", "n2"), endpoint="10.0.0.1:7070", host="h", pid=77),
    "drain": Drain(node="n1", reason="disk", user="op", since_us=1_700_000_000_000_000),
    "epoch": EpochRecord(epoch=4, leader="w", endpoint="10.0.0.2:1", host="h", pid=5, since_us=1, candidate="n-x-0000000001"),
    "meta": Meta(cluster_id="0123456789abcdef", created_us=1_700_000_000_000_000),
    "order": InboxOrder(order=OrderKind.CANCEL, submission=42, index=7, reason="USER_CANCEL", detail="d", signal=15, extra={"k": "v"}),
    "settings": ClusterSettings(
        queues=(
            QueueSpec(name="default"),
            QueueSpec(
                name="batch", partition="p", dispatch=Dispatch.PLACE, policy="fcfs", state="closed", default_time_us=1, max_time_us=2,
                max_cores=3, max_memory_bytes=4, default_memory_bytes=5, default_priority=6, max_priority=7, max_pending_blocks=8, rank=9,
                backfill_pull=True, users=("ana",),
            ),
        ),
        default_queue="batch", retention_us=1, grace_us=2, mass_loss_share=0.25, mass_requeue_per_s=10.0, max_losses=3, max_fragments=100,
        log_retention_us=4, operators=("op",), extra={"k": "v"},
    ),
}  # fmt: skip

#: MessagePack records: name -> (suffix of encoder and decoder in coord/protocol/records.py, value).
PACKS: dict[str, tuple[str, Any]] = {
    "block": ("block", BLOCK),
    "block_wide": ("block", WIDE_BLOCK),
    "fragment": ("fragment", FRAGMENT),
    "failed": (
        "failed",
        FailedRange(
            queue="batch", seq=9, priority=1, cores=2, memory_mib=512, reason=Reason.NODE_LOST, block=b"\x90", node="n1", backoff_us=5,
            exit_code=1, error="e", started_us=1, ended_us=2, log=(b"o", b"e"), log_parts=(1, 0), cpu_us=3, max_rss_kib=4, alone=False,
        ),
    ),
    "outcomes": ("outcomes", (OUTCOME, Outcome(index=9))),
    "page": ("page", (FRAGMENT, Fragment())),
    "payloads": ("payloads", (b"a", b"", b"c" * 300)),
    "keyed": ("keyed", KeyedPayload(("in/1",), ("out/1", "out/2"), True)),
}  # fmt: skip


def golden(name: str) -> bytes:
    """Returns the bytes that 0.1.0 wrote."""
    suffix = "json" if name in RECORDS else "msgpack"
    return (GOLDEN / "records" / f"{name}.{suffix}").read_bytes()
