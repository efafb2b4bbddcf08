"""The credentials of a cluster on one machine: an authority and bundles in its own directory, made at its first start."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from rmgr.adapters.identity.founding import LOCAL_HOSTS, ensure_authority, ensure_bundle
from rmgr.adapters.identity.pki import Authority, issue_server
from rmgr.dev.zookeeper import ServerTls
from rmgr.model.cluster.identity import Role

#: Set to 1, clusters of `rmgr dev` are open: for tests, and for a look at what security costs.
OPEN_VARIABLE = "RMGR_DEV_OPEN"


class DevSecurity:
    """Bundles below `directory`, made when they are asked for. Cost: 2 ms each, once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def bundle(self, role: Role, name: str) -> Path:
        """The bundle of a daemon or person; one that has expired is made anew."""
        where = self.directory / "bundles" / f"{role}-{name}"
        ensure_bundle(self._ca(), where, name, role, hosts=LOCAL_HOSTS, renew=True)
        return where

    @property
    def owner(self) -> Path:
        """The bundle of who runs the cluster: he may act on everybody's work, and has a gateway's secret of ZooKeeper."""
        return self.bundle(Role.OPERATOR, getpass.getuser())

    @property
    def admin(self) -> Path:
        """The admin's own bundle, with the authority."""
        self._ca()
        return self.directory

    def server_tls(self) -> ServerTls:
        """With what ZooKeeper's servers on this machine show who they are."""
        authority = self._ca()
        certificate, key = issue_server(authority, "zookeeper", LOCAL_HOSTS)
        return ServerTls(certificate=certificate, key=key, ca=authority.cert_pem)

    def _ca(self) -> Authority:
        return ensure_authority(self.directory)[0]  # read anew: to revoke somebody changes the secret of his role


def is_open_asked() -> bool:
    """The variable says that clusters here are to be open."""
    return os.environ.get(OPEN_VARIABLE, "").lower() in {"1", "true", "yes", "on"}
