"""Every decoder of rmgr that reads data from other parties, with its schema and the only errors that it may raise.

`DECODERS` is the table of SECURITY.md ("What is decoded") as code: `unit/documents/test_security_document.py` holds both against each other
and against the tree, `property/test_decoders.py` fuzzes each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, cast

import grpc
import msgspec

from rmgr import config
from rmgr.adapters import policy_files
from rmgr.adapters.access.auth import ERROR_KEY, rebuild
from rmgr.adapters.host import slot
from rmgr.adapters.identity import invitation
from rmgr.adapters.rpc.convert import from_message
from rmgr.cli.control.settings import parse_settings
from rmgr.cli.submit import jobs_file
from rmgr.coord.decisions import rights
from rmgr.coord.protocol import keys, records
from rmgr.coord.seal import NotSealed
from rmgr.daemons.leader.placement import job_table as placing
from rmgr.daemons.service import keepers
from rmgr.daemons.starter.checkpoint import files
from rmgr.daemons.starter.core import fetch
from rmgr.daemons.starter.jobs import ranks as starter_ranks
from rmgr.dev import keeper
from rmgr.errors import ConfigError, DataLost, InvalidRecord, NotFound, RequestTooLarge, UsageError, WrongCluster
from rmgr.errors import Unavailable as Unreachable
from rmgr.model import arrays, frames, interface, line, turns
from rmgr.model.block import BlockData, FailedRange, Fragment, KeyedPayload, Outcome
from rmgr.model.node import Drain, InboxOrder, Meta, NodeRecord, StarterEntry, SubmitterEntry
from rmgr.model.queue import ClusterSettings, PipelineSpec
from rmgr.model.stream import FrameError, FrameReader
from rmgr.model.submission import Paged, Submission, Tail
from rmgr.model.views import JobView
from rmgr.procedures import history
from rmgr.runner.python import served
from rmgr.runner.ranks import ranks
from rmgr.sched.state import event_log
from rmgr.sim.calls import scenario
from rmgr.sim.plots import reading
from rmgr.sim.workload import events
from rmgr.submitter import messages, questions
from rmgr.submitter.questions import RIGHTS
from rmgr.v1 import views_pb2
from tests.harness.records_of_0_1_0 import RECORDS


class Form(StrEnum):
    """The encoding of the bytes."""

    MSGPACK = "msgpack"
    JSON = "json"
    TOML = "toml"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder. module: path below rmgr. raises: documented errors. kind: type of a value, None = any. sample: bytes that it accepts."""

    name: str
    module: str
    decode: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    form: Form
    kind: Any = None
    sample: bytes = b""


def _frames(kind: Any) -> Callable[[bytes], object]:
    return lambda data: FrameReader[object](kind).feed(len(data).to_bytes(4, "little") + data)


def _record(kind: type[Any]) -> Callable[[bytes], object]:
    """Returns a decoder of a record that also encodes it again, as each change of a record does."""
    return lambda data: records.encode_record(records.decode_record(data, kind, "/x"))


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            path.write_bytes(data)
            return read(path)

    return decode


