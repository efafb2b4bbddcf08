"""`rmgr store ls|put|get|rm|share|du`: values in the data store from the shell, under their users' keys; who may read them, and the space
they take.

The commands come first, then the plain functions over a data store that do the work. They must not touch queued or running work.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

from rmgr.cli.display.render import Column, Layout, emit, printable, table
from rmgr.cli.session import Session, command, command_group
from rmgr.cli.words.params import DURATION
from rmgr.client.specs import current_umask
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Encoding, Note, Store
from rmgr.errors import (
    CoordinationUnavailable,
    DataLost,
    NotConnected,
    NotFound,
    PermissionDenied,
    RmgrError,
    StateConflict,
    StoreUnavailable,
    UsageError,
)
from rmgr.model.units import counted, format_size

if TYPE_CHECKING:
    from rmgr.client.values import Values
    from rmgr.procedures.authentic import Deeds

_WITH = click.option("--with", "user", metavar="USER|all", required=True, help="a user, by the name in the certificate; all: every user")
_PREFIX = click.option("--prefix", "is_prefix", is_flag=True, help="all keys with this prefix  [a name that ends in / is always a prefix]")
EXITS = "0 ok, 2 usage, 3 no such key, 4 somebody else's, 5 store unavailable, 6 --timeout ran out, 125 the stored value is damaged"
_PAGE = 1000
_READ_BYTES = 1 << 20
_KINDS = {Encoding.RAW: "bytes", Encoding.PICKLE: "python", Encoding.POINTER: "output"}
#: Families of rows (coord/protocol/keys.py) and what they hold.
FAMILIES = {
    "name/": "values of users",
    "share/": "what users share",
    "final/": "outputs of collected work",
    "fn/": "functions",
    "mod/": "modules",
    "file/": "uploads",
    "args/": "arguments",
    "frag/": "results",
    "out/": "large results",
    "log/": "logs",
    "ckpt/": "checkpoints",
    "page/": "outcomes",
    "hist/": "history",
    "histu/": "history by user",
    "metric/": "measurements",
    "events/": "events of the scheduler",
    "picks/": "picks of servers for calls",
    "use/": "what users wrote today",
    "meta/": "the store itself",
}
#: Families whose rows belong to one submission each, by its number.
_OF_SUBMISSION = ("args/", "frag/", "out/", "log/", "ckpt/", "page/", "final/")
#: Labels for rows that belong to no single user, and for rows of submissions whose user is no longer known.
SHARED, UNKNOWN = "(shared)", "(unknown)"
_TOP = "\U0010ffff"


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
    """Handles values in the data store: inputs and outputs of tasks, by key.

    In a secured cluster a value belongs to the user who put it first, an output to the user of its task: other users can neither
    read nor write it, nor name it in their tasks, unless the owner shares it.
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
@click.option("--after", metavar="KEY", default="", help="only keys after this one")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="at most N keys  [all]")
@click.option("--no-header", is_flag=True, help="with -l: omit the header line")
def ls(session: Session, prefix: str, long_form: bool, after: str, limit: int | None, no_header: bool) -> None:
    """Lists keys that begin with PREFIX, in order."""

    with open_values(session) as opened:
        if session.json:
            entries, following = page(opened, prefix, after=after, limit=limit)
            emit({"keys": [as_json(entry) for entry in entries], "next": following})
        elif long_form:
            entries, _ = page(opened, prefix, after=after, limit=limit)
            table(entries, _columns(owners=opened.deeds is not None), Layout(header=not no_header))
        else:
            for key in names(opened, prefix, after=after, limit=limit):
                sys.stdout.write(f"{shown(key)}\n")


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
@click.option("--value", metavar="TEXT", help="store this text instead of a file")
@click.option("--overwrite/--no-overwrite", default=True, help="replace an existing value, or refuse  [replace]")
@click.option("--ttl", "ttl_s", type=DURATION, metavar="DURATION", help="the value expires after this time  [never]")
def put(session: Session, key: str, source: Path, value: str | None, overwrite: bool, ttl_s: float | None) -> None:
    """Stores a file, stdin, or a text under KEY, byte for byte. It stays until it is removed, or for --ttl."""

    given = parts_of(source) if value is None else iter([value.encode("utf-8", "surrogateescape")])
    with open_values(session) as opened:
        size = put_parts(opened, key, given, overwrite=overwrite, ttl_s=ttl_s)
    session.answer({"key": key, "bytes": size})


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
    """Writes the value of KEY to stdout or a file, byte for byte.

    A Python object is stored pickled: read it with rmgr.connect().store.get(KEY), or keep the pickle with -o or a pipe.
    """

    with open_values(session) as opened:
        found = find(opened, key)
        if target is not None:
            size = write_file(found, target)
            session.answer({"key": key, "bytes": size, "encoding": found.encoding.value, "file": str(target)})
        elif session.json:
            emit({"key": key, **content_as_json(found)})
        else:
            refuse_on_terminal(found, sys.stdout)
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
@click.option("--prefix", metavar="PREFIX", help="all keys that begin with PREFIX")
@click.option("-f", "--force", is_flag=True, help="do not fail for keys that do not exist")
def rm(session: Session, keys: tuple[str, ...], prefix: str | None, force: bool) -> None:
    """Deletes values."""

    if prefix == "" or not (keys or prefix):
        raise UsageError("what is to be deleted?", hint="name keys, or a --prefix that is not empty")
    with open_values(session) as opened:
        deleted, missing = remove(opened, keys, prefix)
    if missing and not force:
        raise NotFound(f"no such key: {', '.join(missing)}", hint=f"{len(deleted)} deleted; rmgr store ls lists what is there")
    session.answer({"deleted": deleted, "missing": missing})


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
@click.option("-a", "--all", "everything", is_flag=True, help="by kind of row, including rmgr's own")
@click.option("-u", "--by-user", is_flag=True, help="by user; (shared): named values, code, uploads")
def du(session: Session, prefix: str, everything: bool, by_user: bool) -> None:
    """Counts values and their bytes."""

    if (everything or by_user) and prefix:
        raise UsageError("--all and --by-user go without a prefix", hint=f"rmgr store du {prefix}   counts those; or leave {prefix} out")
    if everything and by_user:
        raise UsageError("one of --all and --by-user", hint="rmgr store du --by-user counts the rows of rmgr, too, by whose they are")
    with open_values(session) as opened:
        if everything:
            rows = usage_by_family(opened)
        elif by_user:
            rows = usage_by_user(opened, LiveOwners(session))
        else:
            rows = [usage(opened, prefix)]
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


