"""Work may write only so much into its directories: the work of a user above the limit ends, other users' work goes on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters import store_rules
from rmgr.adapters.host.accounts import Account
from rmgr.coord.protocol import keys
from rmgr.daemons.starter.node import trouble as starter_use
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.states import Reason, State
from rmgr.model.submission import Upload
from tests.harness.starter_rig import Rig, call, own_rig, sh

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def rig(zookeeper: ZooKeeperServer, place: Path) -> Iterator[Rig]:
    """A Starter of four cores whose work runs as its users, and which counts five times a second."""
    with own_rig(zookeeper, place) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(starter_use, "_EVERY_S", 0.2)
        patch.setattr(starter_use, "MAX_THINGS", 3000)
        made.ready("n1", as_users=True, cores=4, work_cap_user_bytes=30 * MIB)
        yield made

FILL = "while :; do head -c 1000000 /dev/zero > $(mktemp ./XXXXXXXX); sleep 0.01; done"


@pytest.mark.parametrize("where", ["its slot", "what was staged", "what a call has"])
def test_the_task_that_fills_the_disk_ends_and_others_go_on(rig: Rig, anna: Account, ben: Account, where: str) -> None:
    ready = Path(anna.home, uuid.uuid4().hex)
    his = rig.submit(sh("head -c 5000000 /dev/zero > mine; while [ -e mine ]; do sleep 0.05; done; ls"), user=ben.name)
    hers = rig.submit(sh(f"head -c 5000000 /dev/zero > mine; until [ -e {ready} ]; do sleep 0.05; done; ls"), user=anna.name)
    match where:
        case "its slot":
            number = rig.submit(sh(FILL), user=anna.name)
        case "what was staged":
            number = rig.submit(sh(FILL, uploads=(Upload(name="data", sha256=rig.upload(b"uploaded")),)), user=anna.name)
        case _:

            def fill() -> None:
                import tempfile as temporary
                import time

                while True:
                    with temporary.NamedTemporaryFile(dir=".", delete=False) as file:
                        file.write(b"x" * 1_000_000)
                    time.sleep(0.01)

            number = rig.submit(fill, [call()], user=anna.name)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.DISK_LIMIT)
    assert "on node n1: files of its user's work take" in outcome.error
    assert "work_cap_user_bytes" in outcome.error
    ready.touch()
    assert rig.outcomes(hers, 1)[0].state is State.COMPLETED, "her other work takes little"
    for block in [block for block in list(rig.starters[0].agent().blocks.values()) if block.key.submission == his]:
        rig.starters[0].starter.ask(lambda block=block: rig.starters[0].agent().cancel(block, None, "enough", 0))
    assert rig.outcomes(his, 1)[0].state is State.CANCELLED, "it ran until then"


def test_names_fill_a_disk_too(rig: Rig, anna: Account) -> None:
    # Not as fast as it can: between two looks at a busy disk that would also be more bytes than the user may have, which is said first.
    number = rig.submit(sh("i=0; while :; do i=$((i+1)); : > f$i; [ $((i % 100)) != 0 ] || sleep 0.1; done"), user=anna.name)
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.DISK_LIMIT)
    assert "files here, and may have 3000" in outcome.error


def test_names_that_no_file_can_have_put_no_node_out_of_service(rig: Rig, anna: Account) -> None:
    rig.store.put(keys.named("in/x"), b"x")
    data = rig.upload(b"uploaded")
    inputs = [("n" * 300,), ("n" * 301,), ("a", "a/b"), ("c", "c/d/e"), ("d/" * 2100 + "f",), ("f\0",)]
    works = [sh("true", input_files=tuple(("in/x", name) for name in names)) for names in inputs]
    works += [sh("true", uploads=(Upload(name=name, sha256=data),)) for name in ("u" * 300, "v" * 301)]
    for at, work in enumerate(works):
        outcome = rig.outcomes(rig.submit(work, user=anna.name), 1)[0]
        reason = Reason.START_FAILED if at in {2, 3} else Reason.UNTRUSTED  # no record may have such a name
        assert (outcome.state, outcome.reason) == (State.FAILED, reason), outcome.error
    agent = rig.starters[0].agent()
    assert agent.drains == {}, "nobody else is kept from the node"
    assert agent.strikes.last == ""


def test_outputs_that_no_store_takes_put_no_node_out_of_service(rig: Rig, anna: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_rules, "MAX_VALUE_BYTES", 4 * MIB)
    for number in range(6):
        work = sh(f"truncate -s {5 * MIB + number} out", output_files=((f"out/{number}", "out"),))
        outcome = rig.outcomes(rig.submit(work, user=anna.name), 1)[0]
        assert (outcome.state, outcome.reason) == (State.FAILED, Reason.BAD_OUTPUT), outcome.error
    agent = rig.starters[0].agent()
    assert agent.drains == {}
    assert agent.strikes.last == ""
