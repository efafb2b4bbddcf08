"""A client of `bench tasks --through-gateway`: maps no-op tasks each time that it is asked.

    python -m rmgr.bench.load.mapper JSON     {"cluster": {...}, "security": DIR, "tasks": N}, `cluster` as `ClusterConfig` has it;
                                              says {"ready": 1}; for each line it gets, {"span": [begin, end]}

Ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import time

from rmgr.bench.load.children import say
from rmgr.bench.tasks import by_map
from rmgr.client.connection import connect
from rmgr.config import ClusterConfig, Config, SecurityConfig


def main(argument: str) -> None:
    """See the first lines of the file."""
    asked = json.loads(argument)
    config = Config(cluster=ClusterConfig(**asked["cluster"]), security=SecurityConfig(dir=asked["security"]))
    with connect(config=config) as connection:
        by_map(connection, 100)
        say({"ready": 1})
        for _ in sys.stdin:
            begun_s = time.monotonic()
            by_map(connection, asked["tasks"])
            say({"span": [begun_s, time.monotonic()]})


if __name__ == "__main__":
    main(sys.argv[1])