# -- owners and sharing: who may read and write an owner's values, and owners for values without one ---------------------------


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
@click.option("--write", is_flag=True, help="let them replace and delete it, too")
def share(session: Session, key: str, user: str, is_prefix: bool, write: bool) -> None:
    """Lets others read your values, at once; with --write also replace and delete them, within 2 s.

    Their values under the same names do not become yours.

    Your pickles are loaded only by users who say that they trust you: get(KEY, trust=YOUR NAME) in Python.
    """

    with open_values(session) as opened:
        opened.values.share(key, user, write=write, is_prefix=_is_prefix(key, is_prefix))
    session.answer({"key": key, "prefix": _is_prefix(key, is_prefix), "user": user, "write": write})


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
    """Takes back what `share` gave, within 2 s. Values that others wrote under your keys are no longer believed."""

    with open_values(session) as opened:
        if not opened.values.unshare(key, user, is_prefix=_is_prefix(key, is_prefix)):
            raise NotFound(f"{key!r} is not shared with {user}", hint="rmgr store shares lists what is")
    session.answer({"key": key, "user": user})


@command("shares", group=store, examples="    rmgr store shares\n    rmgr store shares --json", exits=EXITS)
@click.option("--no-header", is_flag=True, help="omit the header line")
def shares(session: Session, no_header: bool) -> None:
    """Lists what you share, and what others share with you (operators: what anybody shares)."""

    with open_values(session) as opened:
        found = opened.values.shares()
    if session.json:
        told = [{"owner": s.owner, "user": _user_text(s.user), "key": s.key, "prefix": s.is_prefix, "write": s.write} for s in found]
        emit({"shares": told})
        return
    columns = [
        Column(name="OWNER", text=lambda one: one.owner, keep=True),
        Column(name="WITH", text=lambda one: _user_text(one.user), keep=True),
        Column(name="MAY", text=lambda one: "write" if one.write else "read", keep=True),
        Column(name="KEY", text=lambda one: shown(one.key) + ("*" if one.is_prefix else ""), is_id=True),
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
@click.option("--prefix", metavar="PREFIX", help="all keys without an owner that begin with PREFIX")
@click.option("--owner", metavar="USER", help="the new owner  [you]")
def adopt(session: Session, keys: tuple[str, ...], prefix: str | None, owner: str | None) -> None:
    """Gives an owner to values without one, written before values had owners. For operators."""

    if not (keys or prefix):
        raise UsageError("what is to be adopted?", hint="name keys, or a --prefix that is not empty")
    with open_values(session) as opened:
        wanted = [*keys, *(names(opened, prefix, after="", limit=None) if prefix else ())]
        adopted = [key for key in wanted if opened.values.adopt(key, owner or "", only_nobodys=key not in keys)]
    session.answer({"adopted": adopted})


def _is_prefix(key: str, said: bool) -> bool:
    return said or key.endswith("/")


def _user_text(user: str) -> str:
    return "all" if user == "*" else user


# -- an open store -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open store for the duration of a command. locate: returns the row of an output key (asks ZooKeeper if needed).

    owned: returns the same store as values with owners (secured clusters); asks ZooKeeper at first use.
    """

    store: Store
    timeout_s: float
    locate: Callable[[str, keys.Pointer], str]
    owned: Callable[[], Values]

    @property
    def values(self) -> Values:
        """The values with owners; see `owned`."""
        return self.owned()

    @property
    def deeds(self) -> Deeds | None:
        """The deeds that say who owns which value; None in an open cluster."""
        return self.values.deeds


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One key in a listing. size: in bytes, None for an output (it has its own row, or none yet).

    owner: "" if nobody owns it, None in an open cluster, where values have no owners.
    """

    key: str
    size: int | None
    kind: str
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundValue:
    """A value that exists. parts: yields its bytes piece by piece; may be called more than once."""

    key: str
    size: int
    encoding: Encoding
    parts: Callable[[], Iterator[bytes]]


@contextlib.contextmanager
def open_values(session: Session) -> Iterator[Opened]:
    """Opens the configured store. Raises: NotConnected, StoreUnavailable; DeadlineExceeded instead if --timeout has run out."""
    timeout_s = session.left_s(30.0)

    def locate(user_key: str, pointer: keys.Pointer) -> str:
        from rmgr.submitter.questions import LocateValue

        final = keys.final(pointer)
        if data.head(final, timeout_s=timeout_s) is not None:
            return final
        return session.ask(LocateValue(user_key=user_key, pointer=pointer))

    try:
        data = session.open_data_store()
        try:
            yield Opened(store=data, timeout_s=timeout_s, locate=locate, owned=cache(lambda: session.values_in(data)))
        finally:
            data.close()
    except StoreUnavailable:
        session.left_s()
        raise


# -- names ---------------------------------------------------------------------------------------------------------------------


def names(opened: Opened, prefix: str, *, after: str, limit: int | None) -> Iterator[str]:
    """Yields the users' keys that begin with `prefix` and come after `after`, sorted; at most `limit`."""
    left = limit
    behind = keys.named(after) if after else ""
    while left is None or left > 0:
        wanted = _PAGE if left is None else min(left, _PAGE)
        page = opened.store.keys(keys.named_prefix(prefix), after=behind, limit=wanted, timeout_s=opened.timeout_s)
        yield from map(keys.user_key, page)
        if len(page) < wanted:
            return
        behind = page[-1]
        left = None if left is None else left - len(page)


def page(opened: Opened, prefix: str, *, after: str, limit: int | None) -> tuple[list[KeyEntry], str | None]:
    """Returns keys with size, kind and owner, and the key to continue after if there are more. Cost: one read per key."""
    entries: list[KeyEntry] = []
    for key in names(opened, prefix, after=after, limit=None if limit is None else limit + 1):
        if len(entries) == limit:
            return entries, entries[-1].key
        head, owner = _head_and_owner(opened, keys.named(key))
        if head is not None:  # else it has just been deleted
            size = None if head[1] is Encoding.POINTER else head[0]
            entries.append(KeyEntry(key=key, size=size, kind=_KINDS[head[1]], owner=owner))
    return entries, None


def _head_and_owner(opened: Opened, row: str) -> tuple[tuple[int, Encoding] | None, str | None]:
    """Returns size and encoding, and the owner ("" if nobody owns the row, None in an open cluster)."""
    if opened.deeds is None:
        return opened.store.head(row, timeout_s=opened.timeout_s), None
    about = opened.store.about(row, timeout_s=opened.timeout_s)
    return (None, None) if about is None else (about[:2], opened.deeds.holder(opened.store, row, about).owner)


def as_json(entry: KeyEntry) -> dict[str, Any]:
    """Returns one element of `keys` in `rmgr store ls --json`."""
    return {"key": entry.key, "bytes": entry.size, "kind": entry.kind, **({} if entry.owner is None else {"owner": entry.owner or None})}


def shown(key: str) -> str:
    """Returns a key as text: unchanged for programs, without control characters on a terminal."""
    return printable(key) if sys.stdout.isatty() else key


# -- values --------------------------------------------------------------------------------------------------------------------


def parts_of(source: Path) -> Iterator[bytes]:
    """Returns the bytes of a file, or of stdin for `-`; opens it at once, so that a missing file is reported before anything is done."""
    if str(source) == "-":
        if sys.stdin.isatty():
            sys.stderr.write("rmgr: reading the value from the terminal; Ctrl-D ends it\n")
        return iter(lambda: sys.stdin.buffer.read(_READ_BYTES), b"")
    if source.is_dir():
        raise UsageError(f"{source} is a directory", hint="store its files one by one, or as an archive: tar c DIR | rmgr store put KEY")
    try:
        file = source.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}", hint="name a file, - for stdin, or a text: --value TEXT") from None
    if _is_endless(file):
        file.close()
        raise UsageError(f"{source} is a device, and may have no end", hint=f"say how much: head -c 1M {source} | rmgr store put KEY")

    def read() -> Iterator[bytes]:
        with file:
            yield from iter(lambda: file.read(_READ_BYTES), b"")

    return read()


