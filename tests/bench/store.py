"""How fast the data store is: rows/s, MB/s and latencies, alone, by several processes, and beside a busy thread.

    python tests/bench/store.py [--dir DIR] [--seconds 2] [--json]

Not a test: it asserts nothing. `--dir` must be on the disk that is to be measured (default: the current directory).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rmgr.adapters.sqlite import SqliteStore

ROW = b"x" * 100
LARGE = os.urandom(1 << 20) * 16


def single_puts(path: str, seconds: float, name: str = "a") -> list[float]:
    """Latencies (s) of durable puts of one row, one after the other."""
    spent = []
    with SqliteStore(path) as store:
        end = time.perf_counter() + seconds
        for n in itertools.count():
            begun = time.perf_counter()
            if begun > end:
                return spent
            store.put(f"one/{name}/{n:08d}", ROW)
            spent.append(time.perf_counter() - begun)
    return spent


def batches(path: str, seconds: float, name: str = "a", size: int = 100) -> list[float]:
    """Latencies (s) of durable puts of `size` rows, one after the other."""
    spent = []
    with SqliteStore(path) as store:
        end = time.perf_counter() + seconds
        for n in itertools.count():
            begun = time.perf_counter()
            if begun > end:
                return spent
            store.put_many([(f"many/{name}/{n:06d}/{i:03d}", ROW) for i in range(size)])
            spent.append(time.perf_counter() - begun)
    return spent


def in_threads(work: Callable[..., list[float]], path: str, seconds: float, count: int) -> list[float]:
    found: list[float] = []
    threads = [threading.Thread(target=lambda n=n: found.extend(work(path, seconds, str(n)))) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def one_store_in_threads(path: str, seconds: float, count: int, size: int) -> list[float]:
    """As `batches` (or single puts, size 1), from `count` threads through one store: they share commits."""
    found: list[float] = []
    with SqliteStore(path) as store:
        end = time.perf_counter() + seconds

        def work(name: int) -> None:
            for n in itertools.count():
                begun = time.perf_counter()
                if begun > end:
                    return
                store.put_many([(f"t/{name}/{n:06d}/{i:03d}", ROW) for i in range(size)])
                found.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
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
        latencies.sort()
        row = {
            "bench": bench,
            "rows_per_s": round(len(latencies) * rows_each / seconds),
            "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 2),
            "p99_ms": round(latencies[len(latencies) * 99 // 100] * 1e3, 2),
            "max_ms": round(latencies[-1] * 1e3, 1),
        }
        rows.append(row)
        if not options.json:
            figures = f"p50 {row['p50_ms']:6.2f}  p99 {row['p99_ms']:7.2f}  max {row['max_ms']:6.1f} ms"
            print(f"{bench:44} {row['rows_per_s']:>9,} rows/s   {figures}", flush=True)

    def report_bytes(bench: str, size: int, seconds: float) -> None:
        rows.append({"bench": bench, "mb_per_s": round(size / seconds / 1e6)})
        if not options.json:
            print(f"{bench:44} {size / seconds / 1e6:9,.0f} MB/s", flush=True)

    with tempfile.TemporaryDirectory(dir=options.dir, prefix=".store-bench-") as folder:

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
