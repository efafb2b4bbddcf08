"""A task attacks its node's root Starter, its spawner and other users' work with its user's rights; none of them suffers.

    Starter (root, this process) -> spawner (anna's) -> her command, which attacks
                                 -> spawner (ben's)  -> his command, which goes on
Each with cgroups where they can be made, and without.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.process import Slot
from rmgr.adapters.host.workevents import SlotLost, Surprised
from rmgr.runner.host import home
from rmgr.runner.host.contain import below, cpu_ticks
from tests.harness import hostile_spawner
from tests.harness.local_accounts import LocalAccounts
from tests.harness.reachable import work_that_users_reach
from tests.harness.waiting import eventually, unchanged
from tests.harness.work_node import WorkNode

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nodes run Linux")
#: Processes that a slot may have here.
PIDS = 40
_SYS_RESOURCE = 1 << 24

#: Says, as JSON, what of all this it could do to process argv[1] (its spawner) and argv[2] (the Starter).
REACH = r"""
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
could = []
for who, pid in (("spawner", int(sys.argv[1])), ("starter", int(sys.argv[2]))):
    fd = libc.syscall(434, pid, 0)
    could += [f"{who}: pidfd_getfd {n}" for n in range(64) if libc.syscall(438, fd, n, 0) >= 0]
    for request in (16, 0x4206):
        if libc.ptrace(request, pid, None, None) == 0:
            could.append(f"{who}: ptrace {request}")
            libc.ptrace(17, pid, None, None)
    page = ctypes.create_string_buffer(64)
    class Vec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
    mine, theirs = Vec(ctypes.addressof(page), 64), Vec(id(page), 64)
    if libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) > 0:
        could.append(f"{who}: process_vm_readv")
    for name in ("mem", "environ", "maps", "fd", "fdinfo", "map_files", "auxv", "stack", "syscall"):
        try:
            path = f"/proc/{pid}/{name}"
            if name == "mem":
                with open(path, "r+b"):
                    could.append(f"{who}: {name}")
            elif name in ("fd", "fdinfo", "map_files"):
                if os.listdir(path):
                    could.append(f"{who}: {name}")
            elif open(path, "rb").read(64):
                could.append(f"{who}: {name}")
        except OSError:
            pass
    for name in ("oom_score_adj", "clear_refs", "coredump_filter", "uid_map", "cgroup"):
        try:
            with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                file.write(b"0")
                could.append(f"{who}: write {name}")
        except OSError:
            pass
    if who == "starter":
        try:
            os.kill(pid, 0)
            could.append("starter: kill")
        except OSError:
            pass
print(json.dumps(could))
"""

#: Forks until it is refused, or 400 times; how often it could.
BOMB = """
import os, time
made = 0
try:
    while made < 400:
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made, flush=True)
time.sleep(60)
"""

#: Writes into every control file of its own cgroups and those above that it must not change; which it could.
CGROUPS = """
import json, os
mounts = [line.split() for line in open("/proc/self/mounts")]
could = []
for line in open("/proc/self/cgroup"):
    _, names, path = line.strip().split(":", 2)
    for mount in (words for words in mounts if words[2].startswith("cgroup")):
        if (names == "" and mount[2] == "cgroup2") or (names and names.split(",")[0] in mount[3].split(",")):
            place = mount[1] + path
            while len(place) > len(mount[1]):
                for name, text in (("pids.max", "max"), ("memory.max", "max"), ("memory.limit_in_bytes", "-1"), ("cpu.max", "max")):
                    if place.endswith("/main") or name == "pids.max" or "/w" not in place:
                        try:
                            with open(f"{place}/{name}", "w") as file:
                                file.write(text)
                            could.append(f"{place}/{name}")
                        except OSError:
                            pass
                place = os.path.dirname(place)
            try:
                with open(f"{mount[1]}/cgroup.procs", "w") as file:
                    file.write(str(os.getpid()))
                could.append(f"{mount[1]}: left its cgroup")
            except OSError:
                pass
print(json.dumps(could))
"""

#: As an isolated command: tries to continue itself for good, or to leave its group for the spawner's; which it could.
UNFREEZE = """
import json, os
mount = next(words[1] for words in map(str.split, open("/proc/self/mounts")) if words[2] == "cgroup2")
own = next(line.strip()[3:] for line in open("/proc/self/cgroup") if line.startswith("0::"))
work = os.path.dirname(mount + own)
slot = os.path.dirname(work)
could = []
for path, text in ((f"{work}/cgroup.freeze", "0"), (f"{slot}/cgroup.freeze", "0"), (f"{slot}/main/cgroup.procs", str(os.getpid()))):
    try:
        with open(path, "w") as file:
            file.write(text)
        could.append(path)
    except OSError:
        pass
