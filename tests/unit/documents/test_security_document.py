"""SECURITY.md names each attacker, the defence, the test that shows it, and every module that decodes data."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.harness.decoders import DECODERS
from tests.harness.run_stages import long_tests
from tests.places import ROOT, TESTS

ATTACKS_HEAD = "| who | could try | what stops it | test |"
WHO = {"nobody", "user", "task", "Starter", "WatchDog", "store", "ZooKeeper", "gateway", "server"}
_NAMED = re.compile(r"`([a-z]+/[\w/]*\btest_\w+\.py)::(test_\w+)`")


def lines() -> list[list[str]]:
    """The table's cells, line by line."""
    document = (TESTS.parent / "SECURITY.md").read_text()
    assert document.count(ATTACKS_HEAD) == 1
    body = document.split(ATTACKS_HEAD, 1)[1].lstrip("\n").splitlines()[1:]
    end = next(number for number, line in enumerate(body) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the functions of a file of tests."""
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_line_says_who_what_and_what_stops_it() -> None:
    found = lines()
    for cells in found:
        assert len(cells) == 4, cells
        assert all(cells), cells
        assert set(cells[0].split(", ")) <= WHO, cells
    assert {who for cells in found for who in cells[0].split(", ")} == WHO
    said = [tuple(cells[:2]) for cells in found]
    assert len(set(said)) == len(said)


def test_every_test_that_is_named_is_there() -> None:
    missing = []
    for cells in lines():
        named = _NAMED.findall(cells[3])
        rest = _NAMED.sub("", cells[3]).replace("**open**", "").strip(", ")
        assert not rest, f"tests are named as `folder/room/test_file.py::test_name`, or **open**: {cells[3]}"
        assert named or "**open**" in cells[3], cells
        missing += [f"{file}::{name}" for file, name in named if not (TESTS / file).exists() or name not in functions_of(file)]
    assert not missing, f"SECURITY.md names tests that are not there: {missing}"


def test_the_daily_run_shows_every_line() -> None:
    named = [(cells[1], _NAMED.findall(cells[3])) for cells in lines()]
    without = [what for what, tests in named if tests and all(name in long_tests(TESTS / file) for file, name in tests)]
    assert without == [], "tests/long.sh alone runs their tests: mark one of them `long` no more, or write a short one"


DECODERS_HEAD = "| what | decoder | bytes | depth | values | what cannot be read |"
_MODULES = {"json", "tomllib", "pickle", "cloudpickle", "marshal", "msgspec", "msgspec.json", "msgspec.msgpack", "yaml"}
_MODULES |= {"rmgr.model.stream", "rmgr.runner.unpickling"}
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
    "daemons/gateway/rows.py": _GRPC,
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
    "runner/pickles.py": _OWN,
    "runner/python/calls.py": _OWN,
    "runner/python/rank_call.py": _OWN,
    "runner/python/worker.py": _OWN,
    "runner/unpickling.py": _OWN,
    "runner/ranks/terminal.py": _OWN,
    "runner/remote.py": _OWN,
    "runner/settings.py": _OWN,
    "sched/vetting.py": _SELF,
    "sim/runs/experiment.py": _SELF,
}
#: In the table, and not in `tests/harness/decoders.py`, because they decode in the midst of a connection, or the same as another one.
NOT_ALONE = {
    "adapters/identity/credentials.py", "adapters/rpc/thin.py", "adapters/rpc/services.py", "cli/calls.py", "cli/dev.py",
    "daemons/gateway/calls.py", "daemons/leader/placement/passes.py",
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
    assert document.count(DECODERS_HEAD) == 1
    body = document.split(DECODERS_HEAD, 1)[1].lstrip("\n").splitlines()[1:]
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
        "from rmgr.model.stream import json_decoder",
        "import pickle\npickle.Unpickler(file).load()",
        "answer.ParseFromString(data)",
        "_HEAD.unpack_from(buffer, 4)",
    ):
        assert decodes(source), source
    assert not decodes("import json\njson.dumps({}); data.decode(); credentials.load(1)")
