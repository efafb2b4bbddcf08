"""`python -m rmgr.cli.health HOST:PORT [BUNDLE]`: asks one daemon's gRPC health service; for health checks of containers.

BUNDLE is the daemon's own directory of credentials; none for an open cluster. Exit code 0: it serves. 1: it says that it does not,
or does not answer within 3 s. 2: wrong usage. Cost: 0.2 s of CPU, most of it imports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

TIMEOUT_S = 3.0


def main(argv: Sequence[str]) -> int:
    """Asks once and prints the answer on stdout, which `docker inspect` keeps; returns the exit code."""
    if len(argv) not in {1, 2} or argv[0].startswith("-"):
        sys.stderr.write("usage: python -m rmgr.cli.health HOST:PORT [BUNDLE]\n")
        return 2
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.rpc.channels import OwnClient
    from rmgr.errors import RmgrError

    try:
        credentials = Credentials.load(argv[1]) if len(argv) > 1 else None
        with OwnClient(argv[0], timeout_s=TIMEOUT_S, credentials=credentials) as client:
            is_serving = client.is_serving()
    except RmgrError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    sys.stdout.write(f"{argv[0]}: {'serving' if is_serving else 'not serving'}\n")
    return 0 if is_serving else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
