"""`rmgr update` on a real cluster changes terms of waiting work and time limits of running work, and shows its author."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.coord.protocol import paths
from rmgr.dev.cluster import DevCluster
from rmgr.errors import StateConflict, UsageError
from rmgr.model.units import format_duration
from tests.harness.waiting import eventually
from tests.integration.commands import Shell


@pytest.fixture
def sh(in_both_ways: Shell) -> Shell:
    return in_both_ways


def begun(path: Path) -> None:
    eventually(path.exists, lambda: f"{path} is made by what runs")


def shown(sh: Shell, number: str) -> dict[str, object]:
    found: dict[str, object] = sh.ok("show", number, "--json").json
    return found


def put_at(cluster: DevCluster, queue: str, number: str, priority: int) -> None:
    """Until the leader has put what waits of it where that priority has it: the record says so before."""

    def there() -> set[int]:
        names = cluster.coordinator.children(paths.pending(queue)).result(60) or []
        return {key.priority for _, key in paths.blocks_in(names) if key.submission == int(number)}

    eventually(lambda: there() == {priority}, lambda: f"{number} waits at {priority}, not at {there()}")


@pytest.mark.parametrize("queue", ["default", "batch"])
def test_what_waits_gets_other_terms_and_runs_by_them(sh: Shell, queue: str) -> None:
    words = ("sh", "-c", 'echo "$RMGR_JOB_NAME $RMGR_MEMORY"')
    number = sh.submit("-q", queue, "--hold", "-J", "small", "-t", "10m", "--mem", "64M", "--", *words)
    told = sh.ok("update", number, "--priority", "-7", "-t", "20m", "--mem", "100M", "--name", "large").out
    limits = f"time limit {format_duration(600)} -> {format_duration(1200)}"
    assert told == f"{number}: priority 0 -> -7, {limits}, memory 64M -> 100M, name small -> large\n"
    job = shown(sh, number)
    assert (job["priority"], job["time_limit"], job["mem_bytes"], job["name"]) == (-7, 1200.0, 100 << 20, "large")
    [change] = job["changes"]  # type: ignore[misc]
    assert change["changed"]["time_limit"] == {"old": 600.0, "new": 1200.0}
    told = " ".join(sh.ok("show", number).out.split())
    assert f"by {job['user']}, an operator: priority 0 -> -7, {limits}" in told or f"by {job['user']}: priority 0 -> -7, {limits}" in told
    again = sh.ok("update", number, "-t", "20m", "--json").json
    assert again["unchanged"] == [{"id": number, "why": "it is so already"}]
    nowhere = sh("update", number, "-q", "nosuch")
    assert (nowhere.code, "there is no queue 'nosuch'" in nowhere.err) == (3, True)
    sh.ok("release", number)
    sh.ok("wait", number)
    assert sh.ok("logs", number).out.startswith("large")
    late = sh("update", number, "-t", "5m")
    assert (late.code, late.out) == (1, "")
    assert f"{number} has ended COMPLETED: nothing of it can be changed" in late.err
    assert f"rmgr rerun {number}" in late.err
    task = sh.ok("tasks", number, "--json").json["tasks"][0]
    assert task["state"] == "COMPLETED"


def test_a_shorter_limit_ends_what_runs_and_a_longer_one_is_an_operators(sh: Shell, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    number = sh.submit("-t", "1h", "--", "sh", "-c", f"touch {mark}; sleep 600")
    begun(mark)
    assert "cannot be changed" in sh.ok("update", number, "--mem", "1G", "--json").json["unchanged"][0]["why"]
    assert sh.ok("update", number, "-t", "1s").out == f"{number}: time limit {format_duration(3600)} -> {format_duration(1)}\n"
    assert sh("wait", number).code == 124
    task = sh.ok("tasks", number, "--json").json["tasks"][0]
    assert (task["state"], task["reason"]) == ("FAILED", "TIME_LIMIT")
    assert f"over its limit of {format_duration(1)}" in sh.ok("explain", number).out


def test_what_waits_can_wait_for_others(sh: Shell) -> None:
    first = sh.submit("--hold", "--", "true")
    second = sh.submit("--hold", "--", "true")
    third = sh.submit("-q", "batch", "--begin", "1h", "--", "true")
    assert sh.ok("update", third, "--begin", "30m", "--after", f"ok:{first}").code == 0
    assert shown(sh, third)["state"] == "HELD"
    refused = sh.ok("update", first, "--after", f"ok:{second}", "--json").json["unchanged"][0]["why"]
    assert refused == f"it can wait for what was submitted before it, not for {second}"
    assert sh.ok("update", third, "--after", f"any:{second}").out == f"{third}: after ok:{first} -> any:{second}\n"
    sh.ok("cancel", second)
    eventually(lambda: shown(sh, third)["state"] == "INITIAL", lambda: f"it waits for its time alone: {shown(sh, third)}")
    sh.ok("update", third, "--begin", "now")
    sh.ok("wait", third)
    sh.ok("cancel", first)


def test_what_cannot_be_is_refused_with_the_reason(sh: Shell) -> None:
    number = sh.submit("--hold", "--", "true")
    for words, code, why in (
        (("--features", "no-such"), 2, "no node of partition default has the features no-such"),
        (("--mem", "900T"), 2, "no node can ever run this"),
        (("--after", "ok:999999"), 3, "999999"),
        (("--name", "x" * 1001), 2, "(1001 characters), where only text of 0 to 1000 characters"),
        ((), 2, "nothing is to be changed"),
    ):
        told = sh("update", number, *words, "--json")
        assert told.code == code, told
        assert why in told.error["message"]
    assert "no node can ever run this" in sh("update", number, "-c", "99", "--json").error["message"]
    told = sh("update", number, "-q", "batch").err
    assert "the leader places the jobs of queue batch" in told
    assert f"rmgr rerun {number} -q batch; rmgr cancel {number}" in told
    assert "only jobs that the leader places" in sh.ok("update", number, "--begin", "1h", "--json").json["unchanged"][0]["why"]
    assert sh("update", f"{number}_0", "-t", "1h").code == 2
    later = sh.submit("--hold", "--", "true")
    assert sh.ok("update", "last", "--name", "newest").out == f"{later}: name true -> newest\n"
    assert sh.ok("update", f"{number}-{later}", "--name", "both", "--json").json["changed"] == [number, later]
    sh.ok("cancel", later)
    sh.ok("cancel", number)


def test_of_several_what_cannot_be_is_told_and_the_others_are_changed(sh: Shell) -> None:
    one = sh.submit("--hold", "--", "true")
    gang = sh.submit("-q", "batch", "-n", "6", "--hold", "--", "true")
    other = sh.submit("--hold", "--", "true")
    told = sh.ok("update", one, gang, other, "-c", "2")
    assert told.out == f"{one}: cores 1 -> 2\n{other}: cores 1 -> 2\n"
    assert f"{gang}: 6 processes of 2 cores each" in told.err
    told = sh.ok("update", gang, other, "--name", "x\ny\x1b[31m")
    assert told.out == f"{gang}: name true -> x y\\x1b[31m\n{other}: name true -> x y\\x1b[31m\n"
    assert sh("update", one, other, "-c", "9").code == 2
    assert sh("update", "999990-999999", "--name", "x").code == 3
    sh.ok("cancel", one, gang, other)
    eventually(lambda: not sh.ok("jobs", "--json").json["jobs"], lambda: f"the leader has ended all of it: {sh('jobs').out}")
    told = sh.ok("update", "all", "--name", "x")
    assert (told.out, told.err) == ("", "rmgr: nothing is there to be changed\n")


def test_who_is_put_later_starts_later(live_cluster: DevCluster, sh: Shell, tmp_path: Path) -> None:
    full = sh.submit("--array", "1-3", "-c", "2", "--", "sh", "-c", f"touch {tmp_path}/$RMGR_ARRAY_INDEX; sleep 600")
    for number in range(1, 4):
        begun(tmp_path / str(number))
    order = tmp_path / "order"
    words = ("-c", "2", "-t", "1h", "--", "sh", "-c", f"echo $RMGR_JOB_ID >>{order}; sleep 1")
    first, second = sh.submit(*words), sh.submit(*words)
    sh.ok("update", first, "--priority", "-5", "-t", "30m")
    put_at(live_cluster, "default", first, -5)
    sh.ok("cancel", f"{full}_2")  # one node is free: for one of them
    sh.ok("wait", first, second)
    assert order.read_text().split() == [second, first]
    sh.ok("cancel", full)


def test_who_gives_a_priority_that_nobody_looks_at_is_told_what_to_type_and_that_helps(
    live_cluster: DevCluster, sh: Shell, tmp_path: Path
) -> None:
    full = sh.submit(
        "-q", "batch", "--array", "1-3", "-c", "2", "-t", "10m", "--", "sh", "-c", f"touch {tmp_path}/$RMGR_ARRAY_INDEX; sleep 600"
    )
    for number in range(1, 4):
        begun(tmp_path / str(number))
    order = tmp_path / "order"
    words = ("-q", "batch", "-c", "2", "-t", "10m", "--", "sh", "-c", f"echo $RMGR_JOB_ID >>{order}; sleep 1")
    typed = "rmgr policy set easy --param order=priority"
    told = sh.ok("submit", "--parsable", "--priority", "-1", *words)
    assert f"policy easy of partition default does not look at priorities; an operator makes it: {typed}\n" in told.err
    first, second = told.out.strip(), sh.submit(*words)
    assert typed in sh.ok("update", first, "--priority", "-5").err
    assert typed not in sh.ok("update", first, "-t", "9m").err
    sh.ok(*typed.split()[1:])
    try:
        assert typed not in sh.ok("update", first, "--priority", "-6").err
        put_at(live_cluster, "batch", first, -6)
        sh.ok("cancel", f"{full}_2")  # one node is free: for one of them
        sh.ok("wait", first, second)
        assert order.read_text().split() == [second, first]
    finally:
        sh.ok("policy", "set", "easy")
        sh.ok("cancel", full)


def test_tasks_that_wait_have_more_memory_than_those_that_ran(sh: Shell, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo $RMGR_ARRAY_INDEX; while [ ! -e {go} ]; do sleep 0.1; done"
    number = sh.submit("--array", "1-8%2", "--mem", "64M", "--", "sh", "-c", script)
    eventually(lambda: shown(sh, number)["counts"]["RUNNING"] == 2, lambda: "two of them run")  # type: ignore[index]
    sh.ok("update", number, "--mem", "96M", "--priority", "-3")
    go.touch()
    sh.ok("wait", number)
    counts = shown(sh, number)["counts"]
    assert counts["COMPLETED"] == 8  # type: ignore[index]
    assert shown(sh, number)["mem_bytes"] == 96 << 20


def test_a_placed_job_that_runs_ends_at_its_new_limit(sh: Shell, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    number = sh.submit("-q", "batch", "-n", "2", "-t", "1h", "--", "sh", "-c", f"touch {mark}; sleep 600")
    begun(mark)
    sh.ok("update", number, "-t", "1s")
    assert sh("wait", number).code == 124


def test_a_queue_of_python_is_updated_while_it_grows(live: DevCluster) -> None:
    import rmgr

    with rmgr.TaskQueue(abs, memory="64M", time="1h") as queue:
        assert queue.submit_call(-1).result(60) == 1
        queue.update(memory="96M", time="30m", name="abs-2")
        assert [queue.submit_call(-at).result(60) for at in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(UsageError, match="nothing is to be changed"):
            queue.update()
        with pytest.raises(StateConflict, match="it is so already"):
            queue.update(name="abs-2")


@pytest.mark.parametrize("queue", ["default", "batch"])
def test_what_waits_gets_other_cores_while_nothing_of_it_runs(sh: Shell, queue: str, tmp_path: Path) -> None:
    number = sh.submit("-q", queue, "--hold", "--array", "1-3", "-t", "10m", "--", "sh", "-c", 'echo "has $RMGR_THREADS"')
    told = sh.ok("update", number, "-c", "2", "--mem", "32M").out
    assert told == f"{number}: memory none -> 32M, cores 1 -> 2\n"
    assert shown(sh, number)["cores"] == 2
    sh.ok("release", number)
    sh.ok("wait", number)
    assert sh.ok("logs", number).out.count("has 2") == 3
    begins = tmp_path / "begins"
    runs = sh.submit("-q", queue, "-t", "10m", "--", "sh", "-c", f"touch {begins}; sleep 600")
    begun(begins)
    assert "its cores can be changed while nothing of it runs" in sh.ok("update", runs, "-c", "2", "--json").json["unchanged"][0]["why"]
    sh.ok("cancel", runs)


def test_what_waits_goes_to_another_queue_while_nothing_of_it_runs(sh: Shell, tmp_path: Path) -> None:
    before = sh.ok("config", "show", "--cluster").out
    sh.file("old.toml", before)
    sh.ok("config", "apply", sh.file("night.toml", before + "\n[queues.night]\n"))
    try:
        full = sh.submit("--array", "1-3", "-c", "2", "--", "sh", "-c", f"touch {tmp_path}/$RMGR_ARRAY_INDEX; sleep 600")
        for number in range(1, 4):
            begun(tmp_path / str(number))
        moved = sh.submit("--array", "1-20", "--", "echo", "moved")
        assert sh.ok("update", moved, "-q", "night", "--mem", "32M").out.startswith(f"{moved}: memory none -> 32M, queue default -> night")
        assert (shown(sh, moved)["queue"], shown(sh, moved)["tasks"]) == ("night", 20)
        assert "while nothing of it runs" in sh.ok("update", full, "-q", "night", "--json").json["unchanged"][0]["why"]
        sh.ok("cancel", full)
        sh.ok("wait", moved)
        assert sh.ok("logs", moved).out.count("moved") == 20
    finally:
        sh("cancel", "all")
        sh.ok("config", "apply", "--remove", "old.toml")
