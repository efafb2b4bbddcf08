"""What one slot of a node can do, without ZooKeeper or store: `python tests/bench/runner.py`. Prints one JSON object a line.

Figures move by a factor of two with what else the machine does; processor time per task (`cpu_us`) hardly does.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import queue
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from rmgr.adapters.host.process import CgroupConfig, NodeRunner, Slot, Worker, WorkerSpec
from rmgr.adapters.host.workevents import CommandsEnded, SlotUp, TasksEnded
from rmgr.model.frames import BatchShape, CommandBatch, CommandItem, TaskBatch, TaskItem

PAYLOAD = pickle.dumps(((7,), {}))


class Bench:
    """One node with one slot and one worker."""

    def __init__(self, directory: str) -> None:
        self.events: queue.Queue[list[Any]] = queue.Queue()
        self.runner = NodeRunner(directory=directory, node="bench", on_events=self.events.put, cgroups=CgroupConfig())
        self.slot: Slot = self.runner.open_slot(0)
        self.wait(SlotUp)
        started = time.perf_counter()
        self.worker: Worker = self.slot.start_worker(WorkerSpec())
        while not self.worker.is_ready:
            time.sleep(0.0002)
        self.start_ms = (time.perf_counter() - started) * 1000
        self.blob = cloudpickle.dumps(lambda x: x)
        self.function = hashlib.sha256(self.blob).hexdigest()

    def wait(self, kind: type) -> list[Any]:
        while True:
            found = [event for event in self.events.get(timeout=30) if isinstance(event, kind)]
            if found:
                return found

    def send(self, count: int) -> None:
        items = tuple([TaskItem(self.runner.next_seq(), i, payload=PAYLOAD) for i in range(count)])
        self.worker.send(TaskBatch(shape=BatchShape(submission=42), function=self.function, blob=self.blob, items=items))

    def tasks(self, batch: int, total: int) -> dict[str, object]:
        """No-op calls in batches, at most four batches ahead."""
        before, own, started = self._cpu(self.worker.pid), time.process_time(), time.perf_counter()
        sent = done = 0
        while done < total:
            while sent < total and sent - done < 4 * batch:
                self.send(batch)
                sent += batch
            done += sum(len(event.ends) for event in self.wait(TasksEnded))
        wall = time.perf_counter() - started
        return {
            "bench": f"tasks, batches of {batch}",
            "rate": round(done / wall),
            "worker_cpu_us": round((self._cpu(self.worker.pid) - before) / done * 1e6, 2),
            "starter_cpu_us": round((time.process_time() - own) / done * 1e6, 2),
        }

    def latency(self, count: int) -> dict[str, object]:
        """One call at a time."""
        times = []
        for _ in range(count):
            started = time.perf_counter()
            self.send(1)
            self.wait(TasksEnded)
            times.append(time.perf_counter() - started)
        times.sort()
        return {"bench": "one task", "p50_us": round(times[count // 2] * 1e6), "p99_us": round(times[count * 99 // 100] * 1e6)}

    def commands(self, count: int) -> dict[str, object]:
        """`/bin/true` with captured output, one slot."""
        before, started = self._cpu(self.slot.pid), time.perf_counter()
        items = tuple(CommandItem(self.runner.next_seq(), i) for i in range(count))
        self.slot.run(CommandBatch(shape=BatchShape(submission=42), argv=("/bin/true",), items=items))
        done = 0
        while done < count:
            done += sum(len(event.ends) for event in self.wait(CommandsEnded))
        wall = time.perf_counter() - started
        spawner = (self._cpu(self.slot.pid) - before) / count * 1e6
        started = time.perf_counter()
        subprocess.run(["sh", "-c", f"seq {count} | xargs -P1 -n1 /bin/true"], check=True)
        peer = time.perf_counter() - started
        return {"bench": "commands", "rate": round(count / wall), "xargs_P1": round(count / peer), "spawner_cpu_us": round(spawner)}

    def memory(self) -> dict[str, object]:
        def pss(pid: int) -> float:
            return round(psutil.Process(pid).memory_full_info().pss / 2**20, 1)

        slot, worker = pss(self.slot.pid), pss(self.worker.pid)
        return {"bench": "memory", "spawner_pss_mib": slot, "worker_pss_mib": worker, "fork_ms": round(self.start_ms)}

    @staticmethod
    def _cpu(pid: int) -> float:
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(str(Path(directory) / "run"))
        try:
            bench.tasks(256, 25_600)  # to be warm
            for row in (
                bench.tasks(256, 256 * 400),
                bench.tasks(16, 32_000),
                bench.tasks(1, 5_000),
                bench.latency(1000),
                bench.commands(1000),
                bench.memory(),
            ):
                print(json.dumps(row | {"cores": os.cpu_count()}))
        finally:
            bench.runner.close()


if __name__ == "__main__":
    main()
