#!/usr/bin/env python3
"""Kills one Starter in the middle of a TaskQueue, and tells from the attempts of its tasks how long the recovery took.

Uses the command line's JSON alone (`rmgr jobs|tasks|show|nodes --json`), so it also shows how to script rmgr.

    starter_loss.py newest                                     # number of the newest job, 0 when there is none
    starter_loss.py kill --job 2 --done 0.2 --record FILE      # waits until job 2 is 20 % done, then SIGKILL to its busiest node
    starter_loss.py report FILE                                # when the job has ended
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

RMGR = Path(sys.executable).with_name("rmgr")  # of the same virtual environment
PATIENCE_S = 120.0
#: How long after a Starter was stopped what it held is asked for (s).
TOLD_S = 0.3


def rmgr(*words: str) -> Any:
    """The JSON answer of `rmgr WORDS --json`; exits with its message when it fails."""
    ended = subprocess.run([RMGR, *words, "--json"], capture_output=True, text=True, timeout=60, check=False)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        sys.exit(f"rmgr {' '.join(words)} ended with {ended.returncode}: {ended.stderr.strip() or ended.stdout.strip()}")


def tasks_of(job: str) -> list[dict[str, Any]]:
    """All tasks of a job, page after page."""
    page = rmgr("tasks", job)
    rows = list(page["tasks"])
    while page.get("next"):
        page = rmgr("tasks", job, "--after", page["next"])
        rows += page["tasks"]
    return rows


def seconds(text: str) -> float:
    """ISO-8601 -> seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def newest() -> int:
    """Number of the newest job, 0 when there is none."""
    return max((int(job["id"]) for job in rmgr("jobs", "--all")["jobs"]), default=0)


def is_done(job: str, part: float) -> bool:
    """Of the job's tasks `part` are COMPLETED; exits when all of them have ended."""
    found = [j for j in rmgr("jobs", "--all")["jobs"] if j["id"] == job]
    if found and found[0]["state"] in {"COMPLETED", "FAILED", "CANCELLED"}:
        sys.exit(f"job {job} ended before a Starter could be killed; give its tasks a longer --delay")
    counts = found[0]["counts"] if found else {}
    return bool(counts.get("COMPLETED", 0) >= part * sum(counts.values()) > 0)


def running(job: str) -> list[str]:
    """The node of each running task."""
    return [t["node"] for t in tasks_of(job) if t["state"] == "RUNNING" and t["node"]]


def kill(job: str, part: float, record: Path) -> None:
    """Sends SIGKILL to the Starter that runs most tasks of `job`, and writes down when and what it ran."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_done(job, part):
        if time.monotonic() > end_s:
            sys.exit(f"job {job} did not get {part:.0%} done within {PATIENCE_S:.0f} s")
        time.sleep(0.2)
    end_s = time.monotonic() + PATIENCE_S
    is_found = False
    while not is_found:
        while not (held := running(job)):  # tasks as long as these end together: the next ones have not begun
            if time.monotonic() > end_s:
                sys.exit(f"no task of job {job} was seen running for {PATIENCE_S:.0f} s")
            is_done(job, part)
        node = Counter(held).most_common(1)[0][0]
        pid = next(int(n["pid"]) for n in rmgr("nodes")["nodes"] if n["id"] == node)
        os.kill(pid, signal.SIGSTOP)  # what it had on the way is told meanwhile: so it dies with work in its hands
        try:
            time.sleep(TOLD_S)
            held = running(job)
            is_found = node in held or time.monotonic() > end_s
        finally:
            os.kill(pid, signal.SIGKILL if is_found else signal.SIGCONT)
    killed_at = time.time()
    record.write_text(json.dumps({"job": job, "node": node, "pid": pid, "killed_at": killed_at}), encoding="utf-8")
    print(
        f"*** SIGKILL to the Starter of node {node} (pid {pid}), about {held.count(node)} tasks in its hands",
        flush=True,
    )


def report(record: Path) -> None:
    """Prints how long after the kill its tasks were known to be lost, ran elsewhere, and were done."""
    fault = json.loads(record.read_text(encoding="utf-8"))
    again = [t["id"] for t in tasks_of(fault["job"]) if t["attempt"] > 1]
    lost, restarted, ended = [], [], []
    for task in again:
        attempts = rmgr("show", task)["attempts"]
        for before, after in itertools.pairwise(attempts):
            if before["node"] == fault["node"] and before["reason"] == "NODE_LOST":
                lost.append(seconds(before["ended"]) - fault["killed_at"])
                restarted.append(seconds(after["started"]) - fault["killed_at"])
                ended.append(seconds(attempts[-1]["ended"]) - fault["killed_at"])
    print(f"Killed           the Starter of node {fault['node']}, pid {fault['pid']}, in the middle of job {fault['job']}")
    if not lost:
        print("Tasks lost       none: it held nothing at that moment")
        return
    print(f"Tasks lost       {len(lost)}, all run again elsewhere: {', '.join(again[:6])}{' ...' if len(again) > 6 else ''}")
    print(
        f"Recovery         loss known after {min(lost):.1f} s, running elsewhere after {min(restarted):.1f} to {max(restarted):.1f} s, ",
        end="",
    )
    print(f"the last of them done after {max(ended):.1f} s")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("newest")
    killing = verbs.add_parser("kill")
    killing.add_argument("--job", required=True, help="the submission to hit")
    killing.add_argument("--done", type=float, default=0.2, help="part of its tasks that must be done first (default 0.2)")
    killing.add_argument("--record", type=Path, required=True, help="file to write down what was killed, for `report`")
    reporting = verbs.add_parser("report")
    reporting.add_argument("record", type=Path)
    args = parser.parse_args()
    if args.verb == "newest":
        print(newest())
    elif args.verb == "kill":
        kill(args.job, args.done, args.record)
    else:
        report(args.record)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
