"""What a Submitter of a secured cluster has that one of an open cluster has not: a signature, and doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmgr.adapters.credentials import Credentials
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

    return {
        "signer": Signer(credentials, cluster_id, ttl_s=security.payload_ttl_s, oldest=oldest),
        "authenticity": Authenticity(Trust(coordinator, credentials.ca_pem), cluster_id),
    }