for path in (slot, os.path.dirname(slot)):
    try:
        os.mkdir(f"{path}/mine")
        could.append(path)
    except OSError:
        pass
print(json.dumps(could))
"""

#: Leaves for the slot's own group again and again, which its spawner must be able to write to, and computes.
LEAVE = """
import os
mount = next(words[1] for words in map(str.split, open("/proc/self/mounts")) if words[2] == "cgroup2")
own = next(line.strip()[3:] for line in open("/proc/self/cgroup") if line.startswith("0::"))
slot = os.path.dirname(os.path.dirname(mount + own))
while True:
    try:
        with open(f"{slot}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    except OSError:
        pass
"""

#: The least score that it could give itself.
OOM = """
for score in range(-1000, 1000, 50):
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(score))
        break
    except OSError:
        pass
print(open("/proc/self/oom_score_adj").read())
"""


@pytest.fixture(scope="module")
def accounts() -> Iterator[LocalAccounts]:
    with LocalAccounts() as made, work_that_users_reach():
        yield made


@pytest.fixture(scope="module")
def anna(accounts: LocalAccounts) -> Account:
    return accounts.make("a")


@pytest.fixture(scope="module")
def ben(accounts: LocalAccounts) -> Account:
    return accounts.make("b")


@pytest.fixture(scope="module", params=[True, False], ids=["cgroup", "plain"])
def node(request: pytest.FixtureRequest, accounts: LocalAccounts) -> Iterator[WorkNode]:
    place = Path(tempfile.mkdtemp(prefix="rmgr-node-", dir="/var/tmp"))
    place.chmod(0o755)
    with WorkNode(place / "run", cgroups=request.param, pids_limit=PIDS) as made:
        made.runner.directory.chmod(0o711)
        yield made
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def bens(node: WorkNode, ben: Account) -> Slot:
    return node.slot(1, account=ben)


@pytest.fixture
def slot(node: WorkNode, anna: Account, bens: Slot) -> Iterator[Slot]:
    slot = node.slot(0, account=anna)
    yield slot
    assert node.end_of(node.run(bens, "echo", "well")).out.data == b"well\n"
    slot.close()
    node.wait(SlotLost, lambda event: event.slot is slot)
    node.seen.clear()


def said(node: WorkNode, slot: Slot, script: str, *args: object) -> Any:
    end = node.end_of(node.run(slot, home.PYTHON, "-I", "-S", "-c", script, *map(str, args)))
    assert end.exit_code == 0, end
    return json.loads(end.out.data)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- from a command ------------------------------------------------------------------------------------------------------------


def test_a_command_reaches_neither_its_spawner_nor_the_starter(node: WorkNode, slot: Slot) -> None:
    assert said(node, slot, REACH, slot.pid, os.getpid()) == []


def test_a_call_reaches_neither_its_spawner_nor_the_starter(node: WorkNode, slot: Slot) -> None:
    def attack(script: str, spawner: int, starter: int, python: str) -> Any:
        import json as system_json
        import subprocess

        call = [python, "-I", "-S", "-c", script, str(spawner), str(starter)]
        return system_json.loads(subprocess.run(call, capture_output=True, check=True).stdout), len(os.listdir("/proc/self/fd"))

    worker = node.worker(slot)
    could, mine = node.result(node.call(worker, attack, REACH, slot.pid, os.getpid(), home.PYTHON))
    assert could == []
    assert mine > 3, "a worker looks into itself"
    worker.stop(grace_us=0)


def test_a_fork_bomb_leaves_processes_to_others(node: WorkNode, slot: Slot, bens: Slot) -> None:
    bomb = node.run(slot, home.PYTHON, "-I", "-S", "-c", BOMB)
    eventually(lambda: bomb in node.ends or b"\n" in (slot.live_output(bomb, "stdout", 0) or (b"", 0))[0], "it has forked all that it can")
    assert node.end_of(node.run(bens, "sh", "-c", "true | cat; echo well")).out.data == b"well\n"
    slot.stop(bomb, grace_us=100_000)
    made = int(node.end_of(bomb).out.data)
    limit = PIDS if "pids" in slot.features or node.runner.slot_cgroup is None else node.runner.pids_limit_of_user
    assert 5 < made <= limit


def test_a_command_cannot_lift_the_limits_of_its_cgroup(node: WorkNode, slot: Slot) -> None:
    if "cgroup" not in slot.features and "pids" not in slot.features:
        pytest.skip("no cgroup may be made here: processes are counted by uid, memory is watched, nothing else is limited")
    assert said(node, slot, CGROUPS) == []


def test_a_command_continues_itself_by_no_file_of_its_control_group(node: WorkNode, slot: Slot) -> None:
    if not slot.freeze_file:
        pytest.skip("no control group of version 2 may be made here: work is stopped by signals")
    end = node.end_of(node.run(slot, home.PYTHON, "-I", "-S", "-c", UNFREEZE, isolate=True))
    assert end.exit_code == 0, end
    assert json.loads(end.out.data) == []


def test_who_leaves_his_control_group_stands_still_with_it_all_the_same(node: WorkNode, slot: Slot) -> None:
    if not slot.freeze_file:
        pytest.skip("no control group of version 2 may be made here: work is stopped by signals")
    turner = node.runner.turner
    turner.add("a", slot)
    turner.rows(((0, ("a",)),))
    seq = node.run(slot, home.PYTHON, "-I", "-S", "-c", LEAVE, isolate=True)
    (pid,) = eventually(lambda: below(slot.pid))
    eventually(lambda: cpu_ticks(pid) > 20)
    turner.rows(((0, ()),))

    eventually(lambda: unchanged(lambda: cpu_ticks(pid), 0.3))
    turner.drop("a")
    slot.stop(seq, grace_us=0)
    node.end_of(seq)


def test_work_goes_before_daemons_when_memory_runs_out(node: WorkNode, slot: Slot) -> None:
    mine = int(Path("/proc/self/oom_score_adj").read_text())
    least = said(node, slot, OOM)
    assert least >= mine, "no work outlives its Starter"
    capable = int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")), 16)
    if capable & _SYS_RESOURCE:
        assert least >= 500
    spawner = int(Path(f"/proc/{slot.pid}/oom_score_adj").read_text())
    assert spawner >= 500


# -- from the place of the spawner ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(accounts: LocalAccounts) -> Iterator[str]:
    place = Path(tempfile.mkdtemp(prefix="rmgr-hostile-", dir="/var/tmp"))
    place.chmod(0o755)
    program = place / "python"
    source = Path(hostile_spawner.__file__).read_text()
    (place / "hostile.py").write_text(source)
    program.write_text(f'#!/bin/sh\nexec {home.PYTHON} {place}/hostile.py "$@"\n')
    program.chmod(0o755)
    yield str(program)
    shutil.rmtree(place)


def test_a_spawner_that_hears_nothing_ends_all_the_same(
    node: WorkNode, anna: Account, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(node.runner.environ, "LC_RMGR_ATTACK", "deaf")
    monkeypatch.setattr("rmgr.adapters.host.slot._DEAF_S", 0.2)
    slot = node.slot(0, python=hostile, account=anna)
    slot.close()
    assert node.wait(SlotLost, lambda event: event.slot is slot).expected


@pytest.mark.parametrize("attack", ["descriptors", "many", "trickle", "workers", "pages", "flood", "long", "labels", "orphan"])
def test_who_speaks_in_the_spawners_place_loses_the_slot_and_nothing_else_is_lost(
    node: WorkNode, anna: Account, bens: Slot, hostile: str, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(node.runner.environ, "LC_RMGR_ATTACK", attack)
    before = descriptors()
    slots = []
    for _ in range(2):
        slot = node.runner.open_slot(0, python=hostile, account=anna)
        slots.append(slot)
        most = before

        def gone(slot: Slot = slot) -> bool:
            nonlocal most
            most = max(most, descriptors())
            slot.wake()  # as a Starter does every two seconds
            return slot.is_lost

        eventually(gone, f"the slot lives on: {attack}")
        assert most < before + 20
        assert node.end_of(node.run(bens, "echo", "well")).out.data == b"well\n"
        node.wait(SlotLost, lambda event, slot=slot: event.slot is slot)
    eventually(lambda: descriptors() <= before, "descriptors of the Starter stay open")
    assert sum(isinstance(event, Surprised) for event in node.seen) < 2 * 1000
    words = {event.what for event in node.seen if isinstance(event, Surprised)}
    assert not [word for word in words if word.startswith("word-")]
    node.seen.clear()
