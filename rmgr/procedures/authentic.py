"""Checks what members of a secured cluster believe: outcomes signed by Starters, and the deeds of values.

Deeds (`coord/decisions/rights.py`) are made with the process's own key, and verified with the cluster's keys and the owners' shares. The
same object serves a client, a Starter and a gateway: each question is for a given person, or for the process itself. An open cluster does
not use it. Verified certificates and signatures are remembered, shares for `SHARES_S`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.decisions import rights
from rmgr.coord.decisions.rights import ALL, Deed, Holder, Look, Person, ValueShare
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import About, Encoding, Store
from rmgr.coord.seal import NotSealed, fragment_statement, is_precious, needs_seal, opened, sign_together
from rmgr.errors import UsageError
from rmgr.model.block import Fragment, Outcome
from rmgr.model.identity import Identity, Role
from rmgr.model.queue import SHARED, ClusterSettings
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.pki import Certified
    from rmgr.adapters.identity.trust import Trust


#: Error text of a COMPLETED outcome whose bytes are missing or not believed.
LOST = "DATA_LOST"


class Authenticity:
    """Judges fragments. Thread-safe.

    Args: cluster_id: of the cluster's tree.
    """

    def __init__(self, trust: Trust, cluster_id: str) -> None:
        self._trust = trust
        self._cluster_id = cluster_id

    def doubt(self, submission: int, fragment: Fragment, zxid: int, data: bytes = b"") -> str | None:
        """Returns why the fragment is not believed, "" if it is, None if not known yet (`find_doubt` waits for it). Cost: 0.15 ms.

        Args: zxid: transaction that committed it. data: its encoding, b"" if not at hand.
        """
        seal = fragment.seal
        if seal is None:
            return "nobody signed it" if needs_seal(fragment) else ""
        signer = self._trust.look(seal.key_id, at_s=_made_s(fragment), zxid=zxid)
        return None if signer is None else self._judge_outcomes(submission, fragment, signer, data)

    def believes(self, submission: int, fragment: Fragment, data: bytes) -> bool:
        """Whether a fragment that is not committed yet would be believed, from memory alone."""
        return self.doubt(submission, fragment, 0, data) == ""

    def find_doubt(self, submission: int, fragment: Fragment, zxid: int, data: bytes = b"") -> str:
        """As `doubt`, but waits for the certificate. Raises: CoordinationUnavailable."""
        seal = fragment.seal
        if seal is None:
            return "nobody signed it" if needs_seal(fragment) else ""
        return self._judge_outcomes(submission, fragment, self._trust.find(seal.key_id, at_s=_made_s(fragment), zxid=zxid), data)

    def _judge_outcomes(self, submission: int, fragment: Fragment, signer: Certified | str, data: bytes) -> str:
        assert fragment.seal is not None
        if isinstance(signer, str):
            return signer
        who = signer.identity
        if who.role is not Role.STARTER:
            return f"it was signed by {who.role} {who.name}, and only Starters report how tasks ended"
        statement = fragment_statement(fragment, cluster_id=self._cluster_id, submission=submission, data=data)
        if not signer.verify(fragment.seal.signature, statement):
            return f"it is not what Starter {who.name} signed"
        return ""


def _made_s(fragment: Fragment) -> float:
    return fragment.base_us / 1e6 if fragment.base_us else machine.wall_s()


def disbelief(why: str) -> str:
    """Returns the error text of an outcome that is not believed."""
    return f"{LOST}: its outcome cannot be believed: {why}"


def doubted(outcomes: Sequence[Outcome], why: str) -> list[Outcome]:
    """Returns outcomes that are not believed without their values: states, and what is wrong."""
    text = disbelief(why)
    bare = {"value": b"", "value_size": -1, "value_sha256": None, "outputs": 0, "call": None, "error": text}
    return [msgspec.structs.replace(outcome, **bare) if is_precious(outcome) else outcome for outcome in outcomes]


# -- deeds ---------------------------------------------------------------------------------------------------------------------


#: How long an owner's shares are believed without another look; a withdrawn share is void after this at the latest.
SHARES_S = 2.0
_KEEP = 8192
_KEEP_SHARES = 1024
#: Keys listed at once; rows read at once; largest row: a key of up to 1,000 bytes and little else.
_PAGE, _TOGETHER, _MOST_SHARE_BYTES = 1000, 100, 16 * 1024


@dataclass(frozen=True, slots=True)
class _Shared:
    shares: tuple[ValueShare, ...]
    until_s: float  #: monotonic


class Deeds:
    """Makes and verifies deeds. Thread-safe.

    Args:
        cluster_id: of the cluster's tree. credentials: of this process.
        settings: of the cluster, at most some seconds old. publish: publishes the certificate of this process, once, and returns
            the signing credentials; default: `credentials`, which are published already.
    """

    def __init__(
        self,
        trust: Trust,
        cluster_id: str,
        credentials: Credentials,
        *,
        settings: Callable[[], ClusterSettings] = ClusterSettings,
        publish: Callable[[], Credentials] | None = None,
    ) -> None:
        self._trust = trust
        self._cluster_id = cluster_id
        self._credentials = credentials
        self.settings = settings
        self._publish = publish or (lambda: credentials)
        self._own: Certified | None = None
        self._lock = threading.Lock()
        self._verified: OrderedDict[tuple[str, bytes, bytes], None] = OrderedDict()  #: (key, signature, signed bytes)
        self._shares: OrderedDict[tuple[str, str], _Shared] = OrderedDict()
        who = credentials.identity
        self.me = Person(name=who.name if who.is_person else "", role=str(who.role), is_operator=who.role is Role.OPERATOR)

    # -- making

    def noted(self, row: str, encoding: Encoding, *, owner: str = "") -> Callable[[bytes], bytes]:
        """Returns a function that makes the note of a value for `row` from its SHA-256. owner: "" = this process. Cost: 0.05 ms."""
        return lambda sha256: self.notes([(row, sha256, owner)], encoding)[0]

    def notes(self, rows: Sequence[tuple[str, bytes, str]], encoding: Encoding) -> list[bytes]:
        """Returns the notes of several values (row, SHA-256, owner; "" = this process) with one signature. Cost: 0.05 ms, and 5 us each."""
        mine, made_s = self._publish(), int(machine.wall_s())
        deeds = [rights.deed(row, owner or self.me.name, mine.identity.key_id, made_s) for row, _, owner in rows]
        told = [
            rights.deed_statement(deed, row, encoding, digest, cluster_id=self._cluster_id)
            for deed, (row, digest, _) in zip(deeds, rows, strict=True)
        ]
        signed = zip(deeds, sign_together(told, mine.sign), strict=True)
        return [rights.encode_deed(msgspec.structs.replace(deed, signature=signature)) for deed, signature in signed]

    # -- verifying

    def holder(self, store: Store, row: str, about: About) -> Holder:
        """Returns the holder of the value in `row`. Cost: 0.15 ms, again 10 us. Raises: CoordinationUnavailable, StoreUnavailable."""
        try:
            return self._holder(store, row, about)
        except NotSealed as error:
            return Holder(why=str(error))

    def look(self, store: Store, row: str, about: About, person: Person | None = None) -> Look:
        """Returns the holder, and the rights of the person. person: None = this process."""
        return self.look_of(store, self.holder(store, row, about), person, key=keys.user_key(row))

    def look_of(self, store: Store, holder: Holder, person: Person | None = None, *, key: str = "") -> Look:
        """Returns the person's rights on values of `holder`, and on the one under `key` as of now: new shares count at once."""
        who = self.me if person is None else person
        if who.is_free or who.owns(holder.owner):
            return Look(person=who, holder=holder)
        shares = self.shared_with(store, holder.owner, who.name, key) if holder.owner else ()
        return Look(person=who, holder=holder, shares=shares, open_reading=self.settings().values == SHARED)

    def check_read(self, store: Store, key: str, row: str, about: About, person: Person | None = None) -> Holder:
        """Returns the holder. Raises PermissionDenied unless the person may read the value; key: the user's name for it."""
        look = self.look(store, row, about, person)
        rights.check_read(look, key)
        return look.holder

    def check_write(self, store: Store, key: str, row: str, about: About, person: Person | None = None) -> Holder:
        """Returns the holder. Raises PermissionDenied unless the person may replace and delete the value."""
        look = self.look(store, row, about, person)
        rights.check_write(look, key)
        return look.holder

    def check_pickle(self, key: str, holder: Holder, trust: Collection[str]) -> None:
        """See `rights.check_pickle`; for this process, with a hint in Python."""
        rights.check_pickle(self.me, key, holder, trust, how=f'if you trust {{who}}: store.get({key!r}, trust="{{who}}")')

    def _holder(self, store: Store, row: str, about: About) -> Holder:
        deed = rights.decode_deed(about.note)
        who = self._signer(deed, row, about)
        if keys.family(row) in keys.OUTPUTS:
            if who.role is not Role.STARTER:
                raise NotSealed(f"it was signed by {who.role} {who.name}, and only Starters write outputs")
            return Holder(owner=deed.owner, writer=deed.owner, why="", deed=deed)
        if not who.is_person:
            raise NotSealed(f"it was signed by {who.role} {who.name}, and values belong to users")
        if who.name != deed.owner and who.role is not Role.OPERATOR:
            if keys.family(row) != "name":
                raise NotSealed(f"it was signed by {who.name} in the name of {deed.owner}")
            shares = self.shared_with(store, deed.owner, who.name, keys.user_key(row))
            if not any(one.write and one.covers(keys.user_key(row)) for one in shares):
                foul = f"{who.name} wrote it in the name of {deed.owner}, who does not allow it (any more)"
                return Holder(owner=deed.owner, writer=who.name, why="", foul=foul, deed=deed)
        return Holder(owner=deed.owner, writer=who.name, why="", deed=deed)

    def _signer(self, deed: Deed, row: str, about: About) -> Identity:
        """Returns the signer of a deed. Raises NotSealed."""
        statement = rights.deed_statement(deed, row, about.encoding, about.sha256, cluster_id=self._cluster_id)
        signature, signed = opened(deed.signature, statement)
        dated = keys.family(row) in keys.OUTPUTS  # outputs outlive their node's certificate: nodes come and go, values stay
        is_mine = deed.key_id == self._credentials.identity.key_id
        known = self._mine() if is_mine else self._trust.look(deed.key_id, at_s=deed.made_s, dated=dated)
        signer = self._trust.find(deed.key_id, at_s=deed.made_s, dated=dated) if known is None else known
        if isinstance(signer, str):
            raise NotSealed(signer)
        seen = deed.key_id, signature, signed
        with self._lock:
            if seen in self._verified:
                self._verified.move_to_end(seen)
                return signer.identity
        if not signer.verify(signature, signed):
            raise NotSealed(f"it is not what {signer.identity.role} {signer.identity.name} signed")
        with self._lock:
            self._verified[seen] = None
            while len(self._verified) > _KEEP:
                self._verified.popitem(last=False)
        return signer.identity

    def _mine(self) -> Certified:
        """Returns this process's own certificate: to verify its own signatures it needs neither others nor ZooKeeper."""
        if self._own is None:
            self._own = self._credentials.certified(self._credentials.certificate_pem)
        return self._own

    # -- shares

    def shared_with(self, store: Store, owner: str, user: str, key: str = "") -> tuple[ValueShare, ...]:
        """Returns what `owner` shares with that user, or with all.

        Cost: two listings and their rows, once in `SHARES_S`, and again if the remembered shares do not cover `key`.
        """
        now_s = machine.monotonic()
        with self._lock:
            known = self._shares.get((owner, user))
        if known is not None and now_s < known.until_s and (not key or any(one.covers(key) for one in known.shares)):
            return known.shares
        told = (islice(self.read_shares(store, keys.shares_of(owner, who)), rights.MOST_SHARES) for who in (user, ALL) if who)
        found = tuple(chain.from_iterable(told))
        with self._lock:
            self._shares[owner, user] = _Shared(found, until_s=now_s + SHARES_S)
            self._shares.move_to_end((owner, user))
            while len(self._shares) > _KEEP_SHARES:
                self._shares.popitem(last=False)
        return found

    def read_shares(self, store: Store, prefix: str = "share/") -> Iterator[ValueShare]:
        """Yields shares in rows with `prefix` that their owners have signed, 100 rows in memory; skips all others."""
        after = ""
        while names := store.keys(prefix, after=after, limit=_PAGE):
            for at in range(0, len(names), _TOGETHER):
                some = names[at : at + _TOGETHER]
                found = store.get_noted_many(some, largest=_MOST_SHARE_BYTES)
                for row in filter(found.__contains__, some):
                    data, about = found[row]
                    with suppress(NotSealed, UsageError):
                        if data is not None and self._holder(store, row, about).owner == keys.parse_share(row)[0]:
                            yield rights.decode_share(row, data)
            if len(names) < _PAGE:
                return
            after = names[-1]

    def put_share(self, store: Store, share: ValueShare) -> None:
        """Shares a value from now on; replaces an earlier share of the same key and user."""
        store.put(share.row, rights.encode_share(share), note=self.noted(share.row, Encoding.RAW, owner=share.owner))
        self.forget_shares()

    def forget_shares(self) -> None:
        """Reads shares again at the next question."""
        with self._lock:
            self._shares.clear()
