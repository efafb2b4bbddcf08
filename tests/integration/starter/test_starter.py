"""A Starter on real ZooKeeper, SQLite and spawners claims, runs and commits submitted work once."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rmgr.adapters import store_rules
from rmgr.coord.ops.membership import set_settings
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_block, decode_record
from rmgr.model.base import Request
from rmgr.model.block import KeyedPayload, Outcome
from rmgr.model.frames import MAX_INLINE_OUTPUT
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, PythonEnvironment, Upload
from tests.harness.starter_rig import Rig, call, sh
from tests.harness.waiting import eventually


def log_of(rig: Rig, number: int, outcome: Outcome, stream: int = 0, attempt: int = 1) -> bytes:
    """The whole output of an attempt: parts from the store, then the inline rest."""
    rows = (keys.log(number, outcome.index, attempt, keys.STREAMS[stream], part) for part in range(outcome.log_parts[stream]))
    return b"".join(rig.store.get(row)[0] for row in rows) + outcome.log[stream]


def test_one_call_comes_back_with_its_value(rig: Rig) -> None:
    rig.start()
    outcome = rig.end_of(lambda x: x + 1, [call(41)])
    assert (outcome.state, pickle.loads(outcome.value)) == (State.COMPLETED, 42)
    eventually(lambda: not rig.running(), "the block gone")


def test_many_quick_calls_are_each_committed_once(rig: Rig) -> None:
    rig.start()
    number = rig.submit(lambda x: x * x, [call(x) for x in range(600)], blocks=3)
    found = rig.outcomes(number, 600)
    assert {index: pickle.loads(outcome.value) for index, outcome in found.items()} == {x: x * x for x in range(600)}
    eventually(lambda: not rig.running() and not rig.pending(), "nothing left")


def test_an_exception_comes_back_with_its_traceback_and_the_others_go_on(rig: Rig) -> None:
    rig.start()
    number = rig.submit(lambda x: 1 // x, [call(x) for x in (1, 0, 2)])
    found = rig.outcomes(number, 3)
    assert [found[index].state for index in range(3)] == [State.COMPLETED, State.FAILED, State.COMPLETED]
    assert (found[1].reason, found[1].error) == (Reason.EXCEPTION, "ZeroDivisionError: integer division or modulo by zero")
    assert isinstance(pickle.loads(found[1].value), ZeroDivisionError)


def test_what_calls_print_is_their_log(rig: Rig) -> None:
    rig.start()

    def work(x: int) -> None:
        import sys

        print("hello", x)
        print("oh", file=sys.stderr)

    number = rig.submit(work, [call(x) for x in range(3)])
    found = rig.outcomes(number, 3)
    assert [found[x].log for x in range(3)] == [(f"hello {x}\n".encode(), b"oh\n") for x in range(3)]


@pytest.mark.parametrize("size", [100, 9_000, 700_000, 3_000_000])
def test_values_of_every_size_come_back_whole(rig: Rig, size: int) -> None:
    rig.start()
    number = rig.submit(lambda n: b"\xab" * n, [call(size)])
    outcome = rig.outcomes(number, 1)[0]
    if outcome.value_size < 0:
        value, pickled = outcome.value, outcome.pickled
    else:
        row = rig.store.get(keys.output(number, 0, 1))
        value, pickled = row[0], row[1] is Encoding.PICKLE
        assert outcome.value_size == len(value)
    assert (pickle.loads(value) if pickled else value) == b"\xab" * size
    assert (outcome.value_size < 0) == (size < 8000)
    assert rig.spool_is_empty()


def test_many_middling_values_go_into_one_row(rig: Rig) -> None:
    rig.start()
    number = rig.submit(lambda n: b"x" * 7000, [call(n) for n in range(300)], blocks=2)
    found = rig.outcomes(number, 300)
    assert all(len(outcome.value) >= 7000 for outcome in found.values())
    assert rig.store.keys(f"frag/{number:010d}/")


def test_arguments_too_large_for_a_block_come_from_their_row(rig: Rig) -> None:
    rig.start()
    payloads = [call(b"y" * 20_000), call(b"z" * 2_000_000)]
    number = rig.submit(len, payloads, row=True)
    found = rig.outcomes(number, 2)
    assert [pickle.loads(found[index].value) for index in range(2)] == [20_000, 2_000_000]


def test_work_whose_function_or_arguments_are_gone_from_the_store_is_lost_data_and_blames_no_node(rig: Rig) -> None:
    rig.start()
    for _ in range(5):  # more different submissions than put a node out, were it to blame
        number = rig.submit(len, [call(b"abc")] * 3, store_function=False)
        found = rig.outcomes(number, 3)
        assert {(outcome.reason, outcome.past) for outcome in found.values()} == {(Reason.DATA_LOST, ())}, "it does not run again"
        assert re.search(r"fn/\S+ is not in the data store", found[0].error)
    number = rig.submit(bytes.hex, [call(b"y" * 20_000)], row=True, store_row=False)
    (lost,) = rig.outcomes(number, 1).values()
    assert lost.reason is Reason.DATA_LOST
    assert re.search(r"the arguments args/\S+ are not in the data store", lost.error)
    assert rig.end_of(bytes.hex, [call(b"abc")]).reason is Reason.NONE


def test_values_travel_by_key_from_task_to_task(rig: Rig) -> None:
    rig.start()
    rig.store.put(keys.named("in/a"), b"raw bytes")
    rig.store.put(keys.named("in/b"), pickle.dumps([1, 2]), encoding=Encoding.PICKLE)
    first = rig.submit(lambda a, b: (a + b"!", [*b, 3]), keyed=[KeyedPayload(("in/a", "in/b"), ("out/a", "out/b"))])
    assert rig.outcomes(first, 1)[0].outputs == 2
    rig.point("out/a", first, 0, 0)
    rig.point("out/b", first, 0, 1)
    second = rig.submit(lambda a, b: {"a": a, "b": b}, keyed=[KeyedPayload(("out/a", "out/b"), ("end",))])
    outcome = rig.outcomes(second, 1)[0]
    assert (outcome.state, outcome.outputs) == (State.COMPLETED, 1)
    assert pickle.loads(rig.store.get(keys.output(second, 0, 1, 0))[0]) == {"a": b"raw bytes!", "b": [1, 2, 3]}
    assert rig.store.get(keys.output(first, 0, 1, 0)) == (b"raw bytes!", Encoding.RAW)


def test_a_keyed_task_without_keys_ends_and_its_node_works_on(rig: Rig) -> None:
    rig.start()
    keyless: Any = msgspec.Raw(b"x")
    bad = rig.submit(lambda: None, keyed=[keyless] * 3)
    good = rig.submit(lambda: 7)
    assert pickle.loads(rig.outcomes(good, 1)[0].value) == 7
    ended = rig.outcomes(bad, 3).values()
    assert {(outcome.state, outcome.reason) for outcome in ended} == {(State.FAILED, Reason.UNTRUSTED)}


def test_each_input_is_read_once_and_each_output_written_once_by_calls_for_many(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: dict[str, list[int]] = {"get_noted_many": [], "put_many": [], "put_soon": [], "get": [], "put": [], "head": []}

    def counted(name: str) -> Any:
        real = getattr(rig.store, name)

        def call(what: Any, *args: Any, **options: Any) -> Any:
            if (isinstance(what, list) and not str(what[0]).startswith("fn/")) or str(what).startswith(("name/", "out/")):
                trips[name].append(len(what) if isinstance(what, list) else 1)
            return real(what, *args, **options)

        return call

    rig.store.put_many([(keys.named(f"in/{number}"), f"{number}".encode()) for number in range(200)])
    first = rig.submit(lambda value: value + b"!", keyed=[KeyedPayload((f"in/{number}",), (f"mid/{number}",)) for number in range(200)])
    for number in range(200):
        rig.point(f"mid/{number}", first, number, 0)
    for name in trips:
        monkeypatch.setattr(rig.store, name, counted(name))
    rig.start()
    rig.outcomes(first, 200)
    written = sum(trips["put_many"]) + sum(trips["put_soon"])
    assert written == sum(trips["get_noted_many"]) == 200, "each input is read once, each output written once"
    second = rig.submit(lambda value: value + b"?", keyed=[KeyedPayload((f"mid/{number}",), (f"end/{number}",)) for number in range(200)])
    rig.outcomes(second, 200)
    assert sum(trips["get_noted_many"]) == 200 + 400, "a pointer and what it leads to"
    assert trips["get"] == trips["put"] == trips["head"] == []
    assert [rig.store.get(keys.output(second, number, 1, 0)) for number in range(200)] == [
        (f"{number}!?".encode(), Encoding.RAW) for number in range(200)
    ]


def test_a_missing_input_key_fails_the_task_and_names_it(rig: Rig) -> None:
    rig.start()
    rig.store.put(keys.named("there"), b"1")
    number = rig.submit(lambda x: x, keyed=[KeyedPayload(("nowhere",), ("o/1",)), KeyedPayload(("there",), ("o/2",))])
    found = rig.outcomes(number, 2)
    assert (found[0].state, found[0].reason) == (State.FAILED, Reason.START_FAILED)
    assert "'nowhere'" in found[0].error
    assert found[1].state is State.COMPLETED


def test_a_wrong_number_of_outputs_is_bad_output(rig: Rig) -> None:
    rig.start()
    assert rig.end_of(lambda: (1, 2, 3), keyed=[KeyedPayload((), ("a", "b"))]).reason is Reason.BAD_OUTPUT


def test_at_most_once_that_fails_leaves_no_output_and_frees_its_keys(rig: Rig) -> None:
    rig.start()
    rig.point("mine", rig.next_number(), 0, 0)
    number = rig.submit(lambda: 1 // 0, keyed=[KeyedPayload((), ("mine",))], resubmit=False)
    assert rig.outcomes(number, 1)[0].reason is Reason.EXCEPTION
    eventually(lambda: rig.store.head(keys.named("mine")) is None, "the key freed")
    assert rig.store.keys(keys.outputs_of(number)) == []


def test_commands_tell_output_and_exit_code(rig: Rig) -> None:
    rig.start()
    outcome = rig.end_of(sh("echo hello; echo oops >&2"))
    assert (outcome.state, outcome.exit_code, outcome.log) == (State.COMPLETED, 0, (b"hello\n", b"oops\n"))
    outcome = rig.end_of(sh("exit 3"))
    assert (outcome.state, outcome.reason, outcome.exit_code, outcome.error) == (State.FAILED, Reason.EXIT_CODE, 3, "exit code 3")
    outcome = rig.end_of(sh("kill -9 $$"))
    assert (outcome.reason, outcome.exit_code) == (Reason.SIGNAL, 137)


def test_arrays_see_their_own_numbers_and_lines(rig: Rig) -> None:
    rig.start()
    script = sh('echo "$RMGR_ARRAY_INDEX $RMGR_TASK_ID $RMGR_ATTEMPT $RMGR_TOKEN $RMGR_NODELIST $RMGR_ENTRY $WHO"', env={"WHO": "me"})
    number = rig.submit(script, [b"line one", b"line two"], array="10-20:10")
    found = rig.outcomes(number, 2)
    assert found[0].log[0].decode() == f"10 {number}_10 1 {number}_10.1 n1 line one me\n"
    assert found[1].log[0].decode() == f"20 {number}_20 1 {number}_20.1 n1 line two me\n"


def test_a_script_runs_with_its_arguments_and_standard_input(rig: Rig) -> None:
    rig.start()
    script = rig.upload(b'#!/bin/sh\necho "$1-$2"\ncat\n')
    stdin = rig.upload(b"from stdin")
    assert rig.end_of(Command(script_sha256=script, script_name="job.sh", argv=("a", "b"), stdin_sha256=stdin)).log[0] == b"a-b\nfrom stdin"


def test_a_command_that_does_not_exist_is_start_failed(rig: Rig) -> None:
    rig.start()
    outcome = rig.end_of(Command(argv=("/no/such/program",)))
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.START_FAILED)
    assert "/no/such/program" in outcome.error


def test_large_output_is_kept_in_parts(rig: Rig) -> None:
    rig.start()
    number = rig.submit(sh("yes 0123456789abcde | head -c 1000000; echo end"))
    outcome = rig.outcomes(number, 1)[0]
    text = log_of(rig, number, outcome)
    assert text == b"0123456789abcde\n" * 62_500 + b"end\n"
    assert outcome.log_parts[0] >= 3
    assert len(outcome.log[0]) <= MAX_INLINE_OUTPUT


def test_output_of_a_long_task_is_in_the_store_while_it_runs(rig: Rig) -> None:
    rig.start()
    number = rig.submit(sh("echo early; while [ ! -e go ]; do sleep 0.05; done; echo late", cwd=str(rig.directory)))
    eventually(lambda: rig.store.keys(keys.logs_of(number)), "a flushed part")
    (rig.directory / "go").touch()
    outcome = rig.outcomes(number, 1)[0]
    assert log_of(rig, number, outcome) == b"early\nlate\n"
    assert outcome.log_parts[0] == 1


@pytest.mark.parametrize("days", [2, 0])
def test_output_expires_as_the_clusters_settings_say_now(rig: Rig, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    running = rig.start()
    found = rig.zk.get(paths.CONFIG).result(60)
    settings = replace(decode_record(found.data, ClusterSettings, paths.CONFIG), log_retention_us=days * 86_400_000_000)
    assert isinstance(rig.zk.commit(set_settings(settings, found.version)).result(60), Committed)
    eventually(lambda: running.starter.shared.settings.log_retention_us == settings.log_retention_us, "the Starter has the settings")
    number = rig.submit(sh("echo early; while [ ! -e go ]; do sleep 0.05; done; yes | head -c 600000", cwd=str(rig.directory)))
    eventually(lambda: rig.store.keys(keys.logs_of(number)), "a part written while it runs")
    (rig.directory / "go").touch()
    parts = rig.outcomes(number, 1)[0].log_parts[0]
    assert parts >= 2, "and some at its end"
    for later_days, left in ((1.9, parts), (2.1, 0 if days else parts), (10_000, 0 if days else parts)):
        clock = SimpleNamespace(time=lambda days=later_days: time.time() + days * 86_400, monotonic=time.monotonic)
        monkeypatch.setattr(store_rules, "time", clock)
        assert len(rig.store.keys(keys.logs_of(number))) == left, f"after {later_days} days"


def test_files_are_shipped_in_and_out_by_key(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    rig.store.put(keys.named("data"), b"3 4")
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "f").write_text("deep")
    upload = Upload(name="code", sha256=rig.upload_directory(tree), is_dir=True)
    tool = Upload(name="tool.sh", sha256=rig.upload(b"#!/bin/sh\nread a b; echo $((a + b))\n"))
    script = "./tool.sh < in.txt > out.txt; cat code/sub/f; ls -a | wc -l"
    command = sh(script, uploads=(upload, tool), input_files=(("data", "in.txt"),), output_files=(("sum", "out.txt"),))
    number = rig.submit(command)
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED, outcome
    assert outcome.log[0].startswith(b"deep")
    assert rig.store.get(keys.output(number, 0, 1, 0)) == (b"7\n", Encoding.RAW)
    many = rig.submit(sh("echo spoilt >> tool.sh; cat code/sub/f; rm -r code", uploads=(upload, tool)), [b""] * 6)
    assert {outcome.log[0] for outcome in rig.outcomes(many, 6).values()} == {b"deep"}
    assert rig.starters[0].agent().stager._files._uploads.fetched == 2, "both once a node, for seven tasks"
    escape = Upload(name="../evil", sha256=tool.sha256)
    bad = rig.submit(sh("true", uploads=(escape,)))
    assert (rig.outcomes(bad, 1)[0].state, "is no file name" in rig.outcomes(bad, 1)[0].error) == (State.FAILED, True)
    assert rig.spool_is_empty()


def test_an_output_file_that_was_not_written_is_bad_output(rig: Rig) -> None:
    rig.start()
    outcome = rig.end_of(sh("true", output_files=(("k", "none.txt"),)))
    assert outcome.reason is Reason.BAD_OUTPUT
    assert "none.txt" in outcome.error


def test_named_output_files_are_written_on_the_node_and_kept_in_the_store(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    command = sh("echo $RMGR_ARRAY_INDEX", out=str(tmp_path / "o-%j-%a.txt"))
    number = rig.submit(command, [b""] * 2, array="5-6")
    found = rig.outcomes(number, 2)
    for index in range(2):
        path = tmp_path / f"o-{number}-{index + 5}.txt"
        assert path.read_text() == f"{index + 5}\n"
        assert log_of(rig, number, found[index]) == f"{index + 5}\n".encode()


def test_output_for_a_file_whose_directory_is_not_here_is_in_the_store(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    number = rig.submit(sh("head -c 9000 /dev/zero; echo end", out=str(tmp_path / "absent" / "o.txt")))
    outcome = rig.outcomes(number, 1)[0]
    assert outcome.state is State.COMPLETED
    assert log_of(rig, number, outcome) == bytes(9000) + b"end\n"
    assert not (tmp_path / "absent").exists()


def test_a_task_over_its_time_limit_is_ended(rig: Rig) -> None:
    rig.start()
    outcome = rig.end_of(sh("sleep 60"), request=Request(time_limit_us=300_000), grace_us=100_000)
    assert (outcome.state, outcome.reason) == (State.FAILED, Reason.TIME_LIMIT)


def test_a_failure_that_may_run_again_waits_for_the_rule(rig: Rig) -> None:
    rig.start()
    number = rig.submit(sh("echo out; exit $RMGR_ENTRY"), [b"0", b"1", b"2"], retries=1, backoff_us=7)
    found = rig.outcomes(number, 1)
    assert list(found) == [0]
    failed = eventually(lambda: (f := rig.failed(number)) and len(f) == 2 and f, "two failed attempts")
    record = failed[1, 1, 1]
    assert (record.reason, record.exit_code, record.backoff_us, record.log) == (Reason.EXIT_CODE, 1, 7, (b"out\n", b""))
    data = decode_block(record.block)
    assert (data.payloads, data.base, data.retries, data.failures) == ((b"1",), 1, 1, 0)
    eventually(lambda: not rig.running(), "the block gone")
    assert rig.resubmit(number, (2, 1, 1), failed[2, 1, 1]) is None
    outcome = rig.outcomes(number, 2)[2]
    assert (outcome.state, outcome.reason, outcome.exit_code) == (State.FAILED, Reason.EXIT_CODE, 2)
    assert [past.attempt for past in outcome.past] == [1]


def test_a_worker_that_dies_fails_its_task_and_no_other(rig: Rig) -> None:
    rig.start()

    def work(x: int) -> int:
        import os

        if x == 5:
            os._exit(7)
        return x

    number = rig.submit(work, [call(x) for x in range(40)])
    found = rig.outcomes(number, 40)
    assert [index for index, outcome in found.items() if outcome.state is not State.COMPLETED] == [5]
    assert (found[5].reason, found[5].exit_code) == (Reason.EXIT_CODE, 7)


def test_a_long_task_does_not_block_those_behind_it(rig: Rig) -> None:
    rig.start()

    def work(path: str, x: int) -> int:
        import pathlib
        import time

        while x == 100 and not pathlib.Path(path).exists():
            time.sleep(0.01)
        return x

    go = rig.directory / "go"
    number = rig.submit(work, [call(str(go), x) for x in range(300)], blocks=3)
    found = rig.outcomes(number, 299)
    assert 100 not in found
    go.touch()
    assert 100 in rig.outcomes(number, 300)


def test_a_submission_may_choose_its_interpreter(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    mine = tmp_path / "mypython"
    mine.write_text(f'#!/bin/sh\nexport CHOSEN=yes\nexec {sys.executable} "$@"\n')
    mine.chmod(0o755)

    def which() -> str | None:
        import os

        return os.environ.get("CHOSEN")

    plain = rig.submit(which, [call()] * 4)
    chosen = rig.submit(which, [call()] * 4, python=PythonEnvironment(python=str(mine)))
    again = rig.submit(which, [call()] * 4)
    for number, expected in ((plain, None), (chosen, "yes"), (again, None)):
        assert {pickle.loads(outcome.value) for outcome in rig.outcomes(number, 4).values()} == {expected}


def test_a_module_is_fetched_once_a_node_whatever_submissions_use_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    stream = rig.store.stream
    monkeypatch.setattr(rig.store, "stream", lambda key, **options: (fetched.append(key), stream(key, **options))[1])
    rig.start()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("travelled_module.py", "ANSWER = 42\n")
    digest = hashlib.sha256(archive.getvalue()).hexdigest()
    rig.store.put(keys.module(digest), archive.getvalue())

    def answer() -> int:
        import travelled_module

        return int(travelled_module.ANSWER)

    environment = PythonEnvironment(modules=(digest,))
    for number in [rig.submit(answer, [call()] * 4, python=environment) for _ in range(3)]:
        assert {pickle.loads(outcome.value) for outcome in rig.outcomes(number, 4).values()} == {42}
    assert [key for key in fetched if key.startswith("mod/")] == [keys.module(digest)]


def test_an_interpreter_that_cannot_work_fails_its_tasks_and_not_the_node(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for python in (str(tmp_path / "absent"), str(broken)):
        number = rig.submit(lambda: 1, [call()] * 3, python=PythonEnvironment(python=python))
        ends = rig.outcomes(number, 3).values()
        assert {outcome.reason for outcome in ends} == {Reason.START_FAILED}
        assert all(python in outcome.error for outcome in ends), ends
    assert rig.end_of(lambda: 1, [call()]).state is State.COMPLETED
    assert not rig.starters[0].agent().is_draining
