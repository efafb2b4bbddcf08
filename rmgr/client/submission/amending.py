"""Gives a submission other terms: what its user, or an operator, is to sign is signed here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.errors import StateConflict
from rmgr.runtime import machine
from rmgr.submitter.questions import Asks, Updated, UpdateSubmission

if TYPE_CHECKING:
    from rmgr.client.identity.signing import Signer
    from rmgr.model.tasks.submission import Terms

#: What is to be signed changes with each change by somebody else.
_TRIES = 5


def update(asks: Asks, number: int, terms: Terms, *, signer: Signer | None, timeout_s: float) -> Updated:
    """UPDATE. signer: None in an open cluster.

    Raises: as `UpdateSubmission`; PermissionDenied where the credentials are no person's; StateConflict where others keep changing it.
    """
    end_s, signed = machine.monotonic() + timeout_s, None
    for _ in range(_TRIES):
        order = UpdateSubmission(number=number, terms=terms, amendment=signed)
        told = asks.ask(order, timeout_s=max(0.1, end_s - machine.monotonic()))
        if told.to_sign is None or signer is None:
            return told
        signer.publish(asks, timeout_s=max(0.1, end_s - machine.monotonic()))
        signed = replace(told.to_sign, signature=signer.amendment(number, told.to_sign))
    raise StateConflict(f"{number} keeps being changed by somebody else", hint=f"rmgr show {number}")