def _is_endless(file: IO[bytes]) -> bool:
    """Returns whether the file is a device other than a terminal, which has Ctrl-D, or /dev/null."""
    found = os.fstat(file.fileno())
    if stat.S_ISCHR(found.st_mode):
        return not file.isatty() and found.st_rdev != os.stat(os.devnull).st_rdev
    return stat.S_ISBLK(found.st_mode)


def put_parts(opened: Opened, key: str, parts: Iterable[bytes], *, overwrite: bool, ttl_s: float | None = None) -> int:
    """Stores bytes under a user's key, for `ttl_s` or for ever; returns how many. Raises: KeyExists, ValueTooLarge."""
    size, is_begun = 0, False

    def counted() -> Iterator[bytes]:
        nonlocal size, is_begun
        is_begun = True
        for part in parts:
            size += len(part)
            yield part

    def write(overwrite: bool, note: Note) -> None:
        if is_begun:  # a pipe can be read only once
            raise StateConflict(f"somebody else has written {key!r} just now", hint="try again")
        beside: dict[str, Any] = {"note": note} if note else {}
        opened.store.put(keys.named(key), counted(), overwrite=overwrite, ttl_s=ttl_s, timeout_s=opened.timeout_s, **beside)

    opened.values.check_mine(key, timeout=opened.timeout_s)
    replaced = _pointer(opened, key)
    opened.values.put_owned(key, Encoding.RAW, write, overwrite=overwrite, timeout=opened.timeout_s)
    if replaced is not None:
        _forget(opened, replaced)
    return size


def find(opened: Opened, key: str) -> FoundValue:
    """Returns the value of a user's key; looks an output up at its task. Raises: NotFound."""
    row = keys.named(key)
    head = opened.store.head(row, timeout_s=opened.timeout_s)
    if head is None:
        close = next(names(opened, key, after="", limit=1), None)
        raise NotFound(
            f"there is no value {key!r}",
            hint=f"there is {close!r}; rmgr store ls lists them" if close else "rmgr store ls lists what is there",
        )
    if opened.deeds is not None:
        return _find_owned(opened, key)
    if head[1] is Encoding.POINTER:
        pointer = _pointer(opened, key)
        if pointer is None:
            raise NotFound(f"the value {key!r} was replaced or deleted just now", hint="try again")
        row = opened.locate(key, pointer)
        head = opened.store.head(row, timeout_s=opened.timeout_s)
        if head is None:
            raise keys.output_missing(key, pointer, row)
    size, encoding = head

    return FoundValue(key=key, size=size, encoding=encoding, parts=lambda: _stream(opened, key, row))


def _find_owned(opened: Opened, key: str) -> FoundValue:
    """As `find`, where values have owners: reading ends with an error if the bytes are not those that were signed."""
    row, about = opened.values.locate(key, opened.locate, timeout=opened.timeout_s)

    def parts() -> Iterator[bytes]:
        digest = hashlib.sha256()
        for part in _stream(opened, key, row):
            digest.update(part)
            yield part
        if digest.digest() != about.sha256:
            raise DataLost(f"the value {key!r} was replaced while it was read", hint="read it again")

    return FoundValue(key=key, size=about.size, encoding=about.encoding, parts=parts)


