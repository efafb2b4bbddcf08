"""Two programs on one slot."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from rmgr.dev.cluster import DevCluster
from tests.harness.waiting import eventually
from tests.places import ROOT


def test_two_programs_that_take_turns_keep_their_workers(secured: DevCluster, tmp_path: Path) -> None:
    """On one slot: neither is forked anew for each call."""
    text = """
        import os, sys, rmgr
        def pid():
            return os.getpid()
        with rmgr.Executor(output="log") as executor:
            for line in sys.stdin:
                print(executor.submit(pid).result(), flush=True)
    """
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    secured.start_starter("n1", cores=1)
    secured.wait_healthy(nodes=1, deadline_s=60)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RMGR_")},
        **secured.environment(),
        "PYTHONPATH": str(ROOT),
    }
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, env=environment, **pipes) for _ in range(2)]
    try:
        seen: list[set[str]] = [set(), set()]
        for _ in range(10):
            for process, pids in zip(both, seen, strict=True):
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                pids.add(process.stdout.readline().strip())
        assert [len(pids) for pids in seen] == [1, 1]
        assert not seen[0] & seen[1]
    finally:
        for process in both:
            process.communicate(timeout=60)
    left = {int(pid) for pids in seen for pid in pids}
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "idle workers of programs that have ended go")
