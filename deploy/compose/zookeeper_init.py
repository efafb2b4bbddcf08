"""The one-shot `zookeeper-init`: ZooKeeper's own `/` is closed to strangers, and the cluster's subtrees get quotas.

Runs with the admin's bundle when the servers have a quorum and before any daemon starts. Safe to run again, and does nothing then.
RMGR_ZOOKEEPER_HEAP_MIB is the heap of each server (docker-compose.yml sets both).
"""

from __future__ import annotations

import os
import sys

from rmgr import config
from rmgr.coord.protocol.acl import HEAP_MIB
from rmgr.errors import ConfigError, RmgrError
from rmgr.runtime.secured import close_zookeeper, credentials_of


def main() -> None:
    """Closes and limits; prints what was done."""
    loaded = config.load()
    admin = credentials_of(loaded)
    if admin is None:
        raise ConfigError("there are no credentials", hint="RMGR_SECURITY_DIR must name the admin's bundle")
    done = close_zookeeper(loaded, admin, heap_mib=int(os.environ.get("RMGR_ZOOKEEPER_HEAP_MIB", HEAP_MIB)))
    print(f"closed {' '.join(done.closed) or 'before'}; quotas of {len(done.quotas)} subtrees set now", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RmgrError as error:
        sys.exit(f"error: {error.message}\n{error.hint}")
