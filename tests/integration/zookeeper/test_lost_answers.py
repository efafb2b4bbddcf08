"""Many threads commit while answers, requests and links are lost at random: no commit is lost, doubled or misreported."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.protocol.multi import Committed, Conflict, Create, Exists, GoneOrHolds, Multi, Set
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.coordinators import States
from tests.harness.ended_sessions import LONG_S
from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually

THREADS, SECONDS = 4, 5.0


def test_lost_answers_under_load(zookeeper: ZooKeeperServer, chroot: str) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    until = time.monotonic() + SECONDS
    with Proxy(zookeeper.hosts) as proxy, ZkCoordinator.connect(proxy.hosts, chroot, session_timeout_s=LONG_S) as coord:
        coord.ensure(["/queue", "/names", *(f"/own-{n}" for n in range(THREADS))])
        states, given, ends = States(coord), [0] * THREADS, [0] * THREADS
        errors: list[object] = []

        def work(me: int) -> None:
            version = 0
            while time.monotonic() < until:
                futures = []
                for _ in range(10):
                    name = f"/names/{me}-{given[me]}"
                    given[me] += 1
                    make = Multi(name="MAKE", ops=(Create("/queue/k-", sequence=True), Create(name)), proof=Exists(name))
                    data = str(version).encode()
                    own = Multi(name="SET", ops=(Set(f"/own-{me}", data, version),), proof=GoneOrHolds(f"/own-{me}", data))
                    version += 1
                    futures += [coord.commit(make, timeout_s=30), coord.commit(own, timeout_s=30)]
                errors.extend(o for o in (future.result(60) for future in futures) if not isinstance(o, Committed))
            ends[me] = version

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            fault = rng.choice([proxy.lose_reply, proxy.lose_request, lambda _nth: proxy.cut()])
            cuts = proxy.cuts
            fault(rng.randrange(1, 40))
            eventually(lambda cuts=cuts: proxy.cuts > cuts or time.monotonic() > until)
            threading.Event().wait(rng.uniform(0, 0.3))
        for thread in threads:
            thread.join(60)
        assert errors == [], f"seed {seed}"
        assert proxy.cuts > 0
        assert len(coord.children("/queue").result(60) or []) == sum(given)
        assert sorted(coord.children("/names").result(60) or []) == sorted(f"{n}-{i}" for n in range(THREADS) for i in range(given[n]))
        for n in range(THREADS):
            found = coord.get(f"/own-{n}").result(60)
            assert found.version == ends[n]
        assert "LOST" not in states.seen


def test_two_clients_that_race_for_one_name_never_both_win(zookeeper: ZooKeeperServer, chroot: str) -> None:
    connect = partial(ZkCoordinator.connect, session_timeout_s=LONG_S)
    with Proxy(zookeeper.hosts) as proxy, connect(proxy.hosts, chroot) as mine, connect(proxy.hosts, chroot) as theirs:
        mine.ensure(["/names"])
        for number in range(60):
            if number % 3 == 0:
                proxy.lose_reply(1 + number % 2)
            path = f"/names/{number}"
            claims = [
                client.commit(Multi(name="CLAIM", ops=(Create(path, who),), proof=Exists(path, who)))
                for client, who in ((mine, b"mine"), (theirs, b"theirs"))
            ]
            outcomes = [claim.result(60) for claim in claims]
            assert sorted(type(outcome).__name__ for outcome in outcomes) == [Committed.__name__, Conflict.__name__]
            winner = b"mine" if isinstance(outcomes[0], Committed) else b"theirs"
            found = mine.get(path).result(60)
            assert found.data == winner


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_server_dies_with_whoever_started_it(zookeeper_parts: None, tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom rmgr.dev.zookeeper import ZooKeeperServer\n"
        "server = ZooKeeperServer(sys.argv[1], die_with_parent=True, heap_mb=64).start(wait_s=0)\n"
        "print(server.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        eventually(lambda: "java" in server.name(), "the exec of java")
        parent.kill()
    eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "the server's end")
