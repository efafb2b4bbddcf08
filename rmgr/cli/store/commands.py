"""`rmgr store ls|put|get|rm|du`: values in the data store from the shell, under the keys that their users gave them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session.command import command, command_group
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import DURATION
from rmgr.model.base.units import format_size

if TYPE_CHECKING:
    from rmgr.cli.store.values import KeyEntry

_WITH = click.option("--with", "user", metavar="USER|all", required=True, help="a user, by the name in the certificate; all: every user")
_PREFIX = click.option("--prefix", "is_prefix", is_flag=True, help="all keys that begin so  [a name that ends in / is a prefix anyway]")
EXITS = "0 ok, 2 usage, 3 no such key, 4 somebody else's, 5 store unavailable, 6 --timeout ran out, 125 the stored value is damaged"


@command_group(
    "store",
    examples="""
    rmgr store put in/7 water.xyz          a file under the key in/7
    rmgr store ls out/                     keys that begin with out/
    rmgr store get out/7 -o energy.txt     a value into a file
    rmgr store du                          how many values, how many bytes
    rmgr store share in/ --with bob        bob may read what you have under in/
    """,
)
def store(_session: Session) -> None:
    """Values in the data store: inputs and outputs of tasks, by key.

    In a secured cluster a value belongs to the user who put it first, an output to the user of its task: others neither read
    nor write it, nor name it in their tasks, unless the owner shares it.
    """


@command(
    "ls",
    group=store,
    examples="""
    rmgr store ls                          every key, one a line
    rmgr store ls -l out/                  with size, kind and owner
    rmgr store ls --after out/0999 -n 100  the next page
    rmgr store ls --json out/ | jq -r '.keys[].key'
    """,
    exits=EXITS,
)
@click.argument("prefix", default="")
@click.option("-l", "--long", "long_form", is_flag=True, help="show size, kind and owner")
@click.option("--after", metavar="KEY", default="", help="only keys behind this one")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="at most N keys  [all]")
@click.option("--no-header", is_flag=True, help="with -l: no line of column names")
def ls(session: Session, prefix: str, long_form: bool, after: str, limit: int | None, no_header: bool) -> None:
    """Lists keys that begin with PREFIX, in order."""
    from rmgr.cli.store import values

    with values.opened(session) as opened:
        if session.json:
            entries, following = values.page(opened, prefix, after=after, limit=limit)
            emit({"keys": [values.as_json(entry) for entry in entries], "next": following})
        elif long_form:
            entries, _ = values.page(opened, prefix, after=after, limit=limit)
            table(entries, _columns(owners=opened.deeds is not None), Layout(header=not no_header))
        else:
            for key in values.names(opened, prefix, after=after, limit=limit):
                sys.stdout.write(f"{values.shown(key)}\n")


@command(
    "put",
    group=store,
    examples="""
    rmgr store put in/7 water.xyz          the contents of a file
    echo 42 | rmgr store put answer        what stands on stdin
    rmgr store put in/8 --value 'H 0 0 0'  a text
    rmgr store put in/7 new.xyz --no-overwrite
    rmgr store put tmp/7 part.dat --ttl 7d gone after a week
    """,
    exits=EXITS + ", 1 the key exists (--no-overwrite), 7 over 5 GiB",
)
@click.argument("key")
@click.argument("source", metavar="[FILE|-]", default="-", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--value", metavar="TEXT", help="this text instead of a file")
@click.option("--overwrite/--no-overwrite", default=True, help="replace an existing value, or refuse  [replace]")
@click.option("--ttl", "ttl_s", type=DURATION, metavar="DURATION", help="the value expires after this time  [never]")
def put(session: Session, key: str, source: Path, value: str | None, overwrite: bool, ttl_s: float | None) -> None:
    """Stores a file, what stands on stdin, or a text under KEY, as the bytes they are. It stays until it is removed, or for --ttl."""
    from rmgr.cli.store import values

    given = values.parts_of(source) if value is None else iter([value.encode("utf-8", "surrogateescape")])
    with values.opened(session) as opened:
        size = values.put(opened, key, given, overwrite=overwrite, ttl_s=ttl_s)
    if session.json:
        emit({"key": key, "bytes": size})


@command(
    "get",
    group=store,
    examples="""
    rmgr store get out/7                   to stdout
    rmgr store get out/7 -o energy.txt     to a file
    """,
    exits=EXITS,
)
@click.argument("key")
@click.option("-o", "--output", "target", metavar="FILE", type=click.Path(path_type=Path), help="write to this file")
def get(session: Session, key: str, target: Path | None) -> None:
    """Writes the value of KEY to stdout or a file, as the bytes that were stored.

    A Python object is stored pickled: read it with rmgr.connect().store.get(KEY), or keep the pickle with -o or a pipe.
    """
    from rmgr.cli.store import values

    with values.opened(session) as opened:
        found = values.find(opened, key)
        if target is not None:
            size = values.write_file(found, target)
            if session.json:
                emit({"key": key, "bytes": size, "encoding": found.encoding.value, "file": str(target)})
        elif session.json:
            emit({"key": key, **values.content_as_json(found)})
        else:
            values.refuse_on_terminal(found, sys.stdout)
            for part in found.parts():
                sys.stdout.buffer.write(part)


@command(
    "rm",
    group=store,
    examples="""
    rmgr store rm in/7 in/8
    rmgr store rm -f in/7                  no error if it is not there
    rmgr store rm --prefix tmp/            everything that begins with tmp/
    """,
    exits=EXITS,
)
@click.argument("keys", nargs=-1, metavar="KEY...")
@click.option("--prefix", metavar="PREFIX", help="everything that begins with PREFIX")
@click.option("-f", "--force", is_flag=True, help="keys that are not there are no error")
def rm(session: Session, keys: tuple[str, ...], prefix: str | None, force: bool) -> None:
    """Deletes values."""
    from rmgr.cli.store import values
    from rmgr.errors import NotFound, UsageError

    if prefix == "" or not (keys or prefix):
        raise UsageError("what is to be deleted?", hint="name keys, or a --prefix that is not empty")
    with values.opened(session) as opened:
        deleted, missing = values.remove(opened, keys, prefix)
    if session.json and not (missing and not force):
        emit({"deleted": deleted, "missing": missing})
    if missing and not force:
        raise NotFound(f"no such key: {', '.join(missing)}", hint=f"{len(deleted)} deleted; rmgr store ls lists what is there")


@command(
    "du",
    group=store,
    examples="""
    rmgr store du                          all values of users
    rmgr store du out/                     those that begin with out/
    rmgr store du --all                    and what rmgr keeps itself: results, logs, functions, history
    rmgr store du --by-user                the same by user: whose work it belongs to
    """,
    exits=EXITS,
)
@click.argument("prefix", default="")
@click.option("-a", "--all", "everything", is_flag=True, help="by kind of row, rmgr's own too")
@click.option("-u", "--by-user", is_flag=True, help="by user; (shared): named values, code, uploads")
def du(session: Session, prefix: str, everything: bool, by_user: bool) -> None:
    """Counts values and their bytes."""
    from rmgr.cli.store import values
    from rmgr.cli.store import values as usages
    from rmgr.errors import UsageError

    if (everything or by_user) and prefix:
        raise UsageError("--all and --by-user go without a prefix")
    if everything and by_user:
        raise UsageError("one of --all and --by-user")
    with values.opened(session) as opened:
        if by_user:
            rows = usages.usage_by_user(opened, usages.LiveOwners(session))
        else:
            rows = usages.usage_by_family(opened) if everything else [usages.usage(opened, prefix)]
    if session.json:
        total = {"values": sum(row.count for row in rows), "bytes": sum(row.size for row in rows)}
        named, name = ("users", "user") if by_user else ("kinds", "kind")
        parts = [{name: row.kind, "values": row.count, "bytes": row.size} for row in rows]
        emit({"prefix": prefix, **total, **({named: parts} if everything or by_user else {})})
        return
    columns = [
        Column(name="VALUES", text=lambda row: str(row.count), right=True, keep=True),
        Column(name="SIZE", text=lambda row: format_size(row.size), right=True, keep=True),
        Column(name="USER" if by_user else "KIND", text=lambda row: row.kind, is_id=True),
    ]
    table(rows, columns, Layout())


def _columns(*, owners: bool) -> list[Column]:
    def size(entry: KeyEntry) -> str:
        return format_size(entry.size) if entry.size is not None else ""

    return [
        Column(name="SIZE", text=size, right=True, keep=True),
        Column(name="KIND", text=lambda entry: entry.kind, keep=True),
        *([Column(name="OWNER", text=lambda entry: entry.owner or "-", keep=True)] if owners else []),
        Column(name="KEY", text=lambda entry: entry.key, is_id=True),
    ]


# -- whose values are: who may read and write an owner's, and owners for those that have none ----------------------------------


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
