"""Gives a Submitter of a secured cluster what one of an open cluster lacks: a signature, and doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmgr.procedures.fresh_settings import FreshSettings

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.client.identity.signing import Signer
    from rmgr.config import SecurityConfig
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.procedures.deeds import Deeds


def engine_options(coordinator: Coordinator, credentials: Credentials | None, security: SecurityConfig, cluster_id: str) -> dict[str, Any]:
    """Keyword arguments of an `Engine`; none in an open cluster."""
    if credentials is None:
        return {}
    from rmgr.adapters.identity.trust import Trust
    from rmgr.client.identity.authentic import Authenticity
    from rmgr.client.identity.signing import Signer

    trust = Trust(coordinator, credentials.ca_pem)
    signer = Signer(credentials, cluster_id, ttl_s=security.payload_ttl_s)
    return {
        "signer": signer,
        "authenticity": Authenticity(trust, cluster_id),
        "deeds": deeds_of(coordinator, trust, signer, credentials, cluster_id),
    }


def deeds_of(coordinator: Coordinator, trust: Trust, signer: Signer, credentials: Credentials, cluster_id: str) -> Deeds:
    """Whose values are, for a client."""
    from rmgr.procedures.deeds import Deeds

    settings = FreshSettings(coordinator)
    return Deeds(trust, cluster_id, credentials, settings=settings, publish=lambda: signer.publish(coordinator))
