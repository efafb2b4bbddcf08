"""Gives a submission other terms: what its user, or an operator, is to sign is signed here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.errors import PermissionDenied, StateConflict
from rmgr.runtime import machine
from rmgr.submitter.questions import Asks, PublishCertificate, Updated, UpdateSubmission

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.client.identity.signing import Signer
    from rmgr.model.tasks.submission import Terms

#: What is to be signed changes with each change by somebody else.
_TRIES = 5


def update(
    asks: Asks, number: int, terms: Terms, *, signer: Signer | None, credentials: Credentials | None, timeout_s: float
) -> Updated:
    """UPDATE. signer, credentials: None in an open cluster.

    Raises: as `UpdateSubmission`; PermissionDenied where the credentials are no person's; StateConflict where others keep changing it.
    """
    end_s, signed, is_published = machine.monotonic() + timeout_s, None, False
    for _ in range(_TRIES):
        order = UpdateSubmission(number=number, terms=terms, amendment=signed)
        told = asks.ask(order, timeout_s=max(0.1, end_s - machine.monotonic()))
        if told.to_sign is None or signer is None or credentials is None:
            return told
        if not is_published:
            _check_person(credentials)
            asks.ask(PublishCertificate(pem=credentials.certificate_pem), timeout_s=max(0.1, end_s - machine.monotonic()))
            is_published = True
        signed = replace(told.to_sign, signature=signer.amendment(number, told.to_sign))
    raise StateConflict(f"{number} keeps being changed by somebody else", hint=f"rmgr show {number}")


def _check_person(credentials: Credentials) -> None:
    who = credentials.identity
    if not who.is_person:
        raise PermissionDenied(
            f"the credentials in {credentials.directory} are those of {who.role} {who.name}, and only users change work",
            hint="rmgr admin add-user NAME makes a user's; then set RMGR_SECURITY_DIR",
        )
