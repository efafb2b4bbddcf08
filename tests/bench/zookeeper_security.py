"""What access lists, digests and TLS cost: commits/s and CPU of the client, each beside the open connection in the same round.

    python -m tests.bench.zookeeper_security [ROUNDS]

A commit is an ENQUEUE of one block: a tail set, a sequential znode of 200 bytes created. One server with fsync, 256 in flight.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

from rmgr.adapters.identity.pki import issue_server
from rmgr.adapters.zookeeper.acl import RoleLists
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.server import ZkSecurity
from rmgr.coord.protocol.multi import Create, Holds, Multi, Set
from rmgr.dev.zookeeper import ServerTls, ZooKeeperServer
from rmgr.model.identity import Role
from tests.harness.bundles import session_bundles

COMMITS = 4000
WAYS = ("open", "digest and access lists", "the same through TLS")


def measure(server: ZooKeeperServer, chroot: str, **options: object) -> tuple[float, float, float]:
    """(commits/s with 256 in flight, CPU of this process a commit in us, ms a commit one at a time)."""
    with ZkCoordinator.connect(server.hosts, chroot, connect_timeout_s=20, **options) as coordinator:
        coordinator.ensure(["/queues/default/pending", "/subs/0/1/tail"])

        def commit(number: int) -> object:
            data = str(number).encode()
            ops = (Set("/subs/0/1/tail", data, number), Create("/queues/default/pending/k-", bytes(200), sequence=True))
            return coordinator.commit(Multi(name="ENQUEUE", ops=ops, proof=Holds("/subs/0/1/tail", data)), timeout_s=60)

        for number in range(200):
            commit(number).result(60)
        began, cpu = time.perf_counter(), time.process_time()
        for future in [commit(number) for number in range(200, COMMITS)]:
            future.result(60)
        rate = (COMMITS - 200) / (time.perf_counter() - began)
        cpu_us = (time.process_time() - cpu) / (COMMITS - 200) * 1e6
        began = time.perf_counter()
        for number in range(COMMITS, COMMITS + 200):
            commit(number).result(60)
        return rate, cpu_us, (time.perf_counter() - began) / 200 * 1e3


def main(rounds: int) -> None:
    bundles = session_bundles("")
    credentials = bundles.credentials(Role.WATCHDOG)
    assert credentials.zookeeper_auth is not None
    scheme, secret = credentials.zookeeper_auth
    lists = RoleLists({role: (known,) for role, known in credentials.roles.items()})
    certificate, key = issue_server(bundles.ca, "zk", ("127.0.0.1",))
    tls = ServerTls(certificate=certificate, key=key, ca=bundles.ca.cert_pem)
    files = {"ca_file": credentials.path("ca.crt"), "cert_file": credentials.path("tls.crt"), "key_file": credentials.path("tls.key")}
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    with (
        tempfile.TemporaryDirectory() as where,
        ZooKeeperServer(f"{where}/plain", heap_mb=256, die_with_parent=True) as plain,
        ZooKeeperServer(f"{where}/tls", heap_mb=256, tls=tls, die_with_parent=True) as secure,
    ):
        for number in range(rounds):
            digest = {"auth_scheme": scheme, "auth_credential": secret}
            found[WAYS[0]].append(measure(plain, f"/open{number}"))
            found[WAYS[1]].append(measure(plain, f"/lists{number}", security=ZkSecurity(**digest), acl=lists))
            found[WAYS[2]].append(measure(secure, f"/tls{number}", security=ZkSecurity(tls=True, **files, **digest), acl=lists))
    for way, rows in found.items():
        rate, cpu, alone = (statistics.median(column) for column in zip(*rows, strict=True))
        ratio = statistics.median(row[0] / base[0] for row, base in zip(rows, found[WAYS[0]], strict=True))
        spread = f"{min(row[0] for row in rows):,.0f}-{max(row[0] for row in rows):,.0f}"
        print(f"{way:<26}{rate:>8,.0f} commits/s [{spread}]  x{ratio:.2f}   {cpu:>5.0f} us CPU   {alone:.2f} ms alone")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
