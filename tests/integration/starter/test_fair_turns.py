"""Users take turns on a real node with real tasks and blocks in ZooKeeper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rmgr.coord.ops.membership import set_settings
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.records import decode_record
from rmgr.model.queue import CappedUse, ClusterSettings, UserLimits
from tests.harness.starter_rig import Rig, call
from tests.harness.waiting import eventually


def test_ten_users_with_long_arrays_share_a_node(rig: Rig, tmp_path: Path) -> None:
    """Of one of them the blocks' names do not say whose they are, as releases before wrote them."""

    def nap(path: str) -> None:
        import time

        began_s = time.monotonic()
        time.sleep(0.05)
        with open(path, "a") as file:
            file.write(f"{time.monotonic() - began_s:.6f}\n")

    users = [f"u{at}" for at in range(10)]

    def had() -> dict[str, list[float]]:
        """How long each of their tasks took (s)."""
        told = {user: path.read_text() if (path := tmp_path / user).exists() else "" for user in users}
        return {user: [float(line) for line in text.split("\n")[:-1]] for user, text in told.items()}

    def ended() -> int:
        return sum(map(len, had().values()))

    def come(user: str) -> None:
        rig.submit(nap, [call(str(tmp_path / user))] * 2000, blocks=20, user=user, tagged=user != "u3")

    rig.ready(cores=2)
    come("u0")
    eventually(lambda: len(had()["u0"]) > 20, "the first of them has the node")
    for user in users[1:]:
        come(user)
    eventually(lambda: all(had().values()), "each of the others has had a task")
    before = had()
    assert len(before["u0"]) < 1000, "nobody has waited until the first was through with half of his"
    at_first = ended()
    eventually(lambda: ended() > at_first + 800, "the node turns among them", within_s=180)
    since = {user: tasks[len(before[user]) :] for user, tasks in had().items()}
    shares, longest_s = {user: sum(tasks) for user, tasks in since.items()}, max(map(max, since.values()))
    equal = sum(shares.values()) / len(users)  # who has just had a long task, because the machine stood still, waits for all others
    assert all(abs(share - equal) <= 0.2 * equal + longest_s for share in shares.values()), shares


def test_a_user_at_a_cap_leaves_the_other_cores_to_others(rig: Rig, tmp_path: Path) -> None:
    """Nobody leads: the figures that were told last hold."""

    def nap(path: str) -> None:
        import time

        time.sleep(0.05)
        with open(path, "a") as file:
            file.write("x")

    def had(user: str) -> int:
        return path.stat().st_size if (path := tmp_path / user).exists() else 0

    def in_hand() -> int:
        return sum(block.unfinished for key, block in list(starter.agent().blocks.items()) if key.user == paths.user_tag("ann"))

    found = rig.zk.get(paths.CONFIG).result(60)
    settings = replace(decode_record(found.data, ClusterSettings, paths.CONFIG), limits=UserLimits(cores_of={"ann": 7}))
    assert isinstance(rig.zk.commit(set_settings(settings, found.version)).result(60), Committed)
    rig.write(paths.USAGE, CappedUse(cores={"ann": 6}, nodes={"ann": 1}, free=1))  # of 7, on another node
    starter = rig.ready(cores=3)
    rig.submit(nap, [call(str(tmp_path / "ann"))] * 600, blocks=6, user="ann")
    eventually(lambda: had("ann") > 20, "she has one core here")
    for _ in range(20):
        before = had("ann")
        assert in_hand() <= 1, "no more than one task of hers runs or waits here"
        eventually(lambda before=before: had("ann") > before, "it goes on")
    rig.submit(nap, [call(str(tmp_path / "bob"))] * 600, blocks=6, user="bob")
    eventually(lambda: had("bob") > 100, "the others are for whoever has no cap", within_s=60)
    assert had("ann") > 0
