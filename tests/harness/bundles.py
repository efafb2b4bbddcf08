"""A cluster authority and bundles of every role, made at first use, once per process (5 ms per bundle)."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from rmgr.adapters.identity.credentials import Credentials, write_files
from rmgr.adapters.identity.pki import issue, make_ca
from rmgr.model.identity import Role


class Bundles:
    """An authority in `directory/ca` and bundles in `directory/<role>-<name>`, made when first asked for."""

    def __init__(self, directory: Path, *, cluster: str = "") -> None:
        self.directory = directory
        self.ca = make_ca(cluster)
        self.ca_dir = write_files(directory / "ca", issue(self.ca, "admin", Role.ADMIN) | self.ca.files())

    def dir(self, role: Role, name: str = "", *, zookeeper: bool = True) -> Path:
        """Returns the directory of a bundle; the name defaults to the role's."""
        name = name or role.value
        where = self.directory / f"{role}-{name}{'' if zookeeper else '-gateway'}"
        return where if where.exists() else write_files(where, issue(self.ca, name, role, zookeeper=zookeeper))

    def credentials(self, role: Role, name: str = "", *, zookeeper: bool = True) -> Credentials:
        """Returns the loaded bundle of a role."""
        return Credentials.load(self.dir(role, name, zookeeper=zookeeper))


@functools.cache
def session_bundles(cluster: str = "") -> Bundles:
    """Returns the bundles of this test process; each `cluster` has its own authority."""
    directory = Path(tempfile.mkdtemp(prefix="rmgr-bundles-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Bundles(directory, cluster=cluster)
