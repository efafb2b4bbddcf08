"""Parts of daemons, client and command line ask for what they need: by protocols of few names, never for the one who owns them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.test_house import PACKAGE, sources, tree_of
from tests.test_house_ratchets import module_of

#: Names of a protocol, those that it inherits among them.
MOST = 8

#: Owner -> the modules that may name it: where it is defined, and whoever makes it.
OWNERS = {
    "Query": {"cli.session.context", "client.queries.query"},
    "Placer": {"daemons.leader.placement.placer", "daemons.leader.term.leader"},
    "LeaderContext": {"daemons.leader.core.context", "daemons.leader.term.leader", "daemons.leader.watchdog"},
    "Leader": {"daemons.leader.term.leader", "daemons.leader.watchdog"},
    "SubmissionKeeper": {"daemons.leader.submissions.subs", "daemons.leader.term.leader"},
    "Followed": {"daemons.leader.submissions.follow", "daemons.leader.submissions.subs"},
    "Starter": {"daemons.starter.main", "daemons.starter.node.loop"},
    "NodeAgent": {"daemons.starter.main", "daemons.starter.node.loop", "daemons.starter.node.node"},
    "Engine": {"cli.sending.host", "client.connection", "client.submitter.engine"},
    "SubmissionHandle": {"client.submission.handle", "client.submitter.engine"},
}


def parts() -> list[Path]:
    return [path for path in sources() if path.relative_to(PACKAGE).parts[0] in {"cli", "client", "daemons"}]


@cache
def protocols() -> dict[str, tuple[list[str], set[str]]]:
    """Protocol -> (what it inherits from, names of its own)."""
    found = {}
    for path in parts():
        for node in ast.walk(tree_of(path)):
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.ClassDef) and any(base.startswith("Protocol") for base in bases):
                own = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                own |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
                found[node.name] = ([base for base in bases if not base.startswith("Protocol")], own)
    return found


def names_of(protocol: str) -> set[str]:
    """Its own, and those of the protocols that it inherits from."""
    bases, own = protocols().get(protocol, ([], set()))
    return own.union(*map(names_of, bases))


def named_in(path: Path) -> set[str]:
    """Every name that a module uses, those in annotations that are strings among them."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
    return found


def test_a_protocol_has_few_names() -> None:
    assert len(protocols()) > 20
    wide = {name: sorted(names_of(name)) for name in protocols() if len(names_of(name)) > MOST}
    assert wide == {}, f"more than {MOST} names: it is an owner by another name"


def test_owners_are_known_to_those_alone_who_make_them() -> None:
    found: dict[str, set[str]] = {owner: set() for owner in OWNERS}
    for path in parts():
        for owner in OWNERS.keys() & named_in(path):
            found[owner].add(module_of(path).removeprefix("rmgr."))
    assert found == OWNERS
