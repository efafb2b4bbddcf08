"""Names below the public surface of libraries that rmgr uses: all of them are listed here, and each must be there as it was.

Who lifts a pin in pyproject.toml runs this file first: it names what is gone, and who needs it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.places import ROOT

ZK = "adapters/zookeeper/client.py"
CASSANDRA = "adapters/cassandra/driver.py"


class Private(NamedTuple):
    """One name. takes: its parameters after `self`, None: it is no function. used: the file of rmgr that needs it."""

    name: str
    used: str
    takes: tuple[str, ...] | None = None


_CONNECTION = "kazoo.protocol.connection:ConnectionHandler"
_CLIENT = "kazoo.client:KazooClient"
#: By whose they are, "module:class" or "module". The whole list: what is not here is not used.
PRIVATE: dict[str, tuple[Private, ...]] = {
    "kazoo.protocol.connection": tuple(Private(name, ZK) for name in ("CLOSE_RESPONSE", "PING_XID", "WATCH_XID", "ConnectionHandler")),
    _CONNECTION: (
        *(Private(name, ZK) for name in ("_socket", "_read_sock", "_write_sock", "ping_outstanding", "_socket_error_handling")),
        Private("_expand_client_hosts", ZK, ()),
        Private("_connect", ZK, ("host", "hostip", "port")),
        Private("_invoke", ZK, ("timeout", "request", "xid")),
        Private("_send_ping", ZK, ("connect_timeout",)),
        Private("_send_request", ZK, ("read_timeout", "connect_timeout")),
        Private("_write", ZK, ("msg", "timeout")),
        Private("_read_socket", ZK, ("read_timeout",)),
        Private("_read_watch_event", ZK, ("buffer", "offset")),
        Private("_read_response", ZK, ("header", "buffer", "offset")),
    ),
    _CLIENT: (
        *(Private(name, ZK) for name in ("_connection", "_conn_retry", "_queue", "_pending", "_state", "_session_id", "_session_passwd")),
        Private("last_zxid", ZK),
        Private("_session_callback", ZK, ("state",)),
    ),
    "kazoo.handlers.threading:SequentialThreadingHandler": (Private("_running", ZK), Private("dispatch_callback", ZK, ("callback",))),
    "kazoo.protocol.serialization": tuple(
        Private(name, ZK) for name in ("Create", "Exists", "GetACL", "GetChildren", "GetData", "ReplyHeader", "SetACL", "Sync")
    ),
    "kazoo.exceptions": (Private("EXCEPTIONS", ZK),),
    "cassandra.cluster:ResponseFuture": tuple(Private(name, CASSANDRA) for name in ("_final_result", "_timer", "message", "query_plan")),
    "cassandra.cluster:_Scheduler": (Private("_executor", "adapters/cassandra/link.py"),),
    "click:Parameter": (Private("_custom_shell_complete", "cli/session/command.py"),),
    "cloudpickle.cloudpickle": (
        *(
            Private(name, "runner/program.py")
            for name in (
                *("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID", "_PICKLE_BY_VALUE_MODULES"),
                *("_code_reduce", "_function_getstate"),
            )
        ),
        Private("_class_setstate", "runner/program.py", ("obj", "state")),
        Private("_dynamic_class_reduce", "runner/program.py", ("obj",)),
        Private("_lookup_class_or_track", "runner/program.py", ("class_tracker_id", "class_def")),
        Private(
            "_make_skeleton_class", "runner/program.py", ("type_constructor", "name", "bases", "type_kwargs", "class_tracker_id", "extra")
        ),
    ),
    "concurrent.futures._base": tuple(
        Private(name, "client/futures.py") for name in ("CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED", "PENDING")
    ),
    "threading": (Private("_register_atexit", "client/connection.py", ("func", "arg", "kwargs")),),
}
#: The classes of kazoo that those of `adapters/zookeeper/client.py` derive from, and their files.
_DERIVED_FROM = {
    "KazooClient": "client.py",
    "ConnectionHandler": "protocol/connection.py",
    "SequentialThreadingHandler": "handlers/threading.py",
}


def owner_of(where: str) -> object:
    module, _, name = where.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def is_there(owner: object, name: str) -> bool:
    """As an attribute, or as one that the methods of a class give to its objects."""
    if hasattr(owner, name):
        return True
    if not inspect.isclass(owner):
        return False
    compiled = Path(inspect.getfile(importlib.import_module(owner.__module__)))  # Cassandra's driver is, and brings its sources along
    source = compiled.with_name(f"{compiled.name.partition('.')[0]}.py").read_text(encoding="utf-8")
    return re.search(rf"self\.{name}\b(?:, self\.\w+)* = ", source) is not None


@pytest.mark.parametrize("where", PRIVATE)
def test_each_private_name_of_a_library_is_there_with_the_same_parameters(where: str) -> None:
    if where.startswith("cassandra."):
        pytest.importorskip("cassandra")
    library = where.split(".", maxsplit=1)[0].split(":", maxsplit=1)[0]
    owner = owner_of(where)
    gone = []
    for private in PRIVATE[where]:
        if not is_there(owner, private.name):
            gone.append(f"{where} has no {private.name} any more; rmgr/{private.used} uses it")
        elif private.takes is not None:
            takes = tuple(name for name in inspect.signature(getattr(owner, private.name)).parameters if name != "self")
            if takes != private.takes:
                gone.append(f"{where}.{private.name} takes {takes} now, not {private.takes}; rmgr/{private.used} overrides or calls it")
    installed = metadata.version(library) if library in {"kazoo", "click"} else "the installed release"
    assert gone == [], (
        f"{library} {installed} is not what rmgr was written for: mend those files, or pin the release before in pyproject.toml"
    )


def test_what_the_zookeeper_adapter_uses_of_kazoo_is_in_the_list() -> None:
    kazoo = Path(inspect.getfile(importlib.import_module("kazoo"))).parent
    theirs = {
        name
        for file in _DERIVED_FROM.values()
        for name in re.findall(r"(?:self\.|def )(_[a-z]\w*)", (kazoo / file).read_text(encoding="utf-8"))
    }  # fmt: skip
    classes = [node for node in ast.parse((ROOT / "rmgr" / ZK).read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    derived = [node for one in classes if {ast.unparse(base) for base in one.bases} & _DERIVED_FROM.keys() for node in ast.walk(one)]
    named = {node.attr for node in derived if isinstance(node, ast.Attribute)}
    named |= {node.name for node in derived if isinstance(node, ast.FunctionDef)}
    assert named
    listed = {private.name for where, names in PRIVATE.items() if where.startswith("kazoo") for private in names}
    assert theirs & named <= listed, "these are kazoo's own private names: list them here, or call what is ours otherwise"


def test_what_may_look_into_others_is_in_the_list_or_rmgrs_own() -> None:
    """Lines that the linter was told to let pass (SLF001) touch a listed name, or say that the class is their own."""
    names = {private.name for names in PRIVATE.values() for private in names}
    found = []
    for path in sorted((ROOT / "rmgr").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if "# noqa: SLF001" not in line or re.search(r"\b(?:own|this|same|as above)\b", line.partition("# noqa")[2]):
                continue
            if not names & set(re.findall(r"\b_\w+", line)):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []


def test_kazoo_is_pinned_to_the_minor_release_that_it_is_tested_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = next(one for one in project["dependencies"] if one.startswith("kazoo"))
    major, minor = metadata.version("kazoo").split(".")[:2]
    assert pinned == f"kazoo>={major}.{minor},<{major}.{int(minor) + 1}", "test with the new minor release before the pin is moved"
