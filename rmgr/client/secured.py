"""What a Submitter of a secured cluster has that one of an open cluster has not: a signature, and doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmgr.client.fresh_settings import FreshSettings
from rmgr.model.version import OWNED

if TYPE_CHECKING:
    from rmgr.adapters.credentials import Credentials
    from rmgr.adapters.trust import Trust
    from rmgr.client.deeds import Deeds
    from rmgr.client.signing import Signer
    from rmgr.config import SecurityConfig
    from rmgr.coord.ports import Coordinator


def engine_options(
    coordinator: Coordinator, credentials: Credentials | None, security: SecurityConfig, cluster_id: str, oldest: int
) -> dict[str, Any]:
    """Keyword arguments of an `Engine`; none in an open cluster. oldest: see `Signer`."""
    if credentials is None:
        return {}
    from rmgr.adapters.trust import Trust
    from rmgr.client.authentic import Authenticity
    from rmgr.client.signing import Signer

    trust = Trust(coordinator, credentials.ca_pem)
    signer = Signer(credentials, cluster_id, ttl_s=security.payload_ttl_s, oldest=oldest)
    return {
        "signer": signer,
        "authenticity": Authenticity(trust, cluster_id),
        "deeds": deeds_of(coordinator, trust, signer, credentials, cluster_id, oldest),
    }


def deeds_of(
    coordinator: Coordinator, trust: Trust, signer: Signer, credentials: Credentials, cluster_id: str, oldest: int
) -> Deeds | None:
    """Whose values are, for a client; None while releases take part that know of no owners."""
    from rmgr.client.deeds import Deeds

    if oldest < OWNED:
        return None
    settings = FreshSettings(coordinator)
    return Deeds(trust, cluster_id, credentials, settings=settings, publish=lambda: signer.publish(coordinator))
