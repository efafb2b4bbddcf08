"""SECURITY.md says what is decoded: every module that decodes something is in its table, or below with the reason why not."""

from __future__ import annotations

import ast
import re

from tests.harness.decoders import DECODERS
from tests.places import ROOT

HEAD = "| what | decoder | bytes | depth | values | what cannot be read |"
_MODULES = {"json", "tomllib", "pickle", "cloudpickle", "marshal", "msgspec", "msgspec.json", "msgspec.msgpack", "yaml"}
_MODULES |= {"rmgr.model.wire.stream"}
_FUNCTIONS = {"loads", "load", "decode", "Decoder", "convert", "Unpickler", "json_decoder", "msgpack_decoder"}
#: Of objects: protobuf, struct.
_METHODS = {"ParseFromString", "MergeFromString", "FromString", "unpack", "unpack_from", "iter_unpack", "literal_eval"}

_OWN = "the process of a user's own work decodes what that user wrote"
_SELF = "it reads what it, or its own parent, has written"
_ZOOKEEPER = "ZooKeeper's own answers: its word is the cluster's state"
_GRPC = "gRPC itself decodes with it, 4 MiB and 100 levels at most; a message that cannot be read ends its call"
_BENCH = "a bench, and its own children"
#: Modules that decode, and meet nobody else's bytes.
EXEMPT = {
    "adapters/calls/relay.py": _GRPC,
    "adapters/gateway/rows.py": _GRPC,
    "adapters/gateway/talk.py": _GRPC,
    "adapters/rpc/join.py": _GRPC,
    "adapters/rpc/services.py": _GRPC,
    "adapters/rpc/ranks.py": _GRPC,
    "adapters/terminals.py": _GRPC,
    "adapters/host/leftovers.py": "files of the Starter in its own directory (mode 0700); what cannot be read is as none",
    "adapters/rpc/port_guard.py": "a number of the kernel",
    "adapters/zookeeper/wire.py": _ZOOKEEPER,
    "adapters/zookeeper/client.py": _ZOOKEEPER,
    "adapters/zookeeper/server.py": _ZOOKEEPER,
    "bench/gang.py": _BENCH,
    "bench/load/processes.py": _BENCH,
    "bench/load/silent_starters.py": _BENCH,
    "bench/load/virtual_starters.py": _BENCH,
    "bench/jobs.py": _BENCH,
    "bench/store.py": _BENCH,
    "bench/tasks.py": _BENCH,
    "checkpoint.py": _OWN,
    "cli/policy/laws.py": _SELF,
    "client/futures.py": _OWN,
    "client/pickling.py": _OWN,
    "daemons/leader/placement/plugin_child.py": _SELF,
    "runner/host/privileges.py": _SELF,
    "runner/python/calls.py": _OWN,
    "runner/python/rank_call.py": _OWN,
    "runner/python/worker.py": _OWN,
    "runner/program.py": _OWN,
    "runner/ranks/terminal.py": _OWN,
    "runner/remote.py": _OWN,
    "sched/vetting.py": _SELF,
    "sim/runs/experiment.py": _SELF,
}
#: In the table, and not in `tests/harness/decoders.py`, because they decode in the midst of a connection, or the same as another one.
NOT_ALONE = {
    "adapters/identity/credentials.py",
    "adapters/rpc/thin.py",
    "adapters/rpc/use.py",
    "cli/calls.py",
    "cli/dev.py",
    "daemons/gateway/calls.py",
    "daemons/leader/placement/passes.py",
}


def decodes(source: str) -> bool:
    """Something in it is made of bytes or text by a decoder of a library."""
    if not any(word in source for word in (*_METHODS, *(module.rpartition(".")[2] for module in _MODULES))):
        return False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            if node.attr in _METHODS or (node.attr in _FUNCTIONS and ast.unparse(node.value) in _MODULES):
                return True
        elif isinstance(node, ast.ImportFrom) and node.module in _MODULES | {"struct", "ast"} and names_in(node) & (_FUNCTIONS | _METHODS):
            return True
    return False


def names_in(node: ast.ImportFrom) -> set[str]:
    """What an import takes of its module."""
    return {name.name for name in node.names}


def modules() -> set[str]:
    """Those that decode. Generated code of gRPC is not ours."""
    found = (path for path in (ROOT / "rmgr").rglob("*.py") if not path.match("*_pb2*.py"))
    return {str(path.relative_to(ROOT / "rmgr")) for path in found if decodes(path.read_text())}


def table() -> dict[str, list[str]]:
    """The cells of each line, by its module."""
    document = (ROOT / "SECURITY.md").read_text()
    assert document.count(HEAD) == 1
    body = document.split(HEAD, 1)[1].lstrip("\n").splitlines()[1:]
    end = next(number for number, line in enumerate(body) if not line.startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]
    assert all(len(cells) == 6 and all(cells) and re.fullmatch(r"`[\w/]+\.py`", cells[1]) for cells in rows), rows
    assert len({cells[1] for cells in rows}) == len(rows)
    return {cells[1].strip("`"): cells for cells in rows}


def test_every_module_that_decodes_is_in_the_table_or_has_a_reason_and_no_other() -> None:
    listed, found = set(table()), modules()
    assert not listed & set(EXEMPT)
    missing = sorted(found - listed - set(EXEMPT))
    assert not missing, f'they decode: a line of SECURITY.md, "What is decoded", says within which bounds: {missing}'
    gone = sorted((listed | set(EXEMPT)) - found)
    assert not gone, f"they decode nothing: {gone}"


def test_every_decoder_of_the_table_is_fuzzed() -> None:
    assert {decoder.module for decoder in DECODERS} | NOT_ALONE == set(table())
    assert not {decoder.module for decoder in DECODERS} & NOT_ALONE


def test_all_ways_to_decode_are_seen() -> None:
    for source in (
        "import msgspec\nx = msgspec.msgpack.Decoder(int)",
        "import msgspec\nmsgspec.json.decode(b'', type=int)",
        "import json\nparse = json.loads",
        "from json import loads",
        "from rmgr.model.wire.stream import json_decoder",
        "import pickle\npickle.Unpickler(file).load()",
        "answer.ParseFromString(data)",
        "_HEAD.unpack_from(buffer, 4)",
    ):
        assert decodes(source), source
    assert not decodes("import json\njson.dumps({}); data.decode(); credentials.load(1)")
