"""One honest user beside many who flood the gateway: how long his `rmgr submit --wait -- true` takes, before and meanwhile.

    python -m tests.bench.flood [--pinned] [USERS] [ROUNDS] [PROCESSES] [WAY ...]

`--pinned` (four processors or more): gateway, honest user and hostile ones have a processor each, the rest of the cluster has what is
left. So what is slow is the gateway, and not that programs of the attackers take processors of the one machine on which all this runs.

Hostile users are threads of a few processes with the lowest priority (in life they burn other machines), each with a certificate of
his own. Each does what he can, again and again: questions without end, submissions that are followed or never done, values, questions to
the leader, requests that are refused. `session` opens connections and streams as fast as it can: a handshake costs the gateway 2-4 ms
before anybody knows who it is, so it is not among the ways that are taken unasked.
"""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rmgr.adapters.gateway.store import GatewayStore
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.services import LeaderClient
from rmgr.coord.protocol import keys
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError
from rmgr.model.block import NO_SEQ, BlockData, BlockKey
from rmgr.model.identity import Role
from rmgr.model.states import Reason
from rmgr.model.submission import Command, Phase, Submission, Work
from rmgr.model.units import percentile
from rmgr.submitter import messages as m
from rmgr.submitter import questions as q
from rmgr.submitter.questions import encode_question
from tests.bench.stages import STAGES, cluster_stages
from tests.harness.gateway_process import GatewayProcess
from tests.harness.handmade import Handmade
from tests.places import ROOT

_CORES = os.sched_getaffinity(0)
WAYS = ("read", "read", "follow", "submit", "value", "ask", "refused", "mixed", "mixed", "mixed")


def attack(way: str, gateway: str, leader: str, credentials: Credentials, end_s: float, counts: Counter[str]) -> None:
    """Until `end_s`. counts: what was asked, and what was refused."""
    rng = random.Random(credentials.identity.name)
    while way == "session" and time.monotonic() < end_s:
        with contextlib.suppress(RmgrError, TimeoutError), Handmade(gateway, credentials, "", connect_timeout_s=5.0):
            counts["session"] += 1
    store = GatewayStore(gateway, credentials=credentials)
    client = LeaderClient(leader, via=gateway, credentials=credentials)
    talk: Handmade | None = None
    while time.monotonic() < end_s:
        turn = way if way != "mixed" else rng.choice(("read", "follow", "submit", "value", "ask", "refused"))
        counts[turn] += 1
        try:
            if talk is None or talk.is_over:
                counts["streams"] += 1
                talk = Handmade(gateway, credentials, "", connect_timeout_s=5.0)
            if turn == "value":
                data = os.urandom(100_000)
                store.put(keys.upload(hashlib.sha256(data).hexdigest()), data, timeout_s=5.0)
            elif turn == "ask":
                client.jobs(ended=True)
            elif turn == "submit":
                draft = Submission(id=0, name="flood", user=talk.name, queue="default", work=Work.COMMAND, command=_COMMAND)
                talk.submit(replace(draft, phase=Phase.HELD, reason=Reason.USER_HOLD), _BLOCKS, timeout_s=5.0, signs=False)
            elif turn == "follow":  # his own and others', and questions of each
                kept = [talk.keep(rng.randrange(1, 300)) for _ in range(50)]
                talk.say(*(m.AskTail(one, 1) for one in kept), *(m.Leave(one) for one in kept))
                time.sleep(0.05)
                del talk.heard[:]
            else:
                _asked(turn, talk, counts)
        except (RmgrError, TimeoutError):
            counts["refused or late"] += 1


def _asked(turn: str, talk: Handmade, counts: Counter[str]) -> None:
    """A hundred questions at once."""
    read: list[q.Question[Any]] = [q.CountWaiting(queue="default")] * 10 + [q.ReadSettings()] * 90
    asked = read if turn == "read" else [q.DrainNode(node="n1")] * 100
    talk.say(*(m.Ask(at, encode_question(one), 5000) for at, one in enumerate(asked)))
    end_s = time.monotonic() + 5.0
    while len(talk.of(m.Answer)) < len(asked) and not talk.is_over and time.monotonic() < end_s:
        time.sleep(0.02)
    counts["answered"] += len(talk.of(m.Answer))
    del talk.heard[:]


