"""Gives a Submitter of a secured cluster what one of an open cluster lacks: a signature, and doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmgr.procedures.fresh_settings import FreshSettings

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.config import SecurityConfig
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.procedures.deeds import Deeds
    from rmgr.submitter.questions import Asks


def engine_options(
    asks: Asks, credentials: Credentials | None, security: SecurityConfig, cluster_id: str, coordinator: Coordinator | None = None
) -> dict[str, Any]:
    """Keyword arguments of an engine; none in an open cluster. coordinator: tells of revocations as they come; None: they are asked for."""
    if credentials is None:
        return {}
    from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys
    from rmgr.client.identity.signing import Signer
    from rmgr.procedures.authentic import Authenticity
    from rmgr.procedures.deeds import Deeds
    from rmgr.submitter.keys import AskedKeys

    trust = Trust(ZooKeeperKeys(coordinator) if coordinator is not None else AskedKeys(asks), credentials.ca_pem)
    signer = Signer(credentials, cluster_id, ttl_s=security.payload_ttl_s)
    return {
        "signer": signer,
        "authenticity": Authenticity(trust, cluster_id),
        "deeds": Deeds(trust, cluster_id, credentials, settings=_settings_of(asks), publish=lambda: signer.publish(asks)),
    }


def deeds_of(asks: Asks, credentials: Credentials, cluster_id: str) -> Deeds:
    """Whose values are, for a client that asks."""
    from rmgr.adapters.identity.trust import Trust
    from rmgr.procedures.deeds import Deeds
    from rmgr.submitter.keys import AskedKeys, Publishing

    trust = Trust(AskedKeys(asks), credentials.ca_pem)
    return Deeds(trust, cluster_id, credentials, settings=_settings_of(asks), publish=Publishing(asks, credentials))


def _settings_of(asks: Asks) -> FreshSettings:
    from rmgr.submitter.questions import ReadSettings

    return FreshSettings(lambda: asks.ask(ReadSettings(), timeout_s=10.0).settings)
