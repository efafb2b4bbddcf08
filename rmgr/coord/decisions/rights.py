"""Who may see and change what: work, and values. Pure.

Work: users their own, operators everybody's; an open cluster does not ask. Values: beside each value under a user's name (`name/...`), each
output of a task (`out/...`, `final/...`) and each share is a *deed*: its owner, and a signature over cluster, row, encoding, SHA-256 of
the bytes, owner, and time. Ownership is never in the name of a key.

    name/<key>       signed by its owner, by an operator for the owner, or by a user whom the owner lets write there
    out/..., final/  signed by the Starter that ran the task; the owner is the task's user. A copy keeps the deed of its original
    share/<owner>/   signed by the owner, or by an operator

A value without a valid deed belongs to nobody. In open clusters there are no deeds.
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
from rmgr.errors import NotFound, PermissionDenied, RmgrError
from rmgr.model.stream import json_decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The requester, as far as proven.

    name: "" = no user (a gateway that speaks for nobody). role: for the audit. is_open: an open cluster.
    """

    name: str = ""
    role: str = ""
    is_operator: bool = False
    is_open: bool = False

    @property
    def is_free(self) -> bool:
        """Whether the person may do with everybody's work what its owner may."""
        return self.is_open or self.is_operator

    def owns(self, owner: str | None) -> bool:
        """Returns whether the person is `owner` (None: the owner is not known)."""
        return bool(self.name) and owner == self.name


#: Every requester in an open cluster.
ANYBODY = Person(is_open=True)


def may(person: Person, owner: str | None) -> bool:
    """Returns whether `person` may see and change work of `owner` (None: the owner is not known)."""
    return person.is_free or person.owns(owner)


def check(person: Person, submission: int, owner: str | None) -> None:
    """Raises PermissionDenied, naming the owner, unless `may`."""
    if not may(person, owner):
        raise denied(submission, owner)


def denied(submission: int, owner: str | None) -> PermissionDenied:
    """Returns the error for a person who has no right to a submission."""
    whose = f"{submission} belongs to {owner}" if owner else f"it is not known whose submission {submission} is"
    return PermissionDenied(whose, hint="its owner or an operator may do that: ask an operator")


def no_submission(number: int) -> NotFound:
    """Returns the error for a submission that ZooKeeper does not hold."""
    return NotFound(f"there is no submission {number}", hint="rmgr jobs -a lists those in memory, rmgr history the older ones")


def check_operator(person: Person, what: str) -> None:
    """Raises PermissionDenied unless the person may do what concerns the whole cluster."""
    if not person.is_free:
        raise PermissionDenied(f"{what} is for operators", hint="ask an operator; rmgr admin add-user NAME --operator makes one")


# -- deeds of values -----------------------------------------------------------------------------------------------------------


#: The user of a share with everybody; no real user has this name.
ALL = "*"
#: Words of readers who trust anybody's, and nobody's, pickles.
TRUST_ANYBODY, TRUST_NOBODY = "all", "nobody"
#: Why a value that an earlier release wrote belongs to nobody.
UNSIGNED = "nobody signed it: it was written before values had owners, or by somebody who hides"

_VALUE = "rmgr value 1"
_pack = msgspec.msgpack.Encoder()
#: What to type so that a task loads another user's pickle.
HOW_TO_TRUST = 'if you trust {who}: queue.submit(..., trust="{who}")'


class Deed(msgspec.Struct, frozen=True, array_like=True):
    """The record beside a value, in MessagePack. New fields only at the end.

    owner: a user. key_id: of the signer. made_s: seconds since 1970. signature: see `coord/seal.py`.
    row: for an output of a task: the row that the Starter wrote (copies keep it).
    """

    owner: str
    key_id: str
    made_s: int
    signature: bytes = b""
    row: str = ""


def deed(row: str, owner: str, key_id: str, made_s: int) -> Deed:
    """Returns the deed to sign for a value in `row`."""
    return Deed(owner, key_id, made_s, row=row if keys.family(row) in keys.OUTPUTS else "")


_deed = msgspec.msgpack.Decoder(Deed)


def encode_deed(deed: Deed) -> bytes:
    """Returns a deed as bytes: about 130, and 32 more per level if several share a signature."""
    return _pack.encode(deed)


def decode_deed(note: bytes) -> Deed:
    """Reads bytes of `encode_deed`. Raises NotSealed."""
    if not note:
        raise NotSealed(UNSIGNED)
    try:
        return _deed.decode(note)
    except UNREADABLE:
        raise NotSealed("what lies beside it is no deed") from None


def deed_of(about: About) -> Deed | None:
    """Returns the stored deed, unverified, or None if there is none."""
    try:
        return decode_deed(about.note)
    except NotSealed:
        return None


def deed_statement(deed: Deed, row: str, encoding: Encoding, sha256: bytes, *, cluster_id: str) -> bytes:
    """Returns the bytes that the deed of a value in `row` must sign. Raises NotSealed if it cannot belong to that row. Cost: 2 us."""
    family = keys.family(row)
    if family in keys.OUTPUTS:
        if not _is_origin(deed.row, row):
            raise NotSealed(f"its deed is for another row ({deed.row[:120]})")
    elif deed.row:
        raise NotSealed("its deed is that of an output")
    return _pack.encode((_VALUE, cluster_id, deed.row or row, encoding.value, sha256, deed.owner, deed.made_s))