_COMMAND = Command(argv=("true",))
_BLOCKS = [
    (
        BlockKey(priority=0, seq=NO_SEQ, submission=0, first=0, count=50, attempt=1, cores=1, memory_mib=0),
        BlockData(payloads=(b"x" * 200,) * 50),
    )
]


def hostile(gateway: str, leader: str, seconds: float, ways: tuple[str, ...], bundles: list[str]) -> None:
    """One process of attackers; prints what they did."""
    os.nice(19)
    with contextlib.suppress(OSError):  # Linux may weigh sessions before processes (sched_autogroup_enabled): this one has its own
        Path("/proc/self/autogroup").write_text("19")
    counts: Counter[str] = Counter()
    end_s = time.monotonic() + seconds
    threads = []
    for at, bundle in enumerate(bundles):
        words = (ways[(at + os.getpid()) % len(ways)], gateway, leader, Credentials.load(Path(bundle)), end_s, counts)
        threads.append(threading.Thread(target=attack, args=words, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.1, end_s + 10 - time.monotonic()))
    print(dict(sorted(counts.items())), flush=True)
    os._exit(0)


def rmgr(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rmgr.cli.main", *words], env=environment, capture_output=True, text=True, check=False)


class Honest:
    """One user who submits and waits, again and again. `slowest` tells where his time goes."""

    def __init__(self, environment: dict[str, str], cluster: DevCluster, where: Path) -> None:
        self._environment = environment
        self._coordinator = cluster.coordinator
        self._notes = where / "stages.json"
        self.stages: list[dict[str, float]] = []

    def submits(self, rounds: int, end_s: float = float("inf")) -> list[float]:
        """Seconds of each `rmgr submit --wait -- true`, one after the other."""
        self.stages = []
        environment = self._environment | {"RMGR_STAGES": str(self._notes)}
        words = [sys.executable, "-m", "tests.bench.stages", "submit", "--wait", "--", "true"]
        found = []
        for _ in range(rounds):
            self._notes.unlink(missing_ok=True)
            began, began_wall = time.perf_counter(), time.time()
            done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
            found.append(time.perf_counter() - began)
            ended_wall = time.time()
            if done.returncode or not self._notes.exists():
                print("the honest user got", done.returncode, done.stderr[-300:], flush=True)
            else:
                noted = json.loads(self._notes.read_text())
                noted |= cluster_stages(self._coordinator, int(noted["number"]))
                self.stages.append(noted | {"": began_wall, "printed": ended_wall})
            if time.monotonic() > end_s:
                break
        return found

    def tell(self) -> None:
        """What each stage took: in the middle, and in the slowest submissions."""
        print("  ms   " + "".join(f"{stage:>10}" for stage in (*STAGES, "all")))
        whole = [stages["printed"] - stages[""] for stages in self.stages]
        rows = [[(stages.get(b, 0) - stages.get(a, 0)) * 1e3 for a, b in pairwise(("", *STAGES))] for stages in self.stages]
        rows = [[*row, all_s * 1e3] for row, all_s in zip(rows, whole, strict=True)]
        if rows:
            print("  p50  " + "".join(f"{statistics.median(column):>10.0f}" for column in zip(*rows, strict=True)))
        for row in sorted(rows, key=lambda row: -row[-1])[:4]:
            print("  slow " + "".join(f"{value:>10.0f}" for value in row))
        sys.stdout.flush()


def told(name: str, found: list[float]) -> float:
    p99 = percentile(found, 99)
    ms = [seconds * 1e3 for seconds in (statistics.median(found), p99, max(found))]
    print(f"{name:<10}{len(found):>5} submissions   p50 {ms[0]:7.0f} ms   p99 {ms[1]:7.0f} ms   most {ms[2]:7.0f} ms", flush=True)
    return p99


def _only(where: str, pinned: bool) -> None:
    """What is started from now on runs on the processors of `where`."""
    if pinned:
        gateway, honest, attackers, *others = sorted(_CORES)
        os.sched_setaffinity(0, {"gateway": {gateway}, "honest": {honest}, "hostile": {attackers}, "cluster": set(others)}[where])


def main(users: int, rounds: int, processes: int, ways: tuple[str, ...], *, pinned: bool) -> None:
    compileall.compile_dir(ROOT / "rmgr", quiet=1)  # or, with PYTHONDONTWRITEBYTECODE, each command compiles what it loads
    with tempfile.TemporaryDirectory() as where:
        _only("cluster", pinned)
        cluster = DevCluster(Path(where) / "c", nodes=1, watchdogs=1, session_timeout_s=6.0, heap_mb=512, secured=True)
        cluster.start()
        security = cluster.security
        assert security is not None
        daemons = cluster.environment() | {"RMGR_SECURITY_DIR": str(security.bundle(Role.SUBMITTER, "gateway"))}
        bundles = [str(security.bundle(Role.USER, f"m{at}")) for at in range(users)]
        leader = cluster.snapshot().epoch.endpoint  # type: ignore[union-attr]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        _only("gateway", pinned)
        try:
            with GatewayProcess(daemons, Path(where)) as gateway:
                environment = kept | {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": str(security.bundle(Role.USER, "ann"))}
                _only("honest", pinned)
                honest = Honest(environment, cluster, Path(where))
                honest.submits(5)
                before = told("alone", honest.submits(rounds))
                honest.tell()
                seconds = rounds * 1.5 + 10
                words = [sys.executable, "-m", "tests.bench.flood", "hostile", gateway.endpoint, leader, str(seconds), ",".join(ways)]
                _only("hostile", pinned)
                lots = [bundles[at::processes] for at in range(processes)]
                children = [subprocess.Popen([*words, *lot], env=kept, cwd=ROOT, start_new_session=True) for lot in lots]
                _only("honest", pinned)
                time.sleep(8)
                pid = gateway.pid
                burnt, cpu, began = [_cpu_s(child.pid) for child in children], _cpu_s(pid), time.monotonic()
                meanwhile = told(f"+{users}", honest.submits(rounds, began + seconds - 12))
                honest.tell()
                took_s = time.monotonic() - began
                theirs = (sum(_cpu_s(child.pid) for child in children) - sum(burnt)) / took_s
                mine = (_cpu_s(pid) - cpu) / took_s
                print(f"gateway: {mine * 100:.0f} % of a core, {_rss_mib(pid)} MiB; attackers: {theirs * 100:.0f} %")
                print(_requests(gateway.metrics))
                print(rmgr(environment, "limits").stdout)
                for child in children:
                    child.wait(60)
                time.sleep(3)
                told("after", honest.submits(rounds // 4))
                events = Counter(json.loads(line)["event"] for line in gateway.log().splitlines() if line.startswith("{"))
                print("lines of its log:", events.most_common(6))
                print(f"p99 x{meanwhile / before:.2f}; gateway then: {_rss_mib(pid)} MiB; its log: {len(gateway.log()) / 1024:.0f} KiB")
        finally:
            cluster.stop()


def _requests(metrics: str) -> str:
    """What the gateway has done since it began, by kind."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("rmgr_gateway_") and "_total{" in line)


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


if __name__ == "__main__":
    if sys.argv[1:2] == ["hostile"]:
        hostile(sys.argv[2], sys.argv[3], float(sys.argv[4]), tuple(sys.argv[5].split(",")), sys.argv[6:])
    else:
        words = [word for word in sys.argv[1:] if word != "--pinned"]
        given = [int(word) for word in words[:3]]
        main(*(given + [100, 60, 4][len(given) :]), tuple(words[3:]) or WAYS, pinned="--pinned" in sys.argv)
