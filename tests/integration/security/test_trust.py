"""Which certificates and signatures count, on a real ZooKeeper."""

from __future__ import annotations

import time

from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.ops import membership
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.model.cluster.identity import Revocation, Role
from tests.harness.bundles import session_bundles
from tests.harness.waiting import eventually


def test_a_revocation_is_heard_at_once_by_who_has_read_the_list_before(coordinator: ZkCoordinator) -> None:
    coordinator.ensure(["/", paths.IDENTITIES, paths.REVOKED])
    trusted = session_bundles().credentials(Role.STARTER, "n1")
    trust, key_id = Trust(ZooKeeperKeys(coordinator), trusted.ca_pem), trusted.identity.key_id
    eventually(lambda: trust.look(key_id, at_s=time.time()) is not None, "the list is read")
    gone = Revocation(key_id=key_id, name="n1", role=Role.STARTER, by="admin", since_us=1)
    assert isinstance(coordinator.commit(membership.revoke(gone)).result(60), Committed)
    eventually(lambda: trust.is_revoked(key_id), "the revocation is heard", within_s=10.0)
