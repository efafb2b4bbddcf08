"""The gate before all work of a secured cluster: a block is what its user signed, or nothing of it is fetched or started.

Also signs what this Starter commits. In an open cluster there is no gate.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, cast

from rmgr.coord import nonces
from rmgr.coord.seal import NotSealed, amendment_fault, block_statement, check_shape, opened, seal_fragment, spec_digest
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock
from rmgr.daemons.starter.core.fetch import FetchFailure
from rmgr.model.base.states import Reason
from rmgr.model.tasks.block import Fragment
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.pki import Certified
    from rmgr.adapters.identity.trust import Trust
    from rmgr.daemons.starter.core.submissions import Info, RecordCache
    from rmgr.model.tasks.block import Seal
    from rmgr.model.tasks.submission import Amendment, Submission

#: Signatures that were verified already: the parts of one block share theirs, and blocks that left together.
_KEEP = 1024


class Admission(Enum):
    """Whether something may run that is not refused."""

    GRANTED = "granted"
    AWAITED = "awaited"  #: what decides it is on its way


def admission_of(block: ClaimedBlock, gate: Gate | None) -> FetchFailure | Admission:
    """As `Gate.admission`, for open clusters (no gate), too: what no block or record may hold runs nowhere."""
    if block.verdict is BlockVerdict.REFUSED or block.info.refusal:
        return FetchFailure(Reason.UNTRUSTED, f"refused: {block.why or block.info.refusal}", blames_node=False, is_refusal=True)
    if block.goes_back:
        return Admission.AWAITED
    return gate.admission(block) if gate is not None else Admission.GRANTED


class Gate:
    """Verifies blocks and signs fragments for all nodes of a Starter. Owner's thread only."""

    def __init__(self, credentials: Credentials, trust: Trust, records: RecordCache, *, cluster_id: str) -> None:
        self._credentials = credentials
        self._trust = trust
        self._records = records
        assert records.nonces is not None
        self._nonces = records.nonces
        self._cluster_id = cluster_id
        self._verified: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()  #: (key, its signature) -> of what
        self._revocations = 0
        trust.listen(self._heard)

    @property
    def generation(self) -> int:
        """Another one when work that was verified may not be run any more. From any thread."""
        return self._revocations + self._nonces.generation

    def is_barred(self, seal: Seal | None, info: Info) -> bool:
        """The key was its user's when he submitted, and was revoked since: not claimed nor refused, it waits for what is decided.

        Cost: 1 us.
        """
        return seal is not None and self._trust.was_key_of(seal.key_id, info.czxid) == info.record.user

    def has_ended(self, block: ClaimedBlock) -> bool:
        """Its submission has ended since it was verified."""
        return self._nonces.has_ended(block.info.nonce)

    def admission(self, block: ClaimedBlock) -> FetchFailure | Admission:
        """Whether the block may be fetched and run, else why not; AWAITED, too, while it is barred.

        Cost: 0.2 ms once a signature, 0.05 ms a block.
        """
        if block.is_verified:
            return Admission.GRANTED
        if self.is_barred(block.seal, block.info):
            block.judge(BlockVerdict.BARRED)
            return Admission.AWAITED
        info: Info = block.info
        try:
            known = self._verify(block, info)
        except NotSealed as error:
            return FetchFailure(Reason.UNTRUSTED, f"refused: {error}", blames_node=False, is_refusal=True)  # who ends it audits it
        block.is_verified = known
        return Admission.GRANTED if known else Admission.AWAITED

    def belief(self, record: Submission) -> str | Admission:
        """Whether the amendments of a record are those of the people who may make them, else why not. Cost: 0.2 ms each.

        An operator whose key was revoked since has changed what he has: nobody else's work ends for that.
        """
        for change in record.changes:
            key_id, _, text = change.signature.partition(":")
            signer = self._trust.look(key_id, at_s=change.by_us / 1e6, dated=True) if text else "nobody signed it"
            if signer is None:
                return Admission.AWAITED
            why = signer if isinstance(signer, str) else self._fault(signer, record, change)
            if why:
                return f"amendment {change.number}, by {change.by}: {why}"
        return Admission.GRANTED

    def _fault(self, signer: Certified, record: Submission, change: Amendment) -> str:
        """Why who has signed an amendment may not make it, "" = it is as it should be."""
        key = change.signature

        def verify(signature: bytes, statement: bytes) -> bool:
            if self._verified.get((key, signature)) != statement:
                if not signer.verify(signature, statement):
                    return False
                self._verified[key, signature] = statement
            return True

        return amendment_fault(record.id, change, self._cluster_id, signer.identity, verify, operators=self._records.operators)

    def sign(self, submission: int, fragment: Fragment) -> Fragment:
        """The fragment with this Starter's seal."""
        mine = self._credentials
        return seal_fragment(
            fragment, cluster_id=self._cluster_id, submission=submission, key_id=mine.identity.key_id, sign=mine.sign
        )

    def _heard(self) -> None:
        """On any thread: keys may have been revoked."""
        self._revocations = self._trust.revocations

    def _verify(self, block: ClaimedBlock, info: Info) -> bool:
        """True: it is what its user signed. False: something is on its way. Raises NotSealed."""
        seal, record, now_s = block.seal, info.origin, machine.wall_s()
        if seal is None or record is None:
            raise NotSealed("nobody signed it")
        if now_s > seal.not_after_s:
            raise NotSealed("its signature has expired")
        if not info.spec:
            info.spec = spec_digest(record)
        check_shape(block.key, record, block.data.allocation)
        belief = self.belief(record) if record.changes else Admission.GRANTED
        if isinstance(belief, str):
            raise NotSealed(belief)
        if belief is Admission.AWAITED:
            return False
        # As claimed, while the arguments are the block's own: pieces of files come from its row.
        payloads = () if block.data.row else cast("Sequence[bytes]", block.payloads or ())
        statement = block_statement(
            block.key,
            block.data,
            seal=seal,
            payloads=payloads,
            base=block.base,
            cluster_id=self._cluster_id,
            user=record.user,
            spec=info.spec,
        )
        signer = self._trust.look(seal.key_id, at_s=now_s)
        why_not = self._nonce_fault(record, info)
        if signer is None or why_not is None:
            return False
        if isinstance(signer, str):
            raise NotSealed(signer)
        who = signer.identity
        if not who.is_person or who.name != record.user:
            raise NotSealed(f"it was signed by {who.role} {who.name}, and is to run for {record.user}")
        if why_not:
            raise NotSealed(why_not)
        signature, signed = opened(seal.signature, statement)
        if self._verified.get((seal.key_id, signature)) != signed:
            if not signer.verify(signature, signed):
                raise NotSealed("it is not what its user signed: its arguments, its record or its signature was changed")
            self._verified[seal.key_id, signature] = signed
            while len(self._verified) > _KEEP:
                self._verified.popitem(last=False)
        return True

    def _nonce_fault(self, record: Submission, info: Info) -> str | None:
        """Why its nonce does not let it run, "" = it does; None: that is on its way. Cost: 10 us."""
        nonce = self._nonces.look(info.nonce)
        if nonce is None:
            self._nonces.ask(info.nonce)
            return None
        found = nonce.found
        if found is None and self._records.is_open(record.id, math.inf) is None:
            return None  # the record was read on another connection, which may have known more: it is read on this one first
        if (why := nonces.fault(record, info.czxid, found)) or found is None:
            return why
        return nonces.untimely(record, found.stat.ctime_ms / 1000, "ZooKeeper's clock")
