"""What holds for the whole source: bounded reads, private names of libraries, settings that something obeys, words of numbers.

Whole values are for those who own them. No thread that owns a mailbox reads any. Who lifts a pin in pyproject.toml runs this file
first: it names which private name is gone, and who needs it. A setting is read where an attribute of that name (or `getattr` with it)
stands outside of what defines, parses and prints settings, or in a method of the defining class that somebody outside asks.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import rmgr
from rmgr import config
from rmgr.model import queue
from rmgr.model.units import counted, plural
from rmgr.sched.plan import Why
from tests.places import ROOT

_WHOLE = {"get", "get_many", "get_noted"}
_STORES = {"store", "_store"}
#: Files that read values whole, whatever their size, and why they may.
MAY = {"client/values.py": "values of the caller's own process, as large as it has asked for"}


#: Files of daemons with a mailbox that ask a store which they keep, and on whose thread. All others get it as the argument of a job.
ELSEWHERE = {
    "daemons/leader/term.py": "it gives it to jobs, on threads of its own",
    "daemons/service/keepers.py": "a thread of its own; at the start, before anything is served",
    "daemons/service/serving.py": "at the start, before anything is served",
    "daemons/starter/checkpoint/directories.py": "it gives it to the thread of a checkpoint, also of one for another node",
    "daemons/starter/core/io.py": "it gives it to jobs, on threads of its own; what `put_soon` begins waits for nothing, and reads nothing",
    "daemons/starter/node/service.py": "the thread of a call",
    "daemons/starter/staging/outputs.py": "the store of a job",
    "daemons/starter/staging/inputs.py": "a job's",
}


def own_asks(source: str) -> list[int]:
    """Lines where a store that is kept is asked for something, or given to a function."""
    found: list[int] = []
    if "store" not in source:
        return found
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        makes = ast.unparse(call.func).rpartition(".")[2].lstrip("_")[:1].isupper()
        given = [] if makes else [*call.args, *(keyword.value for keyword in call.keywords)]
        kept = [one for one in (target, *given) if isinstance(one, ast.Attribute) and one.attr in _STORES]
        if any(not ast.unparse(one).startswith("config.") for one in kept):
            found.append(call.lineno)
    return found


def whole_reads(source: str) -> list[int]:
    """Lines where a store is asked for a value of any size."""
    tree = ast.parse(source if "store" in source else "")
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return [call.lineno for call in calls if call.func.attr in _WHOLE and ast.unparse(call.func.value).rpartition(".")[2] in _STORES]  # type: ignore[attr-defined]


def test_no_value_of_any_size_is_read_where_others_may_have_written_it() -> None:
    rooms = [ROOT / "rmgr" / room for room in ("adapters", "cli", "client", "daemons", "procedures", "runtime")]
    found = {str(path.relative_to(ROOT / "rmgr")): whole_reads(path.read_text()) for room in rooms for path in room.rglob("*.py")}
    wrong = {file: lines for file, lines in found.items() if lines and file not in MAY}
    assert not wrong, f"`procedures/bounded.py` reads within bounds: {wrong}"
    assert all(found[file] for file in MAY), "they read nothing whole any more"


def test_no_owner_of_a_mailbox_reads_the_store_or_decodes_its_rows() -> None:
    rooms = [ROOT / "rmgr" / "daemons" / room for room in ("leader", "service", "starter")]
    found = {str(path.relative_to(ROOT / "rmgr")): own_asks(path.read_text()) for room in rooms for path in room.rglob("*.py")}
    wrong = {file: lines for file, lines in found.items() if lines and file not in ELSEWHERE}
    assert not wrong, f"a row has up to 64 MiB: a job reads it, on another thread (`StoreIO.run`, `Calls.store`): {wrong}"
    assert all(found[file] for file in ELSEWHERE), "they ask nothing any more"


def test_a_store_that_is_kept_and_asked_is_seen() -> None:
    assert own_asks("x = self._store.get_noted_many(rows)\nfound = page_at(self._shared.store, 1, 2)\nrun(job, to=self.store)") == [1, 2, 3]
    assert not own_asks("store.head(key)\nself.io = StoreIO(self.store)\nio.run(lambda store: store.head(key))\nmeet(config.cluster.store)")


def test_a_whole_read_is_seen() -> None:
    assert whole_reads("x = self._store.get(key, timeout_s=1)\nstore.get_noted(row)\nopened.store.get_many(rows)") == [1, 2, 3]
    assert not whole_reads("store.get_noted_many([row], largest=9); values.get(key); coordinator.get(path)")


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
    "click:Parameter": (Private("_custom_shell_complete", "cli/session/commands.py"),),
    "cloudpickle.cloudpickle": (
        *(Private(f"_DYNAMIC_CLASS_TRACKER_BY_{what}", "runner/unpickling.py") for what in ("CLASS", "ID")),
        *(Private(name, "runner/pickler.py") for name in ("_code_reduce", "_function_getstate")),
        Private("_PICKLE_BY_VALUE_MODULES", "runner/modules.py"),
        Private("_class_setstate", "runner/unpickling.py", ("obj", "state")),
        Private("_dynamic_class_reduce", "runner/pickler.py", ("obj",)),
        Private("_lookup_class_or_track", "runner/unpickling.py", ("class_tracker_id", "class_def")),
        Private(
            "_make_skeleton_class",
            "runner/unpickling.py",
            ("type_constructor", "name", "bases", "type_kwargs", "class_tracker_id", "extra"),
        ),
    ),
    "concurrent.futures._base": tuple(
        Private(name, "client/futures.py") for name in ("CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED", "PENDING")
    ),
    "concurrent.futures.thread:ThreadPoolExecutor": tuple(
        Private(name, "runner/pickler.py") for name in ("_max_workers", "_thread_name_prefix")
    ),
    "ctypes": (Private("_CFuncPtr", "runner/native.py"), Private("_Pointer", "runner/native.py")),
    "ctypes:CDLL": (Private("_name", "runner/native.py"), Private("_FuncPtr", "runner/native.py")),
    "ctypes:c_int": (Private("_objects", "runner/native.py"),),
    "logging": tuple(Private(name, "runner/settings.py") for name in ("_STYLES", "_warnings_showwarning")),
    "logging:Formatter": (Private("_style", "runner/settings.py"), Private("_fmt", "runner/settings.py")),
    "pickle": (Private("_Unpickler", "runner/unpickling.py"),),
    "threading": (Private("_register_atexit", "client/connection.py", ("func", "arg", "kwargs")),),
    "wrapt:FunctionWrapper": (Private("_self_wrapper", "runner/pickler.py"), Private("_self_enabled", "runner/pickler.py")),
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


PACKAGE = Path(rmgr.__file__).parent
#: Where settings are defined, parsed and printed: what is read there alone is obeyed by nobody.
_OWN = {"config.py", "model/queue.py", "cli/control/settings.py"}
#: Part of the format, not settings: `newer` carries what this release does not know, `extra` what no release does.
_FORMAT = {"format", "newer", "extra"}
KINDS = [*config.SECTIONS.values(), queue.QueueSpec, queue.PipelineSpec, queue.ClusterSettings]


def names_read(tree: ast.AST) -> set[str]:
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        is_getattr = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"getattr", "attrgetter"}
        if is_getattr and (last := node.args[-1] if len(node.args) == 1 else node.args[1]) and isinstance(last, ast.Constant):
            found.add(str(last.value))
    return found


def unread(kinds: list[type], outside: set[str], definitions: dict[str, ast.AST]) -> list[str]:
    """`Class.field` of each field that is neither read outside nor by a method that is."""
    missing = []
    for kind in kinds:
        methods = [
            part
            for tree in definitions.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__
            for part in node.body
            if isinstance(part, ast.FunctionDef)
        ]
        asked = set(outside)
        while more := [one for one in methods if one.name in asked and not names_read(one) <= asked]:
            asked.update(*map(names_read, more))
        missing += [f"{kind.__name__}.{field.name}" for field in dataclasses.fields(kind) if field.name not in asked | _FORMAT]
    return missing


def read_in(sources: Iterable[str], names: set[str]) -> set[str]:
    """Which of these names some source reads. One that has none of those which are still missing is not parsed: most are not."""
    found: set[str] = set()
    for source in sources:
        if any(name in source for name in names - found):
            found |= names_read(ast.parse(source)) & names
    return found


def test_every_setting_is_read_by_somebody_who_obeys_it() -> None:
    own = {str(path): ast.parse(path.read_text("utf-8")) for path in (PACKAGE / name for name in _OWN)}
    methods = {node.name for tree in own.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    fields = {field.name for kind in KINDS for field in dataclasses.fields(kind)}
    others = (path for path in PACKAGE.rglob("*.py") if str(path) not in own and path.parent.name != "v1")
    assert unread(KINDS, read_in((path.read_text("utf-8") for path in others), methods | fields), own) == []


def test_a_setting_that_only_its_printer_reads_is_found() -> None:
    source = "class Kind:\n  a: int\n  b: int\n  c: int\n  def used(self): return self.b\n  def unused(self): return self.c\n"
    kind = dataclasses.make_dataclass("Kind", [(name, int) for name in "abc"])
    assert unread([kind], {"used"}, {"kind.py": ast.parse(source)}) == ["Kind.a", "Kind.c"]


@pytest.mark.parametrize(
    ("noun", "one", "more"),
    [
        ("task", "1 task", "2,000 tasks"),
        ("process", "1 process", "2,000 processes"),
        ("policy", "1 policy", "2,000 policies"),
        ("day", "1 day", "2,000 days"),
    ],
)
def test_a_number_and_its_noun_agree(noun: str, one: str, more: str) -> None:
    assert (counted(1, noun), counted(2000, noun), plural(0, noun)) == (one, more, more.split()[1])


@pytest.mark.parametrize(
    ("text", "facts", "told"),
    [
        ("needs {} x {} cores, {} are free", (4, 1, 0), "needs 4 x 1 core, 0 are free"),
        ("needs {} x {} cores, {} are free", (1, 2, 1), "needs 1 x 2 cores, 1 are free"),
        ("room for {} such processes", (1,), "room for 1 such process"),
        ("user {} may run {} jobs at once", ("1", 1), "user 1 may run 1 job at once"),
    ],
)
def test_reasons_of_the_scheduler_agree(text: str, facts: tuple[object, ...], told: str) -> None:
    assert str(Why("rule", text, facts)) == f"rule: {told}"


@pytest.mark.parametrize("name", ["TaskQueue", "Executor", "connect"])
def test_every_parameter_is_told(name: str) -> None:
    what = getattr(rmgr, name)
    told = inspect.getdoc(what) or ""
    parameters = set(inspect.signature(what).parameters) - {"self"}
    assert parameters
    assert {one for one in parameters if re.search(rf"\b{one}\b", told) is None} == set()


def test_hooks_run_the_tools_of_the_environment_on_files_that_there_are() -> None:
    document = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {repo["repo"] for repo in document["repos"]} == {"local"}
    hooks = {hook["id"]: hook for repo in document["repos"] for hook in repo["hooks"]}
    assert list(hooks) == ["ruff", "mypy", "house"]
    for hook in hooks.values():
        python, flag, module, *words = shlex.split(hook["entry"])
        assert (python, flag, hook["language"]) == ("python", "-m", "system")
        assert importlib.util.find_spec(module) is not None
        assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []
