"""Who may see and change what: work, and values. Pure.

Work: users theirs, operators everybody's; an open cluster asks nobody. Values: beside each value under a user's name (`name/...`), each
output of a task (`out/...`, `final/...`) and each share lies a *deed*: its owner, and a signature over cluster, row, encoding, SHA-256 of
the bytes, owner, and time. Ownership is never in the name of a key.

    name/<key>       signed by its owner, by an operator for him, or by somebody whom he lets write there
    out/..., final/  signed by the Starter that ran the task; the owner is the task's user. A copy keeps the deed of its original
    share/<owner>/   signed by the owner, or by an operator

A value without a deed, or with one that does not fit, is nobody's. In open clusters there are no deeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import About, Encoding
from rmgr.coord.protocol.records import UNREADABLE
from rmgr.coord.seal import NotSealed
from rmgr.errors import PermissionDenied, RmgrError
from rmgr.model.wire.stream import json_decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Requester of something, as far as that is proven.

    name: "" = somebody who is no user (a gateway that speaks for nobody). role: for the audit. is_open: an open cluster.
    """

    name: str = ""
    role: str = ""
    is_operator: bool = False
    is_open: bool = False

    @property
    def is_free(self) -> bool:
        """May do with everybody's work what its owner may."""
        return self.is_open or self.is_operator

    def owns(self, owner: str | None) -> bool:
        """Work of `owner` (None: it is not known whose) is his."""
        return bool(self.name) and owner == self.name


#: Whoever asks in an open cluster.
ANYBODY = Person(is_open=True)


def may(person: Person, owner: str | None) -> bool:
    """`person` may see and change work of `owner` (None: it is not known whose it is)."""
    return person.is_free or person.owns(owner)


def check(person: Person, submission: int, owner: str | None) -> None:
    """Raises PermissionDenied, naming the owner, unless `may`."""
    if not may(person, owner):
        raise denied(submission, owner)


def denied(submission: int, owner: str | None) -> PermissionDenied:
    """Why somebody may not have to do with a submission."""
    whose = f"{submission} belongs to {owner}" if owner else f"it is not known whose submission {submission} is"
    return PermissionDenied(whose, hint="its owner or an operator may do that: ask an operator")


def check_operator(person: Person, what: str) -> None:
    """Raises PermissionDenied unless he may do what concerns all."""
    if not person.is_free:
        raise PermissionDenied(f"{what} is for operators", hint="ask an operator; rmgr admin add-user NAME --operator makes one")


# -- deeds of values -----------------------------------------------------------------------------------------------------------


#: With whom everybody shares at once; no user has that name.
ALL = "*"
#: What readers say who trust anybody's, and nobody's, pickles.
TRUST_ANYBODY, TRUST_NOBODY = "all", "nobody"
#: Why a value is nobody's that was written by an earlier release.
UNSIGNED = "nobody signed it: it was written before values had owners, or by somebody who hides"

_VALUE = "rmgr value 1"
_pack = msgspec.msgpack.Encoder()
#: What to type so that a task loads a pickle of somebody else.
HOW_TO_TRUST = 'if you trust {who}: queue.submit(..., trust="{who}")'


class Deed(msgspec.Struct, frozen=True, array_like=True):
    """Record beside a value, in MessagePack. New fields at the end only.

    owner: a user. key_id: who signed. made_s: when, seconds since 1970. signature: see `coord/seal.py`.
    row: of an output of a task: what the Starter has written (copies keep it).
    """

    owner: str
    key_id: str
    made_s: int
    signature: bytes = b""
    row: str = ""


def deed(row: str, owner: str, key_id: str, made_s: int) -> Deed:
    """What is to be signed of a value in `row`."""
    return Deed(owner, key_id, made_s, row=row if keys.family(row) in keys.OUTPUTS else "")


_deed = msgspec.msgpack.Decoder(Deed)


def encode_deed(deed: Deed) -> bytes:
    """About 130 bytes; 32 more for each level where several share a signature."""
    return _pack.encode(deed)


def decode_deed(note: bytes) -> Deed:
    """The reverse of `encode_deed`. Raises NotSealed."""
    if not note:
        raise NotSealed(UNSIGNED)
    try:
        return _deed.decode(note)
    except UNREADABLE:
        raise NotSealed("what lies beside it is no deed") from None


def deed_of(about: About) -> Deed | None:
    """As it stands there, not verified; None: there is none."""
    try:
        return decode_deed(about.note)
    except NotSealed:
        return None


def deed_statement(deed: Deed, row: str, encoding: Encoding, sha256: bytes, *, cluster_id: str) -> bytes:
    """What the deed of a value in `row` must be a signature of. Raises NotSealed when it cannot be of that row. Cost: 2 us."""
    family = keys.family(row)
    if family in keys.OUTPUTS:
        if not _is_origin(deed.row, row):
            raise NotSealed(f"its deed is for another row ({deed.row[:120]})")
    elif deed.row:
        raise NotSealed("its deed is that of an output")
    return _pack.encode((_VALUE, cluster_id, deed.row or row, encoding.value, sha256, deed.owner, deed.made_s))


