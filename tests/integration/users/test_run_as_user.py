"""A root Starter runs each user's work as that user, with commands, calls, files and output, and none of it can mislead it.

Starter (root) -> privileges.py (becomes anna) -> spawner of anna -> worker or command of anna
              \\-> privileges.py (becomes ben)  -> spawner of ben  -> ...
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.workevents import SlotUp
from rmgr.coord.protocol import keys
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.block import KeyedPayload, Outcome
from rmgr.model.identity import Role
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, PythonEnvironment, Upload
from rmgr.runner.host import home
from tests.harness.fair_time import FairTimer
from tests.harness.local_accounts import LocalAccounts
from tests.harness.starter_rig import Rig, Running, call, own_rig, sh
from tests.harness.waiting import eventually
from tests.harness.work_node import WorkNode
from tests.integration.commands import Shell

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def rig(zookeeper: ZooKeeperServer, place: Path) -> Iterator[Rig]:
    with own_rig(zookeeper, place) as made:
        yield made


@pytest.fixture(scope="module")
def node(rig: Rig) -> Running:
    """A Starter of two cores whose work runs as its users (whose names are proven elsewhere)."""
    return rig.ready("n1", as_users=True, log_cap_bytes=1 << 20)


def told(rig: Rig, work: Any, user: Account, **options: Any) -> str:
    """What a command put out, or a call returned, as one user."""
    number = rig.submit(work, user=user.name, **options)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED, (outcome.reason, outcome.error, outcome.log)
    return outcome.log[0].decode() if isinstance(work, Command) else pickle.loads(outcome.value)


# -- who it is ---------------------------------------------------------------------------------------------------------------


def whoami() -> dict[str, Any]:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "ids": (os.getresuid(), os.getresgid()),
        "groups": sorted(os.getgroups()),
        "environ": {name: os.environ.get(name) for name in ("HOME", "USER", "LOGNAME", "SHELL")},
        "no_new_privs": status["NoNewPrivs"],
        "capabilities": {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")},
        "cwd": (os.stat(".").st_uid, oct(os.stat("..").st_mode & 0o777)),
        "umask": os.umask(0o022),
        "open": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    }


def test_a_command_is_its_users_in_every_respect(rig: Rig, node: Running, anna: Account, ben: Account, group: str) -> None:
    script = "id -u; id -g; id -Gn; echo $HOME $USER $LOGNAME; umask; ulimit -c; grep NoNewPrivs /proc/self/status; stat -c %U:%a ."
    for user in (anna, ben, anna):
        uid, gid, groups, names, umask, core, privileges, directory = told(rig, sh(script), user).split("\n")[:8]
        assert (int(uid), int(gid)) == (user.uid, user.gid)
        assert (group in groups.split()) == (user is anna)
        assert names == f"{user.home} {user.name} {user.name}"
        assert (umask, core, privileges) == ("0022", "0", "NoNewPrivs:\t1")
        assert directory.startswith(f"{user.name}:")


def test_a_call_is_its_users_and_workers_are_not_shared(rig: Rig, node: Running, anna: Account, ben: Account) -> None:
    for user in (anna, ben):
        me = told(rig, whoami, user)
        assert me["ids"] == ((user.uid,) * 3, (user.gid,) * 3)
        assert me["groups"] == sorted(user.groups)
        assert me["environ"] == {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": "/bin/sh"}
        assert me["no_new_privs"] == "1"
        assert me["capabilities"] == {"0" * 16}
        assert me["cwd"][0] == user.uid
        assert me["umask"] == 0o022
        assert not [name for name in me["open"] if "store.db" in name or name.endswith(".log")]

    def owner() -> tuple[int, int]:
        return os.getpid(), os.getuid()

    workers = [told(rig, owner, user) for user in (anna, ben, anna, ben)]
    assert [uid for _, uid in workers] == [anna.uid, ben.uid, anna.uid, ben.uid]
    assert workers[0][0] == workers[2][0], "a user's worker stays warm while others work"
    assert len({pid for pid, _ in workers}) == 2


def test_a_set_uid_program_gains_nothing(rig: Rig, node: Running, anna: Account, place: Path) -> None:
    program = place / "id-of-root"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    assert told(rig, sh(f"{program} -u"), anna).strip() == str(anna.uid)


# -- what it cannot reach ------------------------------------------------------------------------------------------------------


def test_the_starter_and_other_users_are_out_of_reach(rig: Rig, node: Running, anna: Account, ben: Account, place: Path) -> None:
    long = rig.submit(sh("umask; echo secret > mine; pwd > $HOME/where; exec sleep 600"), user=anna.name)
    where = Path(eventually(lambda: Path(anna.home, "where").exists() and Path(anna.home, "where").read_text().strip(), "anna's task runs"))
    try:
        assert where.stat().st_uid == anna.uid
        home = place / "work" / "n1"  # the Starter's
        attempts = {
            f"cat {where}/mine": "read another user's work directory",
            f"ls {where}": "list it",
            f"ls {where.parent}": "list another user's slot",
            f"ls {home}": "list the Starter's directory",
            f"touch {home}/x": "write the Starter's directory",
            f"touch {home}/n1/run/x": "write the directory of slots",
            f"touch {home}/n1/stage/x": "write where files are staged",
            f"ls {home}/blobs": "look into the Starter's cache",
            f"cat {home}/n1/private/*": "look into copies of others",
            f"kill -0 {os.getpid()}": "signal the Starter",
            f"cat /proc/{os.getpid()}/environ": "read the Starter's environment",
            "cat /etc/shadow": "read what only root may",
            f"pkill -u {anna.name} -x sleep": "signal another user's work",
        }
        script = "; ".join(f"({command}) >/dev/null 2>&1 && echo 'could {what}'" for command, what in attempts.items())
        out = told(rig, sh(f"{script}; echo done".replace("another user's", "another users")), ben)
        assert out == "done\n"
        assert where.exists()
    finally:
        (block,) = [block for block in list(node.agent().blocks.values()) if block.key.submission == long]
        node.starter.ask(lambda: node.agent().cancel(block, None, "enough", 0))
    assert rig.outcomes(long, 1)[0].state is State.CANCELLED  # a root Starter ends the work of anybody


# -- files in, files out -------------------------------------------------------------------------------------------------------


def test_what_is_staged_is_the_users_alone(rig: Rig, node: Running, anna: Account, tmp_path: Path) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "x").write_text("inner")
    script = rig.upload(b"#!/bin/sh\ncat data; cat tree/below/x; cat; cat here; stat -c %U:%a . data tree; echo more >> data\n")
    command = Command(
        script_sha256=script,
        stdin_sha256=rig.upload(b"in" * 2_000_000),
        uploads=(
            Upload(name="data", sha256=rig.upload(b"uploaded")),
            Upload(name="tree", sha256=rig.upload_directory(tmp_path / "tree"), is_dir=True),
        ),
        input_files=(("in/key", "here"),),
        output_files=(("out/key", "data"),),
    )
    rig.store.put(keys.named("in/key"), b"value")
    number = rig.submit(command, user=anna.name)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED, (outcome.error, outcome.log)
    out = b"".join(rig.store.get(keys.log(number, 0, 1, "stdout", part))[0] for part in range(outcome.log_parts[0])) + outcome.log[0]
    who = anna.name.encode()
    assert out.startswith(b"uploadedinner" + b"in" * 100)
    assert out.endswith(b"value%b:700\n%b:755\n%b:755\n" % (who, who, who)), out[-200:]
    assert rig.store.get(keys.output(number, 0, 1, 0))[0] == b"uploadedmore\n"
    assert rig.spool_is_empty()


def test_large_arguments_functions_modules_and_results_travel(rig: Rig, node: Running, anna: Account) -> None:
    padding = os.urandom(3_000_000)

    def work(data: bytes) -> bytes:
        print("x" * 100_000)
        return data[:10] + padding

    number = rig.submit(work, [call(b"a" * 4000)], row=True, user=anna.name)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED, outcome.error
    assert rig.store.get(keys.output(number, 0, 1))[0] == b"a" * 10 + padding
    assert outcome.log_parts[0] >= 1 or outcome.log[0]
    rig.store.put(keys.named("large"), pickle.dumps(b"v" * 1_000_000))
    keyed = rig.submit(
        lambda value: (len(value), value[:1] * 500_000), keyed=[KeyedPayload(inputs=("large",), outputs=("n", "copy"))], user=anna.name
    )
    outcome = rig.outcomes(keyed, 1)[0]
    assert (outcome.state, outcome.outputs) == (State.COMPLETED, 2), outcome.error
    private = list((rig.directory / "work" / "n1" / "n1" / "private").iterdir())
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in private} == {(anna.uid, 0o400)}
    assert rig.spool_is_empty()


def test_named_files_are_written_whole_by_the_user_and_what_is_stored_of_them_is_capped(rig: Rig, node: Running, anna: Account) -> None:
    number = rig.submit(sh("head -c 5000000 /dev/zero | tr '\\0' y", cwd=anna.home, out="out.txt"), user=anna.name)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED, outcome.error
    named = Path(anna.home, "out.txt")
    assert named.stat().st_uid == anna.uid
    assert named.stat().st_size == 5_000_000
    stored = sum(len(rig.store.get(keys.log(number, 0, 1, "stdout", part))[0]) for part in range(outcome.log_parts[0]))
    assert 1 << 19 < stored < 2 << 20


# -- a Starter that is root is not led astray -----------------------------------------------------------------------------------


def test_files_of_root_are_neither_stored_nor_removed(rig: Rig, node: Running, anna: Account, place: Path) -> None:
    secret = place / "secret"
    secret.write_text("root's own")
    secret.chmod(0o600)
    for command in (
        sh("true", output_files=(("k", str(secret)),)),
        sh(f"ln -s {secret} link", output_files=(("k", "link"),)),
        sh("mkfifo pipe", output_files=(("k", "pipe"),)),
    ):
        outcome = rig.outcomes(rig.submit(command, user=anna.name), 1)[0]
        assert (outcome.state, outcome.reason) == (State.FAILED, Reason.BAD_OUTPUT), outcome
    for how in ("value", "output"):
        outcome = rig.outcomes(rig.submit(forge, [call(str(secret), how)], user=anna.name, resubmit=False), 1)[0]
        assert outcome.state is State.FAILED
        assert outcome.reason is not Reason.EXCEPTION, "it has not said anything"
    assert secret.read_text() == "root's own"
    leaked = [key for key in rig.store.keys("") if b"root's own" in (rig.store.get(key) or (b"",))[0]]
    assert leaked == []


def forge(what: str, how: str) -> None:
    """Speaks for its worker: says that a file of root is what this task has made, or that it has ended for a reason."""
    import gc
    import os as system

    from rmgr.model.frames import Output, TaskEnd, TaskEnds, TaskExtra, Value
    from rmgr.model.stream import encode
    from rmgr.runner.python.worker import WorkerProcess

    gc.unfreeze()  # else what was there when the worker was forked is in no list
    worker = next(one for one in gc.get_objects() if isinstance(one, WorkerProcess))
    if how == "reason":
        extra = TaskExtra(reason=Reason(what), summary="told by its task")
    else:
        extra = TaskExtra(value=Value(path=what, size=10)) if how == "value" else TaskExtra(out=Output(size=10, path=what))
    end = TaskEnd(worker._seq, 1, 1, 1, b"", True, extra)
    worker._socket.sendall(encode(TaskEnds((end,))))
    system._exit(0)


def babble(kind: str) -> None:
    """Says what makes no sense, or cuts short what root has mapped."""
    import gc
    import os as system

    import msgspec

    from rmgr.model.frames import Output, TaskEnd, TaskEnds, TaskExtra
    from rmgr.model.stream import encode
    from rmgr.runner.python.worker import WorkerProcess

    gc.unfreeze()  # else what was there when the worker was forked is in no list
    worker = next(one for one in gc.get_objects() if isinstance(one, WorkerProcess))
    if kind == "shrink":
        for fd in system.listdir("/proc/self/fd"):
            try:
                system.ftruncate(int(fd), 0)
            except OSError:
                continue
    elif kind == "board":
        worker._board.words[8] = (1 << 63) | 5
    elif kind == "flood":
        end = TaskEnd(worker._seq, 1, 1, 1, b"", True, TaskExtra(out=Output(size=10, data=b"x" * 100_000)))
        worker._socket.sendall(encode(TaskEnds((end,))))
    elif kind == "characters":
        worker._socket.sendall(b"\x07\x00\x00\x00\x93\x3f\xc4\x00\xa2\xff\xfe")
    elif kind == "depth":
        worker._socket.sendall(encode((62, 1, msgspec.Raw(b"\x91" * 100_000 + b"\x01"))))
    elif kind == "deep board":
        body = msgspec.msgpack.encode((worker._seq, 1, 1, 1, b"", True, None, msgspec.Raw(b"\x91" * 100_000 + b"\x01")))
        worker._board.view[4096 + 16 : 4096 + 16 + len(body)] = body
        worker._board.words[8] = len(body) << 32 | 1
    else:
        worker._socket.sendall(b"\x04\x00\x00\x00abcd")
    system._exit(3)


@pytest.mark.parametrize("kind", ["shrink", "board", "flood", "noise", "characters", "depth", "deep board"])
def test_nonsense_from_a_users_processes_costs_him_his_slot_at_most(
    rig: Rig, node: Running, anna: Account, ben: Account, kind: str
) -> None:
    number = rig.submit(babble, [call(kind)], user=anna.name, resubmit=False)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.FAILED
    assert outcome.reason is not Reason.EXCEPTION, "it has not said anything"
    assert told(rig, sh("id -u"), ben).strip() == str(ben.uid)
    assert told(rig, sh("id -u"), anna).strip() == str(anna.uid)


@pytest.mark.parametrize("reason", [Reason.NODE_LOST, Reason.UNTRUSTED, Reason.MIGRATED, Reason.POISON])
def test_a_task_does_not_end_for_a_reason_that_only_the_system_has(rig: Rig, node: Running, anna: Account, reason: Reason) -> None:
    number = rig.submit(forge, [call(reason.value, "reason")], user=anna.name, resubmit=False)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.reason, outcome.error) == (State.FAILED, Reason.WORKER_LOST, "told by its task")


def test_an_interpreter_of_the_users_runs_as_him_from_its_first_instruction(rig: Rig, node: Running, anna: Account) -> None:
    mine = Path(anna.home, "python")
    mine.write_text(f'#!/bin/sh\nid -u >> {anna.home}/who\nexec {sys.executable} "$@"\n')
    mine.chmod(0o755)
    os.chown(mine, anna.uid, anna.gid)
    number = rig.submit(os.getuid, user=anna.name, python=PythonEnvironment(python=str(mine)))
    assert pickle.loads(rig.outcomes(number, 1)[0].value) == anna.uid
    assert set(Path(anna.home, "who").read_text().split()) == {str(anna.uid)}


# -- who is refused ------------------------------------------------------------------------------------------------------------


def refused(rig: Rig, user: str) -> Outcome:
    number = rig.submit(sh(f"touch {rig.directory}/ran"), user=user, retries=3)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.START_FAILED)
    assert not (rig.directory / "ran").exists()
    return outcome


def test_root_system_accounts_and_strangers_are_refused_and_the_node_goes_on(
    rig: Rig, node: Running, accounts: LocalAccounts, anna: Account
) -> None:
    rig.directory.chmod(0o777)
    try:
        assert "uid 0" in refused(rig, "root").error
        assert "uid 0" in refused(rig, accounts.make("r", uid=0).name).error  # whatever it is called
        daemon = refused(rig, "daemon").error
        assert "below 1000" in daemon
        assert "min_uid" in daemon
        for _ in range(6):
            stranger = refused(rig, "nobody-here").error
        assert "n1" in stranger
        assert "'nobody-here'" in stranger
        assert "useradd" in stranger
    finally:
        rig.directory.chmod(0o755)
    assert node.agent().drains == {}, "refusing is no fault of the node"
    assert told(rig, sh("id -u"), anna).strip() == str(anna.uid)


# -- ends ----------------------------------------------------------------------------------------------------------------------


def test_work_of_other_users_is_contained_and_nothing_stays(place: Path, anna: Account, ben: Account) -> None:
    with WorkNode(place / "alone") as node:
        slots = [node.slot(0, account=anna), node.slot(0, account=ben)]
        assert [slot.is_lost for slot in slots] == [False, False]
        for slot, user in zip(slots, (anna, ben), strict=True):
            escaped = node.end_of(node.shell(slot, "(setsid sh -c 'trap \"\" TERM HUP; sleep 300' >/dev/null 2>&1 &) ; sleep 0.2; id -u"))
            assert escaped.out.data.decode().strip() == str(user.uid)
            assert escaped.leftovers >= 1
        worker = node.worker(slots[0])
        assert node.result(node.call(worker, os.getuid)) == anna.uid
        seq = node.shell(slots[1], "sleep 300")
        eventually(lambda: slots[1].live_output(seq, "stdout", 0) is not None, "it runs")
        with FairTimer() as timer:
            os.kill(slots[1].pid, signal.SIGKILL)
            eventually(lambda: slots[1].is_lost, "the slot is lost")
        assert timer.elapsed_s < 10


def test_a_tree_too_deep_to_be_walked_is_removed_all_the_same(place: Path, anna: Account) -> None:
    with WorkNode(place / "deep") as node:
        slot = node.slot(0, account=anna)
        script = f"cd {slot.directory}; i=0; while [ $i -lt 1500 ]; do mkdir -p d && cd -P d || break; i=$((i+1)); done; echo $i"
        assert node.end_of(node.shell(slot, script)).out.data == b"1500\n"
        slot.close()
        eventually(lambda: slot.is_lost and not slot.directory.exists(), "it is gone")


def test_what_a_spawner_per_user_costs(place: Path, anna: Account) -> None:
    """Not a limit, a number for the README: the time until a spawner is up, as its user and as the Starter."""
    with WorkNode(place / "cost") as node:
        spent: dict[str, list[float]] = {"self": [], "user": []}
        for number in range(6):
            for kind, account in (("self", None), ("user", anna)):
                began = time.perf_counter()
                slot = node.runner.open_slot(number, account=account)
                node.markers.append(slot.marker)
                node.wait(SlotUp, lambda event, slot=slot: event.slot is slot)
                spent[kind].append(time.perf_counter() - began)
        self_s, user_s = (sorted(spent[kind])[len(spent[kind]) // 2] for kind in ("self", "user"))
        print(f"spawner up: {self_s * 1e3:.0f} ms as the Starter, {user_s * 1e3:.0f} ms as a user")
        assert user_s < 5 * self_s + 0.5


# -- the whole of it: the user is who his key says, from the command line to `id` -----------------------------------------------


def test_in_a_secured_cluster_work_runs_as_whoever_signed_it(
    secured: DevCluster, tmp_path: Path, place: Path, anna: Account, ben: Account
) -> None:
    assert secured.security is not None
    options = ["--work-dir", str(place / "secured")]
    secured.start_starter("n1", options=options, environment={"RMGR_SECURITY_RUN_AS": "user", "PYTHONPATH": str(home.ROOT)})
    secured.wait_healthy(nodes=1, leader=True, deadline_s=60)
    shells = {
        name: Shell(tmp_path / name, secured.environment() | {"RMGR_SECURITY_DIR": str(secured.security.bundle(role, name))})
        for name, role in ((anna.name, Role.USER), (ben.name, Role.USER), ("nobody-here", Role.USER), ("root", Role.OPERATOR))
    }
    for user in (anna, ben):
        shell = shells[user.name]
        assert shell.ok("submit", "--wait", "--", "id", "-un").out == f"{user.name}\n"
        script = "import rmgr, os\nwith rmgr.TaskQueue(os.getuid) as queue:\n    print(queue.submit_call().result(60))\n"
        shell.file("who.py", script)
        ended = subprocess.run(
            [sys.executable, "who.py"],
            cwd=shell.directory,
            env=shell.environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert ended.stdout == f"{user.uid}\n", ended.stderr
    for name, word in (("nobody-here", "useradd"), ("root", "uid 0")):
        ended = shells[name]("submit", "--wait", "--json", "--", "id")
        assert ended.code != 0
        assert word in shells[name]("show", "last").out, ended
    told = secured.log_file("n1").read_text()
    refusals = [json.loads(line) for line in told.splitlines() if '"audit"' in line]
    assert {(line["who"], line["allowed"]) for line in refusals} == {("nobody-here", False), ("root", False)}
    stranger = Shell(tmp_path / "stranger", secured.environment() | {"RMGR_SECURITY_DIR": ""})
    assert stranger("submit", "--timeout", "5", "--", "id").code in {4, 6}


@pytest.mark.parametrize(("signum", "reason"), [(signal.SIGTERM, Reason.SIGNAL), (signal.SIGKILL, Reason.WORKER_LOST)])
def test_a_script_that_ends_all_processes_of_its_user_ends_itself_and_holds_up_nobody(
    rig: Rig, node: Running, anna: Account, ben: Account, signum: signal.Signals, reason: Reason
) -> None:
    script = f"sleep 0.2; {sys.executable} -c 'import os; os.kill(-1, {int(signum)})'; sleep 60"
    for _ in range(3):  # both slots at once: one of them dies by the other's hand
        assert {told(rig, sh("id -u"), user) for user in (anna, ben)} == {f"{anna.uid}\n", f"{ben.uid}\n"}
        bad = rig.submit(sh(script), [b""] * 2, user=anna.name, blocks=2, resubmit=False)
        outcomes = rig.outcomes(bad, 2).values()
        assert {outcome.reason for outcome in outcomes} == {reason}, outcomes
        with FairTimer() as timer:
            assert told(rig, sh("id -un"), ben) == f"{ben.name}\n"
        assert timer.elapsed_s < 5
    assert node.agent().strikes.last == "", "no fault of the node"
    assert node.agent().drains == {}


def test_work_of_users_goes_on_when_directories_are_removed_and_no_user_can_lead_the_starter_elsewhere(
    rig: Rig, node: Running, place: Path, anna: Account, ben: Account
) -> None:
    root, victim = place / "work" / "n1", place / "victim"
    script, upload = rig.upload(b"echo made > file && cat file && id -u"), rig.upload(b"u" * 1000)
    ballast = os.urandom(200_000)

    def everything() -> None:
        for user in (anna, ben):
            assert told(rig, Command(script_sha256=script), user) == f"made\n{user.uid}\n"
            assert told(rig, sh("cat up", uploads=(Upload(name="up", sha256=upload, is_dir=False),)), user) == "u" * 1000
            assert told(rig, lambda: (len(ballast), os.getuid()), user, payloads=[call()]) == (200_000, user.uid)

    place.chmod(0o1777)  # users may write where it lies
    everything()
    for kind in ("", "n1", "n1/run", "n1/private", "n1/stage", "blobs", "n1/run/s*"):
        for path in list(root.glob(kind)) if kind else [root]:
            shutil.rmtree(path, ignore_errors=True)
        if not kind:
            victim.mkdir()
            os.chown(victim, anna.uid, anna.gid)
            root.symlink_to(victim)  # it is looked at before files are made in it
        everything()
        assert not list(victim.iterdir()), kind
        assert (root.stat().st_mode & 0o777, (root / "blobs").stat().st_mode & 0o777) == (0o711, 0o700)
    assert node.agent().drains == {}
    node.agent().strikes._own.clear()
    place.chmod(0o755)
