"""Every setting does something: each field of the configuration and of the cluster's settings is read by the code that obeys it.

Read means an attribute of that name (or `getattr` with it) outside of what defines, parses and prints settings. A method of
the defining class counts where somebody outside asks it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import rmgr
from rmgr import config
from rmgr.model.cluster import queue

ROOT = Path(rmgr.__file__).parent
#: Where settings are defined, parsed and printed: what is read there alone is obeyed by nobody.
_OWN = {"config.py", "model/cluster/queue.py", "cli/control/settings.py"}
#: Part of the format, not settings: `newer` carries what this release does not know, `extra` what no release does.
_FORMAT = {"format", "newer", "extra"}
KINDS = [*config._SECTIONS.values(), queue.QueueSpec, queue.PipelineSpec, queue.ClusterSettings]


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
    own = {str(path): ast.parse(path.read_text("utf-8")) for path in (ROOT / name for name in _OWN)}
    methods = {node.name for tree in own.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    fields = {field.name for kind in KINDS for field in dataclasses.fields(kind)}
    others = (path for path in ROOT.rglob("*.py") if str(path) not in own and path.parent.name != "v1")
    assert unread(KINDS, read_in((path.read_text("utf-8") for path in others), methods | fields), own) == []


def test_a_setting_that_only_its_printer_reads_is_found() -> None:
    source = "class Kind:\n  a: int\n  b: int\n  c: int\n  def used(self): return self.b\n  def unused(self): return self.c\n"
    kind = dataclasses.make_dataclass("Kind", [(name, int) for name in "abc"])
    assert unread([kind], {"used"}, {"kind.py": ast.parse(source)}) == ["Kind.a", "Kind.c"]
