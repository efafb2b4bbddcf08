"""Ends of the certificates that a leader knows: its own, and those with which the Starters that are there sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmgr.coord.views.health import CertificateHolder

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.coord.views.snapshot import ClusterSnapshot


def certificate_ends(trust: Trust | None, credentials: Credentials | None, snapshot: ClusterSnapshot) -> dict[CertificateHolder, float]:
    """Seconds since 1970 by holder; nothing in an open cluster. Never waits: what was not read yet is there the next time.

    Cost: 2 us a node.
    """
    if trust is None or credentials is None:
        return {}
    mine = credentials.identity
    found = {CertificateHolder(role=mine.role.value, name=mine.name): credentials.not_after_s}
    for record in snapshot.nodes.values():
        at_s = trust.ends_s(record.key_id) if record.key_id and record.guid in snapshot.alive else None
        if at_s is not None:
            found[CertificateHolder(role="starter", name=record.node)] = at_s
    return found