def _is_origin(origin: str, row: str) -> bool:
    """`row` is that row, or a copy of it."""
    try:
        one = keys.parse_output(origin)
        return origin == row or (keys.family(row) == "final" and keys.is_final_of(row, one.sub, one.index, one.n))
    except RmgrError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Owner of a value, as far as that was proven.

    owner: "" = nobody's. writer: who vouches for the bytes: the person who signed; of outputs the task's user. why: it is nobody's.
    foul: why the bytes are not to be believed, although the key is the owner's: he replaces or deletes them. deed: as it was verified.
    """

    owner: str = ""
    writer: str = ""
    why: str = UNSIGNED
    foul: str = ""
    deed: Deed | None = None

    @property
    def told(self) -> str:
        """For errors: "belongs to ann"."""
        return f"belongs to {self.owner}" if self.owner else f"belongs to nobody ({self.why})"


# -- shares ------------------------------------------------------------------------------------------------------------------------


#: Keys and prefixes that one owner shares with one user; what is behind them does not count.
MOST_SHARES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueShare:
    """Rights that an owner gives others to the owner's values.

    user: who; ALL = every user of the cluster. key: a key, or with is_prefix how keys begin. write: may replace and delete, too.
    """

    owner: str
    user: str
    key: str
    is_prefix: bool = False
    write: bool = False

    def covers(self, key: str) -> bool:
        """It is about that key."""
        return key.startswith(self.key) if self.is_prefix else key == self.key

    @property
    def row(self) -> str:
        """`share/<owner>/<user>/<hash>`: one for each key or prefix."""
        name = hashlib.sha256(f"{'prefix' if self.is_prefix else 'key'} {self.key}".encode()).hexdigest()[:32]
        return keys.share(self.owner, self.user, name)


class _Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """A share as its row has it (JSON); owner and user are in the row's name."""

    key: str
    prefix: bool = False
    write: bool = False


def encode_share(share: ValueShare) -> bytes:
    """Canonical JSON."""
    return msgspec.json.encode(_Written(key=share.key, prefix=share.is_prefix, write=share.write), order="sorted")


def decode_share(row: str, data: bytes) -> ValueShare:
    """The reverse of `encode_share`, of what lies in `row`. Raises NotSealed."""
    try:
        owner, user = keys.parse_share(row)
        told = json_decoder(_Written).decode(data)
    except (*UNREADABLE, RmgrError):
        raise NotSealed(f"{row} is no share") from None
    share = ValueShare(owner=owner, user=user, key=told.key, is_prefix=told.prefix, write=told.write)
    if share.row != row:
        raise NotSealed(f"{row} holds the share of another key")
    return share


# -- who may do what ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Facts that decide what `person` may do with a value. shares: of its owner with that person and with all.

    open_reading: the cluster's setting: who does not own a value may read it all the same.
    """

    person: Person
    holder: Holder
    shares: Sequence[ValueShare] = field(default=())
    open_reading: bool = False


def may_read(look: Look, key: str) -> bool:
    """He may have its bytes."""
    return look.person.is_free or look.open_reading or look.person.owns(look.holder.owner) or any(one.covers(key) for one in look.shares)


def may_write(look: Look, key: str) -> bool:
    """He may replace and delete it."""
    return look.person.is_free or look.person.owns(look.holder.owner) or any(one.write and one.covers(key) for one in look.shares)


def check_seen(look: Look, key: str) -> None:
    """Raises PermissionDenied unless `may_read`, naming the owner and what he could type."""
    if not may_read(look, key):
        raise PermissionDenied(f"the value {key!r} {look.holder.told}", hint=_ask(look, key, ""))


def check_read(look: Look, key: str) -> None:
    """The same, and raises PermissionDenied where the bytes are not to be believed."""
    check_seen(look, key)
    if look.holder.foul:
        raise PermissionDenied(f"the value {key!r} cannot be believed: {look.holder.foul}", hint=f"{look.holder.owner} can put it again")


def check_write(look: Look, key: str) -> None:
    """Raises PermissionDenied unless `may_write`."""
    if not may_write(look, key):
        raise PermissionDenied(f"the key {key!r} {look.holder.told}", hint=_ask(look, key, " --write"))


def check_pickle(person: Person, key: str, holder: Holder, trust: Collection[str], *, how: str) -> None:
    """Raises PermissionDenied unless the pickle is his own, or he has said that he trusts whoever wrote it: unpickling runs code.

    how: what to type, with `{who}`.
    """
    who = holder.writer or TRUST_NOBODY
    if (holder.writer and person.owns(holder.writer)) or who in trust or TRUST_ANYBODY in trust:
        return
    whose = f"was written by {who}" if holder.writer else holder.told
    raise PermissionDenied(f"{key!r} is a pickle, which runs code when it is loaded, and {whose}", hint=how.format(who=who))


def trusted(trust: str | Iterable[str]) -> tuple[str, ...]:
    """Whom a reader trusts, as he said it."""
    return (trust,) if isinstance(trust, str) else tuple(trust)


def _ask(look: Look, key: str, write: str) -> str:
    if not look.holder.owner:
        return f"an operator gives it an owner: rmgr store adopt {key} --owner {look.person.name or 'NAME'}"
    return f"ask {look.holder.owner}: rmgr store share {key} --with {look.person.name or 'NAME'}{write}"
