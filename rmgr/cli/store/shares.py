"""`rmgr store share|unshare|shares|adopt`: who may read and write an owner's values, and owners for those that have none."""

from __future__ import annotations

from typing import Any

import click

from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.store.group import EXITS, store

_WITH = click.option("--with", "user", metavar="USER|all", required=True, help="a user, by the name in the certificate; all: every user")
_PREFIX = click.option("--prefix", "is_prefix", is_flag=True, help="all keys that begin so  [a name that ends in / is a prefix anyway]")


@command(
    "share",
    group=store,
    examples="""
    rmgr store share in/7 --with bob       bob may read it, and name it as an input of tasks
    rmgr store share in/ --with all        what you have, and will have, under in/
    rmgr store share out/ --with bob --write   bob may replace and delete it, too
    """,
    exits=EXITS,
)
@click.argument("key", metavar="KEY|PREFIX")
@_WITH
@_PREFIX
@click.option("--write", is_flag=True, help="they may replace and delete it, too")
def share(session: Session, key: str, user: str, is_prefix: bool, write: bool) -> None:
    """Lets others read values of yours, at once; with --write replace and delete them, within 2 s.

    Nothing of theirs under the same names becomes yours.

    What you pickled is loaded only by users who say that they trust you: get(KEY, trust=YOUR NAME) in Python.
    """
    from rmgr.cli.store import values

    with values.opened(session) as opened:
        opened.values.share(key, user, write=write, is_prefix=_is_prefix(key, is_prefix))
    if session.json:
        emit({"key": key, "prefix": _is_prefix(key, is_prefix), "user": user, "write": write})


@command(
    "unshare",
    group=store,
    examples="""
    rmgr store unshare in/ --with bob      as it was shared: the same key or prefix, the same user
    """,
    exits=EXITS,
)
@click.argument("key", metavar="KEY|PREFIX")
@_WITH
@_PREFIX
def unshare(session: Session, key: str, user: str, is_prefix: bool) -> None:
    """Takes back what `share` gave; it counts within 2 s. What was read is read; what they wrote into your keys is believed no more."""
    from rmgr.cli.store import values
    from rmgr.errors import NotFound

    with values.opened(session) as opened:
        if not opened.values.unshare(key, user, is_prefix=_is_prefix(key, is_prefix)):
            raise NotFound(f"{key!r} is not shared with {user}", hint="rmgr store shares lists what is")
    if session.json:
        emit({"key": key, "user": user})


@command("shares", group=store, examples="    rmgr store shares\n    rmgr store shares --json", exits=EXITS)
@click.option("--no-header", is_flag=True, help="no line of column names")
def shares(session: Session, no_header: bool) -> None:
    """Lists what you share, and what others share with you (operators: what anybody shares)."""
    from rmgr.cli.store import values

    with values.opened(session) as opened:
        found = opened.values.shares()
    if session.json:
        emit({"shares": [_as_json(one) for one in found]})
        return
    columns = [
        Column(name="OWNER", text=lambda one: one.owner, keep=True),
        Column(name="WITH", text=lambda one: _whom(one.user), keep=True),
        Column(name="MAY", text=lambda one: "write" if one.write else "read", keep=True),
        Column(name="KEY", text=lambda one: values.shown(one.key) + ("*" if one.is_prefix else ""), is_id=True),
    ]
    table(found, columns, Layout(header=not no_header))


@command(
    "adopt",
    group=store,
    examples="""
    rmgr store adopt in/7 --owner ann      a value that an earlier release wrote
    rmgr store adopt --prefix in/ --owner ann
    """,
    exits=EXITS,
)
@click.argument("keys", nargs=-1, metavar="KEY...")
@click.option("--prefix", metavar="PREFIX", help="all that nobody owns and begins with PREFIX")
@click.option("--owner", metavar="USER", help="whose it is from now on  [yours]")
def adopt(session: Session, keys: tuple[str, ...], prefix: str | None, owner: str | None) -> None:
    """Gives values an owner that have none: those that were written before values had owners. For operators."""
    from rmgr.cli.store import values
    from rmgr.errors import UsageError

    if not (keys or prefix):
        raise UsageError("what is to be adopted?", hint="name keys, or a --prefix that is not empty")
    with values.opened(session) as opened:
        wanted = [*keys, *(values.names(opened, prefix, after="", limit=None) if prefix else ())]
        adopted = [key for key in wanted if opened.values.adopt(key, owner or "", only_nobodys=key not in keys)]
    if session.json:
        emit({"adopted": adopted})


def _is_prefix(key: str, said: bool) -> bool:
    return said or key.endswith("/")


def _whom(user: str) -> str:
    return "all" if user == "*" else user


def _as_json(one: Any) -> dict[str, Any]:
    return {"owner": one.owner, "user": _whom(one.user), "key": one.key, "prefix": one.is_prefix, "write": one.write}