def _stream(opened: Opened, key: str, row: str) -> Iterator[bytes]:
    stream = opened.store.stream(row, timeout_s=opened.timeout_s)
    if stream is None:
        raise NotFound(f"the value {key!r} was deleted just now", hint="rmgr store ls lists what is there")
    return stream


def refuse_on_terminal(found: FoundValue, out: TextIO) -> None:
    """Raises UsageError for a pickle that would be printed on a terminal."""
    if found.encoding is Encoding.PICKLE and out.isatty():
        raise UsageError(
            f"{found.key!r} is a Python object ({found.size:,} bytes, pickled), which a terminal cannot show",
            hint=f"in Python: rmgr.connect().store.get({found.key!r})   or the pickle itself: rmgr store get {found.key} -o FILE",
        )


def write_file(found: FoundValue, target: Path) -> int:
    """Writes a value to a file that appears only when complete; returns its size."""
    if target.is_dir():
        raise UsageError(f"{target} is a directory", hint=f"-o {target / found.key.rpartition('/')[2]}")
    if target.exists() and not target.is_file():  # a pipe, a device
        with target.open("wb") as out:
            return sum(out.write(part) for part in found.parts())
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}", hint="-o FILE, in a directory that is there and yours") from None
    size = 0
    try:
        with open(descriptor, "wb") as out:
            for part in found.parts():
                size += out.write(part)
        os.chmod(name, 0o666 & ~current_umask())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return size


def content_as_json(found: FoundValue) -> dict[str, Any]:
    """Returns the value for `get --json`: as text if it is text, else in base64."""
    value = b"".join(found.parts())
    about = {"bytes": found.size, "encoding": found.encoding.value}
    if found.encoding is Encoding.RAW:
        with contextlib.suppress(UnicodeDecodeError):
            return {**about, "text": value.decode()}
    return {**about, "base64": base64.b64encode(value).decode("ascii")}


def remove(opened: Opened, wanted: Sequence[str], prefix: str | None) -> tuple[list[str], list[str]]:
    """Deletes keys, and the caller's own keys with `prefix`; returns (deleted, absent). Raises PermissionDenied for others' keys."""
    deleted: list[str] = []
    missing: list[str] = []
    for key in dict.fromkeys(wanted):
        opened.values.check_mine(key, timeout=opened.timeout_s)
        pointer = _pointer(opened, key)
        if opened.store.delete(keys.named(key), timeout_s=opened.timeout_s):
            deleted.append(key)
        else:
            missing.append(key)
        if pointer is not None:
            _forget(opened, pointer)
    if prefix:
        left = 0
        for key in list(names(opened, prefix, after="", limit=None)):
            try:
                deleted += remove(opened, [key], None)[0]
            except PermissionDenied:
                left += 1
        if left:
            sys.stderr.write(f"rmgr: {counted(left, 'key')} of others begin with {prefix} too, and stay\n")
    return deleted, missing


def _forget(opened: Opened, pointer: keys.Pointer) -> None:
    """Deletes an output that no key points to any more. A gateway of the previous release keeps outputs of other users' work."""
    with contextlib.suppress(PermissionDenied):
        opened.store.delete(keys.final(pointer), timeout_s=opened.timeout_s)