class _Told(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, trailing: str) -> None:
        self._trailing = trailing

    def trailing_metadata(self) -> list[tuple[str, str]]:
        return [(ERROR_KEY, self._trailing)]

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return "details"


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Returns a decoder of bytes for a reader of text; bytes that are not UTF-8 never reach such a reader."""
    return lambda data: read(data.decode(errors="replace"))


def _asked(text: str) -> object:
    message = views_pb2.JobView(state="RUNNING")
    message.asked_json = text
    return from_message(JobView, message)


def _names(data: bytes) -> object:
    """Parses keys of the store, which any user may choose. Each parser may only return or raise UsageError."""
    text = data.decode(errors="surrogateescape")
    for parse in (keys.parse_output, keys.parse_checkpoint, keys.parse_share, keys.parse_history, keys.parse_events, keys.parse_led):
        try:
            parse(text)
        except UsageError:
            continue
    return None


def _files_of(data: bytes) -> object:
    secret = b"k" * 32
    return invitation.unseal_files(secret, "files", invitation.seal(secret, "files", data))

_SUBMISSION = RECORDS["submission_python"]
_SHARE = rights.ValueShare(owner="ana", user="bob", key="k", write=True)
_VIEW = b'{"id":1,"name":"x","user":"u","queue":"q","state":"COMPLETED"}'
_TOML = b'default_queue = "a"\n[queues.a]\ndispatch = "pull"\n[limits]\n'
_CONFIG = b'[cluster]\nzk = "127.0.0.1:2181"\n[log]\n'
_SCENARIO = min((path.read_bytes() for path in scenario.SHIPPED.glob("*.toml")), key=len)
_JOBS = b'{"name": "prep", "command": ["./prep"]}\n{"command": ["true"], "cpus": 2}\n'
_EVENT = b'{"at": 1.5, "event": "fail", "nodes": "0-3 7"}\n'
_LOG = b'{"at":1,"end":{"facts":1,"passes":2}}'

_OF_RECORDS = "coord/protocol/records.py"
DECODERS = (
    *(
        Decoder(f"frames: {name}", "model/stream.py", _frames(kind), (FrameError,), Form.MSGPACK, kind=kind)
        for name, kind in (
            ("to a spawner", frames.ToSpawner),
            ("of a spawner", frames.FromSpawner),
            ("to a worker", frames.ToWorker),
            ("of a worker", frames.FromWorker),
            ("to a turner", turns.ToTurner),
            ("of a turner", turns.FromTurner),
            ("of a direct line", line.Message),
        )
    ),
    Decoder(
        "board", "adapters/host/slot.py", lambda data: slot.ends_on_board(data, 1), (FrameError,), Form.MSGPACK, kind=frames.TaskEnd
    ),
    *(
        Decoder(name, _OF_RECORDS, decode, (msgspec.DecodeError,), Form.MSGPACK, kind=kind)
        for name, decode, kind in (
            ("block", lambda data: records.encode_block(records.decode_block(data)), BlockData),
            ("fragment", records.decode_fragment, Fragment),
            ("failed range", records.decode_failed, FailedRange),
            ("outcomes", records.decode_outcomes, tuple[Outcome, ...]),
            ("page", records.decode_page, tuple[Fragment, ...]),
            ("raw page", records.split_page, tuple[Fragment, ...]),
            ("arguments", records.decode_payloads, tuple[bytes, ...]),
            ("keys of a task", records.decode_keyed, KeyedPayload),
        )
    ),
    Decoder("fragment or nothing", _OF_RECORDS, records.read_fragment, (), Form.MSGPACK, kind=Fragment),
    Decoder("fragment at a glance", _OF_RECORDS, records.glance_fragment, (), Form.MSGPACK, kind=Fragment),
    *(
        Decoder(kind.__name__, _OF_RECORDS, _record(kind), (WrongCluster,), Form.JSON, kind=kind)
        for kind in (ClusterSettings, Drain, InboxOrder, Meta, NodeRecord, Paged, StarterEntry, SubmitterEntry, Submission, Tail)
    ),
    Decoder(
        "what a newer release wrote", _OF_RECORDS, lambda data: _record(Tail)(b'{"later":' + data + b',"next":1}'), (WrongCluster,),
        Form.JSON
    ),
    Decoder("pointer", "coord/protocol/keys.py", keys.decode_pointer, (DataLost,), Form.JSON, kind=keys.Pointer),
    Decoder("names of rows", "coord/protocol/keys.py", _names, (), Form.BYTES, sample=b"out/42/7/1/0"),
    Decoder("deed", "coord/decisions/rights.py", rights.decode_deed, (NotSealed,), Form.MSGPACK, kind=rights.Deed),
    Decoder(
        "share", "coord/decisions/rights.py", lambda data: rights.decode_share(_SHARE.row, data), (NotSealed,), Form.JSON,
        sample=rights.encode_share(_SHARE)
    ),
    *(
        Decoder(name, "submitter/messages.py", decode, (InvalidRecord,), Form.MSGPACK, kind=kind)
        for name, decode, kind in (
            ("word of a client", messages.read_client, messages.FromClient),
            ("word of a gateway", messages.read_gateway, messages.FromGateway),
        )
    ),
    Decoder(
        "question", "submitter/questions.py", questions.decode_question, (UsageError, RequestTooLarge), Form.MSGPACK,
        kind=reduce(or_, RIGHTS)
    ),
    *(
        Decoder(
            f"answer: {type(question).__name__}", "submitter/questions.py",
            partial(questions.decode_answer, cast("questions.Question[Any]", question)), (Unreachable,), Form.MSGPACK,
            kind=questions.answer_type(type(question))
        )
        for question in (questions.ReadTasks(number=1), questions.DeriveJobs(), questions.ReadSettings())
    ),
    Decoder("history", "procedures/history.py", history.decode_summary, (DataLost,), Form.JSON, kind=JobView, sample=_VIEW),
    Decoder("ending in the history", "procedures/history.py", history.decode_ending, (DataLost,), Form.JSON, kind=JobView, sample=_VIEW),
    Decoder("written today", "daemons/service/keepers.py", keepers.decode_written, (DataLost,), Form.JSON, kind=keepers.WrittenToday),
    Decoder(
        "records of policies", "daemons/leader/placement/job_table.py", placing.decode_records, (msgspec.DecodeError,), Form.MSGPACK,
        kind=placing.Records
    ),
    *(
        Decoder(name, "daemons/starter/checkpoint/files.py", decode, (DataLost,), Form.JSON, kind=kind)
        for name, decode, kind in (
            ("files of a checkpoint", files.decode_files, tuple[files.FileEntry, ...]),
            ("manifest", files.decode_manifest, files.Manifest),
            ("head of a manifest", files.decode_head, files.ManifestHead),
        )
    ),
    Decoder(
        "arguments in a row", "daemons/starter/core/fetch.py", lambda data: fetch.decode("args/1/0", data, Path("/nowhere")), (DataLost,),
        Form.MSGPACK, kind=tuple[bytes, ...]
    ),
    Decoder(
        "first line of a rank", "daemons/starter/jobs/ranks.py", starter_ranks.node_in, (NotFound,), Form.JSON, sample=b'{"node":"n1"}'
    ),
    Decoder(
        "frames of ranks", "runner/ranks/ranks.py", lambda data: [ranks.usage_of(rest) for _, _, rest in ranks.Cutter().feed(data)],
        (ranks.FrameTooLong,), Form.BYTES, sample=ranks.frame(ranks.USED, 1, b"1000 77") + ranks.frame(ranks.OUT, 2, b"text")
    ),
    Decoder(
        "error of a peer", "adapters/access/auth.py", _text(lambda text: rebuild(_Told(text), "gateway:1")), (), Form.JSON,
        sample=b'{"type":"NotFound","hint":"rmgr jobs"}'
    ),
    Decoder("token", "adapters/identity/invitation.py", _text(invitation.decode), (UsageError,), Form.BYTES, sample=b"rmgr-join-AAAA"),
    Decoder("files of a bundle", "adapters/identity/invitation.py", _files_of, (UsageError,), Form.MSGPACK, kind=dict[str, bytes]),
    Decoder("answer of a leader", "adapters/rpc/convert.py", _text(_asked), (Unreachable,), Form.JSON, sample=b'{"a":1}'),
    Decoder(
        "stored pipeline", "model/queue.py", _text(lambda text: PipelineSpec(partition="p", document=text).tables()),
        (ConfigError,), Form.JSON, sample=b'{"stage":[{"policy":"easy"}]}'
    ),
    Decoder(
        "file of a policy", "adapters/policy_files.py", _in_file("p.toml", policy_files.read_toml), (ConfigError,), Form.TOML,
        sample=b'[[stage]]\npolicy = "easy"\n'
    ),
    Decoder("configuration", "config.py", _in_file("c.toml", config.check_file), (ConfigError,), Form.TOML, sample=_CONFIG),
    Decoder(
        "settings", "cli/control/settings.py", _text(lambda text: parse_settings(text, "s.toml")), (ConfigError, UsageError), Form.TOML,
        sample=_TOML
    ),
    Decoder(
        "list of jobs (JSON)", "cli/submit/jobs_file.py", _in_file("j.jsonl", lambda path: jobs_file.raw_jobs(str(path), "j")),
        (UsageError,), Form.JSON, sample=_JOBS
    ),
    Decoder(
        "list of jobs (TOML)", "cli/submit/jobs_file.py", _in_file("j.toml", lambda path: jobs_file.raw_jobs(str(path), "j")),
        (UsageError,), Form.TOML, sample=b'[defaults]\ncpus = 1\n[[job]]\ncommand = "echo hello"\n'
    ),
    Decoder(
        "kept record of rmgr dev", "dev/keeper.py", _in_file("cluster.json", lambda path: keeper.read_state(path.parent)), (), Form.JSON,
        sample=b'{"directory":"/x","processes":[{"role":"keeper","name":"k","pid":1}]}'
    ),
    Decoder(
        "kept fates of rmgr dev", "dev/keeper.py",
        _in_file("fates.json", lambda path: (keeper.read_fates(path.parent), keeper.read_recipes(path.parent))), (), Form.JSON,
        sample=b'{"zk1":{"starts":1}}'
    ),
    Decoder("log of a leader", "sched/state/event_log.py", _text(event_log.decode), (event_log.LogError,), Form.JSON, sample=_LOG),
    *(
        Decoder(name, "runner/python/served.py", decode, (ValueError,), Form.JSON, kind=kind)
        for name, decode, kind in (
            ("how a call ended", served.answer_of, served.Answer),
            ("which functions can be called", served.found_of, served.Found),
        )
    ),
    Decoder(
        "functions of a server", "model/interface.py", _text(lambda text: interface.read_functions(text, "f.toml")), (ConfigError,),
        Form.TOML,
        sample=b'[[function]]\nname = "f"\ncall = "m:f"\narguments = ["in A float64[n,2*n]"]\noperations = "2/3*n**3 + log2(n)"\n'
    ),
    Decoder(
        "the interface of a function", "model/interface.py", interface.decode_interface, (ConfigError,), Form.JSON,
        sample=b'{"arguments":["in n int"],"idempotent":false,"name":"f","operations":"n","version":1}'
    ),
    Decoder(
        "values of a call", "model/arrays.py", arrays.decode, (arrays.ArraysError, UsageError), Form.BYTES,  # without numpy
        sample=b"".join(arrays.encode([7, 2.5, "text", b"bytes"]))
    ),
    Decoder("scenario", "sim/calls/scenario.py", _in_file("s.toml", scenario.read_scenario), (UsageError,), Form.TOML, sample=_SCENARIO),
    Decoder("output of a run", "sim/plots/reading.py", _in_file("r.json", reading.read_json), (UsageError,), Form.JSON),
    Decoder("events of a run", "sim/workload/events.py", _in_file("e.jsonl", events.read_events), (UsageError,), Form.JSON, sample=_EVENT),
)
