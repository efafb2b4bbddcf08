"""Gives a Submitter of a secured cluster what one of an open cluster lacks: a signature, and doubts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rmgr.procedures.bootstrap import read_settings
from rmgr.procedures.fresh_settings import FreshSettings

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.config import SecurityConfig
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.procedures.deeds import Deeds
    from rmgr.submitter.questions import Asks


def engine_options(coordinator: Coordinator, credentials: Credentials | None, security: SecurityConfig, cluster_id: str) -> dict[str, Any]:
    """Keyword arguments of an `Engine`; none in an open cluster."""
    if credentials is None:
        return {}
    from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys
    from rmgr.client.identity.authentic import Authenticity
    from rmgr.client.identity.signing import Signer
    from rmgr.procedures.deeds import Deeds

    trust = Trust(ZooKeeperKeys(coordinator), credentials.ca_pem)
    signer = Signer(credentials, cluster_id, ttl_s=security.payload_ttl_s)
    settings = FreshSettings(partial(read_settings, coordinator))
    return {
        "signer": signer,
        "authenticity": Authenticity(trust, cluster_id),
        "deeds": Deeds(trust, cluster_id, credentials, settings=settings, publish=lambda: signer.publish(coordinator)),
    }


def deeds_of(asks: Asks, credentials: Credentials, cluster_id: str) -> Deeds:
    """Whose values are, for a client that asks."""
    from rmgr.adapters.identity.trust import Trust
    from rmgr.procedures.deeds import Deeds
    from rmgr.submitter.keys import AskedKeys, Publishing
    from rmgr.submitter.questions import ReadSettings

    settings = FreshSettings(lambda: asks.ask(ReadSettings(), timeout_s=10.0).settings)
    trust = Trust(AskedKeys(asks), credentials.ca_pem)
    return Deeds(trust, cluster_id, credentials, settings=settings, publish=Publishing(asks, credentials))