def _pointer(opened: Opened, key: str) -> keys.Pointer | None:
    """Returns the pointer under a user's key, or None if there is a value or nothing."""
    row = keys.named(key)
    found = opened.store.get_noted_many([row], largest=keys.POINTER_BYTES, timeout_s=opened.timeout_s).get(row)
    if found is None or found[1].encoding is not Encoding.POINTER or found[0] is None:
        return None
    return keys.decode_pointer(found[0])


# -- `rmgr store du`: by prefix, by kind of row, by user -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUsage:
    """Number of values of one kind (or of one user), and their bytes."""

    kind: str
    count: int
    size: int


def usage(opened: Opened, prefix: str) -> StoredUsage:
    """Returns the count and bytes of users' values with `prefix` (an output counts as its pointer; `--all` counts its bytes)."""
    count, size = opened.store.usage(keys.named_prefix(prefix), timeout_s=opened.timeout_s)
    return StoredUsage(kind=prefix, count=count, size=size)


def usage_by_family(opened: Opened) -> list[StoredUsage]:
    """Returns the usage of the whole store by kind of row; leaves out kinds that are empty or that a gateway does not show."""
    sums = ((kind, _measured(opened, family)) for family, kind in FAMILIES.items())
    return [StoredUsage(kind=kind, count=count, size=size) for kind, (count, size) in sums if count]


def usage_by_user(opened: Opened, live_owner: Callable[[int], str | None]) -> list[StoredUsage]:
    """Returns the usage of the whole store by user, the largest first.

    Args: live_owner: returns the user of a submission that is not in the history yet, None if unknown.
    Cost: two reads for each kind of row of each submission, one for its owner.
    """
    sums: dict[str, tuple[int, int]] = {}
    owners: dict[int, str] = {}

    def add(user: str, prefix: str) -> None:
        count, size = _measured(opened, prefix)
        before = sums.get(user, (0, 0))
        sums[user] = before[0] + count, before[1] + size

    for family in _OF_SUBMISSION:
        for part in _parts(opened, family):
            number = int(part) if part.isdecimal() else -1
            if number not in owners:
                owners[number] = _owner(opened, number) or live_owner(number) or UNKNOWN
            add(owners[number], f"{family}{part}/")
    for user in _parts(opened, "histu/"):
        add(user, f"histu/{user}/")
    for family in FAMILIES:
        if family not in _OF_SUBMISSION and family != "histu/":
            add(SHARED, family)
    rows = [StoredUsage(kind=user, count=count, size=size) for user, (count, size) in sums.items() if count]
    return sorted(rows, key=lambda row: (-row.size, row.kind))


def _measured(opened: Opened, prefix: str) -> tuple[int, int]:
    """Returns count and bytes, or zeros where a gateway refuses: the total over all users is for operators."""
    try:
        return opened.store.usage(prefix, timeout_s=opened.timeout_s)
    except PermissionDenied:
        return 0, 0


class LiveOwners:
    """Looks up the users of submissions that ZooKeeper holds. Once ZooKeeper was away, it is not asked again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_away = False

    def __call__(self, number: int) -> str | None:
        """Returns the user, or None if there is no such submission or its user is unknown."""
        from rmgr.submitter.questions import ReadRecord

        if self._is_away or number < 0:
            return None
        try:
            return self._session.ask(ReadRecord(number=number), 5.0).record.user
        except NotFound:
            return None
        except (CoordinationUnavailable, NotConnected) as error:
            self._is_away = True
            self._session.note(f"{error.message}; rows of work that has not ended are counted as {UNKNOWN}")
        except RmgrError as error:
            self._session.detail(f"whose submission {number} is, is not known: {error.message}")
        return None


def _owner(opened: Opened, number: int) -> str | None:
    from rmgr.procedures.history import summary_of

    try:
        kept = summary_of(opened.store, number, timeout_s=opened.timeout_s) if number >= 0 else None
        return kept.user if kept is not None else None
    except (DataLost, PermissionDenied):  # a gateway shows users only their own
        return None


def _parts(opened: Opened, family: str) -> Iterator[str]:
    """Yields the second words of all keys of a family, each once. Cost: one query for each."""
    after = ""
    while names := opened.store.keys(family, after=after, limit=1, timeout_s=opened.timeout_s):
        part = names[0].split("/")[1]
        yield part
        after = f"{family}{part}/{_TOP}"
