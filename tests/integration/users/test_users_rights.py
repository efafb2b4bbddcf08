"""Two users and an operator of one secured cluster behind a gateway: users see and change their own work, the operator all.

anna, ben (role user), olga (role operator) --mutual TLS--> gateway --role submitter--> ZooKeeper, store, leader, Starters
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rmgr
from rmgr.client.connection import Connection
from rmgr.client.executor import Executor
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import keys
from rmgr.dev.cluster import DevCluster
from rmgr.errors import PermissionDenied, RmgrError
from rmgr.model.identity import Role
from rmgr.model.states import Reason
from rmgr.model.submission import Phase, Terms
from rmgr.submitter import messages as m
from rmgr.submitter.questions import (
    CancelSubmission,
    CancelTasks,
    HoldSubmission,
    KillRunning,
    Question,
    ReadFragments,
    ReadRecord,
    ReleaseSubmission,
    UpdateSubmission,
)
from tests.harness.gateway_process import GatewayProcess
from tests.harness.handmade import Handmade
from tests.harness.waiting import eventually
from tests.integration.commands import Shell, wait_line

PEOPLE = {"anna": Role.USER, "ben": Role.USER, "olga": Role.OPERATOR}


@pytest.fixture(scope="module")
def gateway(live: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(live.daemon_environment("submitter", "g-rights"), tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture(scope="module")
def bundles(live: DevCluster) -> dict[str, str]:
    assert live.security is not None
    return {name: str(live.security.bundle(role, name)) for name, role in PEOPLE.items()}


@pytest.fixture(scope="module")
def shells(gateway: GatewayProcess, bundles: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shell]:
    home = tmp_path_factory.mktemp("homes")
    return {name: Shell(home / name, {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": bundles[name]}) for name in PEOPLE}


@pytest.fixture(scope="module")
def anna(shells: dict[str, Shell]) -> Shell:
    return shells["anna"]


@pytest.fixture(scope="module")
def ben(shells: dict[str, Shell]) -> Shell:
    return shells["ben"]


@pytest.fixture(scope="module")
def olga(shells: dict[str, Shell]) -> Shell:
    return shells["olga"]


@pytest.fixture(scope="module")
def ended(anna: Shell) -> str:
    """A submission of anna that has ended."""
    number = anna.submit("--name", "secret-name", "--array", "1-3", "--", "sh", "-c", "echo of anna; exit $((RMGR_ARRAY_INDEX == 2))")
    assert anna("wait", number).code == 1
    return number


@pytest.fixture
def running(anna: Shell, olga: Shell) -> Iterator[str]:
    """A submission of anna that runs."""
    number = anna.submit("--array", "1-2", "--", "sh", "-c", "echo begins; sleep 600")
    with anna.running("logs", "-f", f"{number}_1") as process:
        wait_line(process, "begins")
    yield number
    olga("cancel", number)


def audited(log: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "audit"]


def refused(shell: Shell, *words: str) -> str:
    """A command that ends with exit code 4 and PERMISSION; its message."""
    told = shell(*words) if words[0] == "logs" else shell(*words, "--json")
    assert told.code == 4, (words, told)
    if words[0] == "logs":
        return told.err
    assert told.error["code"] == "PERMISSION", told
    return f"{told.error['message']} {told.error.get('hint', '')}"


# -- seeing ------------------------------------------------------------------------------------------------------------------


def test_everybody_sees_his_own(anna: Shell, ended: str) -> None:
    assert anna.ok("jobs", "-a", ended, "--json").json["jobs"][0]["user"] == "anna"
    assert anna.ok("show", ended, "--json")
    assert anna.ok("explain", ended)
    assert len(anna.ok("tasks", ended, "--json").json["tasks"]) == 3
    assert anna.ok("logs", f"{ended}_1").out == "of anna\n"
    assert [job["id"] for job in anna.ok("history", ended, "--json").json["history"]] == [ended]


def test_others_work_is_neither_listed_nor_shown(ben: Shell, ended: str, running: str) -> None:
    for words in (("jobs", "-a"), ("jobs", "-A", "-a"), ("history", "-A"), ("jobs", "-a", "--user", "anna"), ("history", "--user", "anna")):
        told = ben(*words, "--json")
        assert "anna" not in told.out, told
        assert "secret-name" not in told.out + told.err
    for words in (
        ("explain", running),
        ("tasks", running),
        ("logs", f"{running}_1"),
        ("wait", running),
        ("show", ended),
    ):
        assert "belongs to anna" in refused(ben, *words), words
    assert "operator" in refused(ben, "show", running)
    ben.ok("nodes")
    ben.ok("queues")
    told = ben.ok("status", "--json").json
    assert ("anna" in told["users"], told["users_others"] >= 1) == (False, True), "whose work runs is not for him, how much of it is"
    assert "others " in ben.ok("status").out


def test_operators_see_everything(olga: Shell, ended: str, running: str) -> None:
    listed = {str(job["id"]) for job in olga.ok("jobs", "-A", "-a", "--json").json["jobs"]}
    assert {ended, running} <= listed
    assert olga.ok("logs", f"{ended}_1").out == "of anna\n"
    assert olga.ok("logs", f"{running}_1").out == "begins\n"
    olga.ok("explain", running)
    assert olga.ok("status", "--json").json["users"]["anna"] >= 1
    olga.ok("tasks", ended)
    assert ended in {job["id"] for job in olga.ok("history", "-A", "--json").json["history"]}


# -- changing ----------------------------------------------------------------------------------------------------------------


def test_others_work_is_not_changed_and_operators_change_it(
    live: DevCluster, anna: Shell, ben: Shell, olga: Shell, running: str, gateway: GatewayProcess
) -> None:
    for words in (("cancel", running), ("cancel", f"{running}_1"), ("hold", running), ("release", running)):
        message = refused(ben, *words)
        assert f"{running} belongs to anna" in message
        assert "ask an operator" in message or "operator" in message
    assert anna.ok("jobs", running, "--json").json["jobs"][0]["state"] == "RUNNING"
    olga.ok("cancel", running, "--reason", "enough")
    assert anna("wait", running).code != 0
    assert "enough" in anna.ok("show", running).out
    leaders = audited(live.log_file("w1").read_text())
    assert any(line["who"] == "ben" and line["allowed"] is False and line["target"] == running for line in leaders)
    assert any(line["who"] == "olga" and line["allowed"] is True and "anna" in str(line["why"]) for line in audited(gateway.log()))


def test_a_user_cancels_holds_and_releases_his_own(anna: Shell) -> None:
    number = anna.submit("--hold", "--", "true")
    anna.ok("release", number)
    anna.ok("wait", number)
    long = anna.submit("--array", "1-3", "--", "sleep", "600")
    anna.ok("hold", long)
    anna.ok("cancel", f"{long}_2")
    anna.ok("cancel", long)
    assert anna("wait", long).code != 0


def test_what_concerns_all_is_for_operators(anna: Shell, olga: Shell, gateway: GatewayProcess) -> None:
    assert "operators" in refused(anna, "drain", "n1", "--reason", "mine")
    assert olga.ok("drain", "n1", "--reason", "repair")
    try:
        assert "operators" in refused(anna, "resume", "n1")
    finally:
        olga.ok("resume", "n1")
    what = {(line["who"], line["what"], line["allowed"]) for line in audited(gateway.log())}
    assert {("anna", "DRAIN", False), ("anna", "RESUME", False), ("olga", "DRAIN", True), ("olga", "RESUME", True)} <= what


# -- the Python API, and a client that does not play by its rules ---------------------------------------------------------------


@pytest.fixture
def connections(gateway: GatewayProcess, bundles: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Connection]]:
    made = {}
    try:
        for name in ("anna", "ben", "olga"):
            monkeypatch.setenv("RMGR_SECURITY_DIR", bundles[name])
            made[name] = rmgr.connect(gateway=gateway.endpoint)
        yield made
    finally:
        for connection in made.values():
            connection.close()


def test_the_python_api_works_with_the_users_own_rights(connections: dict[str, Connection]) -> None:
    anna, ben = connections["anna"], connections["ben"]
    with TaskQueue(pow, connection=anna, name="rights-of-anna") as queue:
        futures = [queue.submit_call(2, n) for n in range(20)]
        queue.wait_all(timeout=60)
        assert [future.result(60) for future in futures] == [2**n for n in range(20)]
        with pytest.raises(RmgrError):
            TaskQueue.attach("rights-of-anna", connection=ben, timeout=5)
    with Executor(connection=ben) as pool:
        assert list(pool.map(abs, range(-5, 5), timeout=60)) == [abs(n) for n in range(-5, 5)]
        future = pool.submit(pow, 2, 2)
        assert future.cancel() or future.result(60) == 4
    anna.store.put("rights/shared", b"value", overwrite=True)
    with pytest.raises(PermissionDenied, match="anna"):
        ben.store.get("rights/shared")
    anna.store.share("rights/shared", "ben")
    eventually(lambda: _shared(ben) == b"value")  # a share counts within 2 s
    assert anna.store.delete("rights/shared")


def _shared(connection: Connection) -> object:
    try:
        return connection.store.get("rights/shared")
    except PermissionDenied as error:
        return error


def test_a_client_that_says_something_else_is_refused(connections: dict[str, Connection], running: str, gateway: GatewayProcess) -> None:
    """Questions, words and rows, as no client of ours sends them."""
    ben, olga = connections["ben"], connections["olga"]
    number = int(running)
    asks, store = ben.asks, ben.submitter.store
    orders: tuple[Question[Any], ...] = (
        ReadRecord(number=number),
        ReadFragments(number=number),
        HoldSubmission(number=number),
        CancelTasks(number=number, ranges=((0, 1),)),
        KillRunning(number=number),
    )
    for order in orders:
        with pytest.raises(PermissionDenied, match="belongs to anna"):
            asks.ask(order, timeout_s=30)
    assert ben.credentials is not None
    with Handmade(gateway.endpoint, ben.credentials, "") as mine:
        for owned, wants in ((False, False), (True, False), (False, True)):
            kept = mine.keep(number, is_owned=owned, wants_ownership=wants)
            assert "belongs to anna" in mine.wait(m.Dead, kept=kept).fault.message
    for row in (keys.output(number, 0, 1), keys.log(number, 0, 1, "stdout", 0), keys.history_of_user("anna", number)):
        with pytest.raises(PermissionDenied, match="anna"):
            store.get(row)
        with pytest.raises(PermissionDenied):
            store.put(row, b"forged")
        with pytest.raises(PermissionDenied):
            store.delete(row)
    with pytest.raises(PermissionDenied, match="another hash"):
        store.put(keys.function("a" * 64), b"not that")
    assert [
        key for key in store.keys("") if key.startswith(("hist", "out/", "log/", "fn/")) and "ben" not in key and not _of_ben(store, key)
    ] == []
    assert not olga.asks.ask(HoldSubmission(number=number), timeout_s=30).unchanged
    held = olga.asks.ask(ReadRecord(number=number), timeout_s=30).record
    assert (held.phase, held.by) == (Phase.HELD, "olga")
    assert olga.asks.ask(HoldSubmission(number=number), timeout_s=30).unchanged
    assert not olga.asks.ask(ReleaseSubmission(number=number), timeout_s=30).unchanged


def _of_ben(store: object, key: str) -> bool:
    """Whatever is listed may be read: so it is his."""
    return store.get(key) is not None  # type: ignore[attr-defined]


def test_somebody_without_a_certificate_gets_nowhere(gateway: GatewayProcess, tmp_path: Path) -> None:
    stranger = Shell(tmp_path / "home", {"RMGR_GATEWAY": gateway.endpoint, "RMGR_SECURITY_DIR": ""})
    told = stranger("jobs", "--timeout", "5")
    assert told.code in {4, 6}, told  # refused, or not let in until its --timeout was over


def test_a_users_work_survives_the_death_of_his_gateway(
    connections: dict[str, Connection], gateway: GatewayProcess, tmp_path: Path
) -> None:
    """The next gateway, which knows nothing of him but his certificate, goes on with his own rights."""
    ledger = tmp_path / "ledger"

    def noted(number: int) -> int:
        with ledger.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.05)
        return number * number

    with TaskQueue(noted, connection=connections["anna"], resubmit=False) as queue:
        futures = [queue.submit_call(number) for number in range(60)]
        queue.flush(30)
        eventually(lambda: ledger.exists() and len(ledger.read_text().split()) >= 10)
        gateway.kill()
        gateway.start()
        futures += [queue.submit_call(number) for number in range(60, 80)]
        assert queue.wait_all(timeout=90).failed == []
    assert [future.result(60) for future in futures] == [number * number for number in range(80)]
    assert sorted(int(line) for line in ledger.read_text().split()) == list(range(80)), "each of them, and at most once"


# -- what an operator did stays done -----------------------------------------------------------------------------------------


def test_what_an_operator_holds_its_user_does_not_release(anna: Shell, olga: Shell) -> None:
    number = anna.submit("--hold", "--", "true")
    olga.ok("hold", number, "--reason", "disk is full")
    told = anna.ok("release", number, "--json").json
    assert not told["changed"]
    why = told["unchanged"][0]["why"]
    assert "held by olga, an operator, since" in why
    assert "(disk is full)" in why
    assert "ask olga" in why
    assert "held by olga" in anna.ok("explain", number).out
    shown = anna.ok("show", number, "--json").json
    assert (shown["state"], shown["reason"], shown["detail"]) == ("HELD", "OPERATOR_HOLD", "by olga: disk is full")
    assert olga.ok("release", number, "--json").json["changed"] == [number]
    anna.ok("wait", number)


def test_a_gateway_lets_no_client_release_what_an_operator_holds_and_believes_no_name(
    anna: Shell, olga: Shell, connections: dict[str, Connection]
) -> None:
    number = anna.submit("--hold", "--", "true")
    olga.ok("hold", number)
    asks = connections["anna"].asks
    record = asks.ask(ReadRecord(number=int(number)), timeout_s=30).record
    assert (record.reason, record.by) == (Reason.OPERATOR_HOLD, "olga")
    assert "operators alone release it" in asks.ask(ReleaseSubmission(number=int(number)), timeout_s=30).unchanged
    asks.ask(HoldSubmission(number=int(number), detail="by olga: mine"), timeout_s=30)  # it stays an operator's
    assert "operators alone release it" in asks.ask(ReleaseSubmission(number=int(number)), timeout_s=30).unchanged
    assert not asks.ask(CancelSubmission(number=int(number)), timeout_s=30).unchanged  # his own work, so in his own name
    assert anna.ok("show", number, "--json").json["reason"] == "USER_CANCEL"


def test_an_operators_cancel_bears_his_name(anna: Shell, olga: Shell, running: str) -> None:
    waiting = anna.submit("--hold", "--array", "1-3", "--", "true")
    olga.ok("cancel", f"{waiting}_2", "--reason", "wrong input")
    olga.ok("cancel", running, "--reason", "too long")
    for number, reason in ((waiting, "wrong input"), (running, "too long")):
        if number == running:
            assert anna("wait", number).code == 130
            assert anna.ok("show", number, "--json").json["reason"] == "OPERATOR_CANCEL"
        ended = [task for task in anna.ok("tasks", number, "--json").json["tasks"] if task["state"] == "CANCELLED"]
        assert ended
        assert {(task["reason"], task["error"]) for task in ended} == {("OPERATOR_CANCEL", f"by olga: {reason}")}
    anna.ok("cancel", waiting)
    assert anna("wait", waiting).code == 130
    assert anna.ok("show", waiting, "--json").json["reason"] == "USER_CANCEL"


def test_others_work_is_not_updated_and_an_operator_updates_priority_and_time_alone(
    anna: Shell, ben: Shell, olga: Shell, connections: dict[str, Connection]
) -> None:
    number = anna.submit("--hold", "-t", "1h", "--", "true")
    assert "belongs to anna" in refused(ben, "update", number, "-t", "2h")
    raised = anna.ok("update", number, "--priority", "5", "--json").json["unchanged"][0]["why"]
    assert raised == "its user may lower its priority (0 now), and an operator may raise it"
    told = olga.ok("update", number, "--name", "mine", "--json").json["unchanged"][0]["why"]
    assert "only anna changes its name" in told
    assert olga.ok("update", number, "--priority", "5", "-t", "2h").out.startswith(f"{number}: priority 0 -> 5, time limit ")
    anna.ok("update", number, "--name", "hers")
    first, second = anna.ok("show", number, "--json").json["changes"]
    assert (first["by"], first["operator"], sorted(first["changed"])) == ("olga", True, ["priority", "time_limit"])
    assert (second["by"], second["operator"], second["changed"]) == ("anna", False, {"name": {"old": "true", "new": "hers"}})
    # A client of his own making gets no further: no other name, no right, nothing of an older record.
    asks = connections["anna"].asks
    before = asks.ask(ReadRecord(number=int(number)), timeout_s=30).record
    for changes in ({}, {"by": "olga", "is_operators": True}, {"number": 9}, {"terms": Terms(priority=9)}):
        forged = replace(before.changes[-1], **({"terms": Terms(name="x"), "signature": f"{'0' * 32}:{'1' * 128}"} | changes))
        told = asks.ask(UpdateSubmission(number=int(number), terms=Terms(priority=9), amendment=forged), timeout_s=30)
        assert told.unchanged or told.to_sign is not None, told
    assert asks.ask(ReadRecord(number=int(number)), timeout_s=30).record == before
    olga.ok("release", number)
    anna.ok("wait", number)
    assert anna.ok("show", number, "--json").json["state"] == "COMPLETED", "Starters believe all of it"


def test_the_gateway_moves_hundreds_of_blocks_to_other_cores_for_their_user_alone(anna: Shell, ben: Shell, olga: Shell) -> None:
    number = anna.submit("-q", "batch", "--hold", "-t", "10m", "--array", "1-150", "--", "true")
    assert "belongs to anna" in refused(ben, "update", number, "-c", "2")
    assert "only anna changes its cores" in olga.ok("update", number, "-c", "2", "--json").json["unchanged"][0]["why"]
    assert anna.ok("update", number, "-c", "2").out == f"{number}: cores 1 -> 2\n"
    anna.ok("update", number, "-c", "1", "--mem", "1M")
    anna.ok("release", number)
    anna.ok("wait", f"{number}_1")
    anna("cancel", number)  # unless all of it has run


def test_an_operator_lengthens_what_runs_and_its_user_shortens_it(anna: Shell, olga: Shell) -> None:
    number = anna.submit("-t", "1m", "--", "sh", "-c", "echo begins; sleep 600")
    with anna.running("logs", "-f", number) as process:
        wait_line(process, "begins")
        told = anna.ok("update", number, "-t", "1h", "--json").json["unchanged"][0]["why"]
        assert told == "it runs: an operator may lengthen it"
        olga.ok("update", number, "-t", "1h")
    shorter = olga.ok("update", number, "-t", "10s", "--json").json["unchanged"][0]["why"]
    assert shorter == "it runs: its user may shorten the time limit of what runs"
    anna.ok("update", number, "-t", "1s")
    assert anna("wait", number).code == 124
