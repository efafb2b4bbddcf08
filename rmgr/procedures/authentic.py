"""Checks which outcomes a client believes: those that a Starter of the cluster has signed, as it signed them.

Nothing of the others is unpickled; they end as DATA_LOST that says what was wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.seal import fragment_statement, is_precious, needs_seal
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.pki import Certified
    from rmgr.adapters.identity.trust import Trust

#: Error text of a COMPLETED outcome whose bytes are gone, or not to be believed.
LOST = "DATA_LOST"


class Authenticity:
    """Judges fragments. Thread-safe.

    Args: cluster_id: of the cluster's tree.
    """

    def __init__(self, trust: Trust, cluster_id: str) -> None:
        self._trust = trust
        self._cluster_id = cluster_id

    def doubt(self, submission: int, fragment: Fragment, zxid: int, data: bytes = b"") -> str | None:
        """Why it is not believed, "" if it is; None: not known yet (`find_doubt` waits for it). Cost: 0.15 ms.

        Args: zxid: transaction that committed it. data: what it was read from, b"" = not at hand.
        """
        seal = fragment.seal
        if seal is None:
            return "nobody signed it" if needs_seal(fragment) else ""
        signer = self._trust.look(seal.key_id, at_s=_made_s(fragment), zxid=zxid)
        return None if signer is None else self._judged(submission, fragment, signer, data)

    def believes(self, submission: int, fragment: Fragment, data: bytes) -> bool:
        """A fragment that is not committed yet would be believed, without asking anybody."""
        return self.doubt(submission, fragment, 0, data) == ""

    def find_doubt(self, submission: int, fragment: Fragment, zxid: int, data: bytes = b"") -> str:
        """As `doubt`, and waits. Raises: CoordinationUnavailable."""
        seal = fragment.seal
        if seal is None:
            return "nobody signed it" if needs_seal(fragment) else ""
        return self._judged(submission, fragment, self._trust.find(seal.key_id, at_s=_made_s(fragment), zxid=zxid), data)

    def _judged(self, submission: int, fragment: Fragment, signer: Certified | str, data: bytes) -> str:
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
    """The error text of an outcome that is not believed."""
    return f"{LOST}: its outcome cannot be believed: {why}"


def doubted(outcomes: Sequence[Outcome], why: str) -> list[Outcome]:
    """What is left of outcomes that are not believed: states, and what is wrong."""
    text = disbelief(why)
    bare = {"value": b"", "value_size": -1, "value_sha256": None, "outputs": 0, "call": None, "error": text}
    return [msgspec.structs.replace(outcome, **bare) if is_precious(outcome) else outcome for outcome in outcomes]
