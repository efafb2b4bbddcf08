"""How fast the data store is: rows/s, MB/s and latencies, alone, by several processes, and beside a busy thread.

    python tests/bench/store.py [--dir DIR] [--seconds 2] [--json]
    python tests/bench/store.py --store cassandra://host1,host2/keyspace      the same of a store that is there
    python tests/bench/store.py --cassandra 1 [--dir DIR]                     of one (or three) Cassandra nodes started for it

Not a test: it asserts nothing. `--dir` must be on the disk that is to be measured (default: the current directory).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rmgr.adapters.sqlite.store import SqliteStore
from rmgr.adapters.stores import open_store
from rmgr.model.units import percentile

ROW = b"x" * 100
LARGE = os.urandom(1 << 20) * 16


def timed(work: Callable[[int], object], seconds: float) -> list[float]:
    """Latencies (s) of `work`, which is called for so long with 0, 1, ..."""
    spent: list[float] = []
    end = time.perf_counter() + seconds
    for n in itertools.count():
        begun = time.perf_counter()
        if begun > end:
            break
        work(n)
        spent.append(time.perf_counter() - begun)
    return spent


def in_threads(work: Callable[[int], list[float]], count: int) -> list[float]:
    """Latencies of `work`, which each of `count` threads calls with its number."""
    with ThreadPoolExecutor(count) as pool:
        return [latency for found in pool.map(work, range(count)) for latency in found]


def single_puts(path: str, seconds: float, name: str = "a") -> list[float]:
    """Latencies (s) of durable puts of one row, one after the other."""
    with SqliteStore(path) as store:
        return timed(lambda n: store.put(f"one/{name}/{n:08d}", ROW), seconds)


def rows_of(n: int, size: int, name: str) -> list[tuple[str, bytes]]:
    return [(f"{name}/{n:06d}/{i:03d}", ROW) for i in range(size)]


def batches(path: str, seconds: float, name: str = "a") -> list[float]:
    """Latencies (s) of durable puts of a hundred rows, one after the other."""
    with SqliteStore(path) as store:
        return timed(lambda n: store.put_many(rows_of(n, 100, f"many/{name}")), seconds)


def one_store_in_threads(path: str, seconds: float, count: int, size: int) -> list[float]:
    """As `batches` (or single puts, size 1), from `count` threads through one store: they share commits."""
    with SqliteStore(path) as store:
        return in_threads(lambda name: timed(lambda n: store.put_many(rows_of(n, size, f"t/{name}")), seconds), count)


def in_processes(what: str, path: str, seconds: float, count: int) -> list[float]:
    command = [sys.executable, __file__, "--child", what, "--path", path, "--seconds", str(seconds)]
    children = [subprocess.Popen([*command, "--name", str(n)], stdout=subprocess.PIPE) for n in range(count)]
    return [latency for child in children for latency in json.loads(child.communicate()[0])]


class Busy:
    """A thread that computes without pause, as a daemon under load has them."""

    def __enter__(self) -> None:
        self._stop = False
        self._thread = threading.Thread(target=self._spin)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    def _spin(self) -> None:
        while not self._stop:
            sum(range(1000))


@contextlib.contextmanager
def cassandra(folder: Path, nodes: int) -> Iterator[str]:
    """The URL of a keyspace in nodes of its own, each value on all of them."""
    from rmgr.adapters.cassandra.setup import init_store
    from rmgr.adapters.cassandra.url import parse_url
    from tests.harness.cassandra_ring import CassandraRing

    ring = CassandraRing(folder, addresses=[f"127.0.0.{n + 1}" for n in range(nodes)], die_with_parent=True)
    ring.start()
    try:
        hosts = ",".join(node.address for node in ring.nodes)
        url = f"cassandra://{hosts}:{ring.port}/bench?replication_factor={nodes}&request_timeout=10"
        init_store(parse_url(url))
        yield url
    finally:
        ring.kill()


def remote(url: str, seconds: float, report: Callable[..., None], report_bytes: Callable[..., None]) -> None:
    """Rows and values of a store behind a network."""
    store = open_store(url)
    if problem := store.health(timeout_s=10.0):
        sys.exit(problem)

    def spent(work: Callable[[int], object]) -> list[float]:
        return timed(work, seconds)

    def threads(work: Callable[[int], object], count: int) -> list[float]:
        return in_threads(lambda at: spent(lambda n: work(at * 1_000_000 + n)), count)

    def put(n: int) -> None:
        store.put(f"out/{os.getpid():010d}/{n:010d}", ROW, ttl_s=3600)

    batch = f"frag/{os.getpid():010d}"
    report("single puts", spent(put), 1)
    report("single puts, 16 threads", threads(put, 16), 1)
    report("batches of 100", spent(lambda n: store.put_many(rows_of(n, 100, batch), ttl_s=3600)), 100)
    report("batches of 100, 4 threads", threads(lambda n: store.put_many(rows_of(n, 100, batch), ttl_s=3600), 4), 100)
    once = f"name/bench/{os.getpid()}"
    report("batches of 100 that must be new", spent(lambda n: store.put_many(rows_of(n, 100, once), ttl_s=3600, overwrite=False)), 100)
    report("get of one row", spent(lambda n: store.get(f"{batch}/{n % 10:06d}/000")), 1)
    report("get_many of 1,000 rows", spent(lambda n: store.get_many([key for at in range(10) for key, _ in rows_of(at, 100, batch)])), 1000)
    report("keys, pages of 1,000", spent(lambda n: store.keys(f"{batch}/", limit=1000)), 1000)
    size = LARGE[: 8 * 2**20]
    written = spent(lambda n: store.put(f"out/{os.getpid():010d}/large/{n % 8}", size, ttl_s=3600))
    report_bytes("write, values of 8 MiB", len(size) * len(written), sum(written))
    read = spent(lambda n: store.get(f"out/{os.getpid():010d}/large/{n % min(8, len(written))}"))
    report_bytes("read, values of 8 MiB", len(size) * len(read), sum(read))
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--store", help="URL of a store that is there (rows under name/bench are left behind, for an hour)")
    parser.add_argument("--cassandra", type=int, metavar="NODES", help="start so many nodes and measure them")
    parser.add_argument("--child", choices=["single", "batch"], help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="a", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work = single_puts if options.child == "single" else batches
        json.dump(work(options.path, options.seconds, options.name), sys.stdout)
        return
    rows: list[dict[str, object]] = []

    def report(bench: str, latencies: list[float], rows_each: int, seconds: float = options.seconds) -> None:
        row = {
            "bench": bench,
            "rows_per_s": round(len(latencies) * rows_each / seconds),
            "p50_ms": round(percentile(latencies, 50) * 1e3, 2),
            "p99_ms": round(percentile(latencies, 99) * 1e3, 2),
            "max_ms": round(max(latencies) * 1e3, 1),
        }
        rows.append(row)
        if not options.json:
            figures = f"p50 {row['p50_ms']:6.2f}  p99 {row['p99_ms']:7.2f}  max {row['max_ms']:6.1f} ms"
            print(f"{bench:44} {row['rows_per_s']:>9,} rows/s   {figures}", flush=True)

    def report_bytes(bench: str, size: int, seconds: float) -> None:
        rows.append({"bench": bench, "mb_per_s": round(size / seconds / 1e6)})
        if not options.json:
            print(f"{bench:44} {size / seconds / 1e6:9,.0f} MB/s", flush=True)

    with tempfile.TemporaryDirectory(dir=options.dir, prefix=".store-bench-") as folder, contextlib.ExitStack() as stack:
        url = options.store
        if options.cassandra:
            url = stack.enter_context(cassandra(Path(folder), options.cassandra))
        if url:
            remote(url, options.seconds, report, report_bytes)
            if options.json:
                print(json.dumps({"schema": "rmgr/1", "bench": "store", "rows": rows}))
            return

        def fresh() -> str:
            return str(Path(folder) / f"{len(rows)}.db")

        report("single puts", single_puts(fresh(), options.seconds), 1)
        report("batches of 100", batches(fresh(), options.seconds), 100)
        report("single puts, 16 threads, one store", one_store_in_threads(fresh(), options.seconds, 16, 1), 1)
        report("batches of 100, 4 threads, one store", one_store_in_threads(fresh(), options.seconds, 4, 100), 100)
        report("single puts, 4 processes", in_processes("single", fresh(), options.seconds, 4), 1)
        report("batches of 100, 4 processes", in_processes("batch", fresh(), options.seconds, 4), 100)
        with Busy():
            report("single puts, beside a busy thread", single_puts(fresh(), options.seconds), 1)
            report("batches of 100, beside a busy thread", batches(fresh(), options.seconds), 100)
            usual = sys.getswitchinterval()
            sys.setswitchinterval(0.0005)
            report("the same, switch interval 0.5 ms", batches(fresh(), options.seconds), 100)
            sys.setswitchinterval(usual)
        with SqliteStore(fresh()) as store:
            begun = time.perf_counter()
            for n in range(4):
                store.put(f"large/{n}", LARGE)
            report_bytes("write, values of 16 MiB", 4 * len(LARGE), time.perf_counter() - begun)
            begun = time.perf_counter()
            for n in range(4):
                store.get(f"large/{n}")
            report_bytes("read, values of 16 MiB", 4 * len(LARGE), time.perf_counter() - begun)
            begun = time.perf_counter()
            for n in range(4):
                for _ in store.stream(f"large/{n}") or ():
                    pass
            report_bytes("stream, values of 16 MiB", 4 * len(LARGE), time.perf_counter() - begun)
            names = [f"row/{n:06d}" for n in range(20_000)]
            store.put_many([(name, ROW) for name in names])
            latencies = []
            for name in names[:5000]:
                begun = time.perf_counter()
                store.get(name)
                latencies.append(time.perf_counter() - begun)
            report("get of one row", latencies, 1, sum(latencies))
            begun = time.perf_counter()
            store.get_many(names)
            report("get_many of 20,000 rows", [time.perf_counter() - begun], len(names), time.perf_counter() - begun)
            latencies = []
            after = ""
            while True:
                begun = time.perf_counter()
                page = store.keys("row/", after=after, limit=1000)
                latencies.append(time.perf_counter() - begun)
                if not page:
                    break
                after = page[-1]
            report("keys, pages of 1,000", latencies, 1000, sum(latencies))
    if options.json:
        print(json.dumps({"schema": "rmgr/1", "bench": "store", "rows": rows}))


if __name__ == "__main__":
    main()
