"""A client of `bench tasks --through-gateway`: maps no-op tasks each time that it is asked.

    python -m rmgr.bench.load.mapper "GATEWAY TASKS SECURITY"     says {"ready": 1}; for each line it gets, {"span": [begin, end]}

Ends with its standard input.
"""

from __future__ import annotations

import sys
import time

from rmgr.bench.load.children import say
from rmgr.bench.tasks import by_map
from rmgr.client.connection import connect
from rmgr.config import ClusterConfig, Config, SecurityConfig


def main(gateway: str, tasks: str, security: str = "") -> None:
    """See the first lines of the file."""
    with connect(config=Config(cluster=ClusterConfig(gateway=gateway), security=SecurityConfig(dir=security))) as connection:
        by_map(connection, 100)
        say({"ready": 1})
        for _ in sys.stdin:
            begun_s = time.monotonic()
            by_map(connection, int(tasks))
            say({"span": [begun_s, time.monotonic()]})


if __name__ == "__main__":
    main(*sys.argv[1].split())