def _is_origin(origin: str, row: str) -> bool:
    """Returns whether `row` is `origin`, or a copy of it."""
    try:
        one = keys.parse_output(origin)
        return origin == row or (keys.family(row) == "final" and keys.is_final_of(row, one.sub, one.index, one.n))
    except RmgrError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The owner of a value, as far as proven.

    owner: "" = nobody. writer: vouches for the bytes: the person who signed; for outputs the task's user. why: there is no owner.
    foul: why the bytes are not to be believed although the key has an owner, who may replace or delete them. deed: as verified.
    """

    owner: str = ""
    writer: str = ""
    why: str = UNSIGNED
    foul: str = ""
    deed: Deed | None = None

    @property
    def told(self) -> str:
        """Text for errors: "belongs to ann"."""
        return f"belongs to {self.owner}" if self.owner else f"belongs to nobody ({self.why})"


# -- shares ------------------------------------------------------------------------------------------------------------------------


#: Most keys and prefixes that one owner can share with one user; further ones do not count.
MOST_SHARES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueShare:
    """Rights to values that their owner gives to others.

    user: the receiver; ALL = every user of the cluster. key: a key, or with is_prefix a prefix of keys. write: may replace and delete, too.
    """

    owner: str
    user: str
    key: str
    is_prefix: bool = False
    write: bool = False

    def covers(self, key: str) -> bool:
        """Returns whether the share applies to `key`."""
        return key.startswith(self.key) if self.is_prefix else key == self.key

    @property
    def row(self) -> str:
        """The row `share/<owner>/<user>/<hash>`, one per key or prefix."""
        name = hashlib.sha256(f"{'prefix' if self.is_prefix else 'key'} {self.key}".encode()).hexdigest()[:32]
        return keys.share(self.owner, self.user, name)


class _Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """A share as in its row (JSON); owner and user are in the row's name."""

    key: str
    prefix: bool = False
    write: bool = False


def encode_share(share: ValueShare) -> bytes:
    """Returns a share as canonical JSON."""
    return msgspec.json.encode(_Written(key=share.key, prefix=share.is_prefix, write=share.write), order="sorted")


def decode_share(row: str, data: bytes) -> ValueShare:
    """Reads the share in `row`. Raises NotSealed."""
    try:
        owner, user = keys.parse_share(row)
        told = json_decoder(_Written).decode(data)
    except (*UNREADABLE, RmgrError):
        raise NotSealed(f"{row} is no share") from None
    share = ValueShare(owner=owner, user=user, key=told.key, is_prefix=told.prefix, write=told.write)
    if share.row != row:
        raise NotSealed(f"{row} holds the share of another key")
    return share


# -- what a person may do with a value ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Facts that decide what `person` may do with a value. shares: of its owner with that person and with all.

    open_reading: the cluster's setting that everybody may read all values.
    """

    person: Person
    holder: Holder
    shares: Sequence[ValueShare] = field(default=())
    open_reading: bool = False


def may_read(look: Look, key: str) -> bool:
    """Returns whether the person may read the value."""
    return look.person.is_free or look.open_reading or look.person.owns(look.holder.owner) or any(one.covers(key) for one in look.shares)


def may_write(look: Look, key: str) -> bool:
    """Returns whether the person may replace and delete the value."""
    return look.person.is_free or look.person.owns(look.holder.owner) or any(one.write and one.covers(key) for one in look.shares)


def check_seen(look: Look, key: str) -> None:
    """Raises PermissionDenied unless `may_read`, naming the owner and what the person could type."""
    if not may_read(look, key):
        raise PermissionDenied(f"the value {key!r} {look.holder.told}", hint=_ask(look, key, ""))


def check_read(look: Look, key: str) -> None:
    """Raises as `check_seen`, and also PermissionDenied if the bytes are not to be believed."""
    check_seen(look, key)
    if look.holder.foul:
        raise PermissionDenied(f"the value {key!r} cannot be believed: {look.holder.foul}", hint=f"{look.holder.owner} can put it again")


def check_write(look: Look, key: str) -> None:
    """Raises PermissionDenied unless `may_write`."""
    if not may_write(look, key):
        raise PermissionDenied(f"the key {key!r} {look.holder.told}", hint=_ask(look, key, " --write"))


def check_pickle(person: Person, key: str, holder: Holder, trust: Collection[str], *, how: str) -> None:
    """Raises PermissionDenied unless the person wrote the pickle or trusts its writer, because unpickling runs code.

    how: what to type, with `{who}`.
    """
    who = holder.writer or TRUST_NOBODY
    if (holder.writer and person.owns(holder.writer)) or who in trust or TRUST_ANYBODY in trust:
        return
    whose = f"was written by {who}" if holder.writer else holder.told
    raise PermissionDenied(f"{key!r} is a pickle, which runs code when it is loaded, and {whose}", hint=how.format(who=who))


def trusted(trust: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the users whom a reader trusts, as a tuple."""
    return (trust,) if isinstance(trust, str) else tuple(trust)


def _ask(look: Look, key: str, write: str) -> str:
    if not look.holder.owner:
        return f"an operator gives it an owner: rmgr store adopt {key} --owner {look.person.name or 'NAME'}"
    return f"ask {look.holder.owner}: rmgr store share {key} --with {look.person.name or 'NAME'}{write}"
