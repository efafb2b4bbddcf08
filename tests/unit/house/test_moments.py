"""In memory, no number that a clock can show stands for "never" or "none": `time.monotonic()` begins at 0 when a machine boots."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.harness.moments import Source, read
from tests.places import ROOT

PACKAGE = ROOT / "rmgr"

#: Their clock is the engine's, not a machine's: it begins at 0 with the first event, and 0 is that moment. v1 is generated.
ENGINE = ("sched", "sim", "v1")
#: Fields of records and messages that `model` does not define. There, as in all of `model`, 0 microseconds of the wall clock = none.
MESSAGES = {"time_us": "LogPiece of rpc.proto, and --time", "deadline_us": "Step of a checkpoint on another node"}
EXEMPT = {
    ("adapters/host/process.py", "lease_end_ns"): "a frame for spawners: a lease that ended when the machine booted is over at each moment",
    ("model/wire/frames.py", "lease_end_ns"): "the same frame",
    ("runner/command/queue.py", "lease_end_ns"): "as it comes in that frame",
    ("runner/python/workers.py", "lease_end_ns"): "as it comes in that frame, and goes on into words of shared memory",
    ("runner/host/board.py", "words"): "shared memory: words are integers; a task that has a start has a sequence number above 0",
    ("cli/words/placed_options.py", "round(moment_s * 1000000.0)"): "begin_us of a record: 0 = at once",
    ("bench/sched.py", "now"): "the engine's clock",
}


def fields_of_records() -> set[str]:
    """Names of wall-clock times in records, whose format says "none" as 0."""
    nodes = [node for path in sorted((PACKAGE / "model").rglob("*.py")) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return {name for name in names if name.endswith("_us")} | set(MESSAGES)


def test_no_moment_that_a_clock_can_show_means_never_or_none() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in ENGINE]
    records, used, wrong = fields_of_records(), set(), []
    for source in read(paths):
        at = str(source.path.relative_to(PACKAGE))
        for found in source.zeros():
            if (at, found.name) in EXEMPT:
                used.add((at, found.name))
            elif found.name not in records:
                wrong.append(f"rmgr/{at}:{found.line}: {found.name} {found.what}: None, -math.inf (long ago) or math.inf (never) instead")
    assert not wrong, "\n".join(wrong)
    assert used == set(EXEMPT), "exemptions that nothing needs any more"


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n def __init__(self):\n  self._read_s = 0.0\n def look(self):\n  if time.monotonic() - self._read_s > 30: pass",
        "class A:\n def __init__(self):\n  self._read_s = 0\n def look(self):\n  self._read_s = time.monotonic()",
        "class A:\n seen_s: float = 0.0\n def look(self, now_s):\n  self.seen_s = now_s",
        "class A:\n def __init__(self):\n  self._a_s = self._b_s = 0.0\n def look(self, now_s):\n  return now_s >= self._b_s",
        "class A:\n def __init__(self):\n  self._a_s, self._b_s = 1.0, -0.0\n def look(self, now_s):\n  self._b_s = self._c_s = now_s + 1",
        "def due(at_s=0.0):\n return at_s < time.monotonic()",
        "def due(*, at_s: float = 0):\n left = at_s - time.monotonic()\n return left > 0 if at_s <= clock() else 1",
        "def f(self, now_s):\n return self._until_s.get('n', 0.0) > now_s",
        "def f(self, now_s):\n until_s = now_s + 3\n if not until_s: pass",
        "def f(self, now_s):\n self.since_s = self.since_s or now_s",
        "def f(self, is_young):\n self._read_s = 0.0 if is_young else time.monotonic()",
        "def f(self, now_s):\n self.until_s = now_s\n return self.until_s == 0.0",
        "def f(made):\n a(since_s=time.monotonic())\n b(since_s=0)",
        "def due_s():\n if a: return clock() + 1\ndef f(self):\n self.next_s = due_s()\n self.next_s = 0",
        "def f(blocks):\n for one in blocks:\n  one.seen_s = time.monotonic()\n return min((one.seen_s for one in blocks), default=0)",
    ],
)
def test_a_zero_for_a_moment_is_found_however_it_is_written(text: str) -> None:
    source = Source.of(Path("a.py"), text)
    source.learn(set())
    assert source.zeros()


@pytest.mark.parametrize(
    "text",
    [
        "def f(self):\n left_s = max(0.0, self._due_s - time.monotonic())\n self._due_s = time.monotonic()",
        "def f(self):\n self._due_s = -math.inf\n self._took_s = 0.0\n took_s = time.monotonic() - began\n self._took_s += took_s",
        "def f(self, timeout_s=0.0):\n end_s = time.monotonic() + timeout_s\n return end_s",
        "def f(self, now_s):\n self._since_s = None\n if self._since_s is None: self._since_s = now_s",
    ],
)
def test_lengths_of_time_and_what_is_none_are_left_alone(text: str) -> None:
    source = Source.of(Path("a.py"), text)
    source.learn(set())
    assert source.zeros() == []
