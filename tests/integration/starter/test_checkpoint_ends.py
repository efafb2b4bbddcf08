"""Exit codes of a program that was asked to save its state: 85 means "saved, run me again", whether it was to stop or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import OrderKind
from rmgr.model.tasks.submission import Command, Rigid
from tests.harness.hand_leader import put
from tests.harness.starter_rig import Rig
from tests.harness.waiting import eventually
from tests.integration.starter.test_checkpoints import back, noted, running, saved, start
from tests.integration.starter.test_starter_orders import crossed_off, order

#: Ends whenever it is asked; the second time it answers first, and the third attempt is not asked.
ALWAYS = """cd "$RMGR_CHECKPOINT_DIR"; trap 'asked=1' USR1; asked=; echo "$(cat kept 2>/dev/null || echo nothing)" >> $0
while [ ! "$asked" ]; do sleep 0.02; [ $RMGR_ATTEMPT -lt 3 ] || exit 85; done
echo "of $RMGR_ATTEMPT" > kept
[ $RMGR_ATTEMPT = 1 ] || { cp .rmgr/number .rmgr/saved; while [ ! -e $0.end ]; do sleep 0.02; done; }; exit 85"""


def test_a_program_that_ends_with_85_when_it_may_go_on_runs_again(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    told, other = tmp_path / "told", tmp_path / "other"
    number = rig.submit(Command(argv=("sh", "-c", ALWAYS, str(told))), queue="batch")
    once = rig.submit(Command(argv=("sh", "-c", ALWAYS, str(other))), queue="batch", resubmit=False)

    def ask(number: int, told: Path, lines: int) -> str:
        put(rig, number)
        eventually(lambda: told.exists() and told.read_text().count("\n") == lines, f"{lines} attempts")
        return order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "go-on", "why": "user"})

    crossed_off(rig, ask(once, other, 1))
    assert (rig.outcomes(once, 1)[0].reason, rig.outcomes(once, 1)[0].exit_code) == (Reason.EXIT_CODE, 85), "it may run once"
    crossed_off(rig, ask(number, told, 1))
    past = back(rig, number, 2).past[-1]
    assert (past.reason, past.exit_code, "stored: 1 file" in past.error) == (Reason.MIGRATED, 85, True), past.error
    crossed_off(rig, ask(number, told, 2))
    assert saved(rig, number)[0] == "2.1"
    Path(f"{told}.end").touch()
    assert "stored: 1 file" in back(rig, number, 3).past[-1].error
    assert saved(rig, number) == ["2.2", "2.1"]
    put(rig, number)
    assert rig.outcomes(number, 1)[0].exit_code == 85, "nobody has asked the third attempt"
    assert told.read_text().split("\n")[:3] == ["nothing", "of 1", "of 2"]


#: Its first step takes as long as the test wants; saves when it is asked to, between two steps, and stops where it is still to stop.
SLOW = """cd "$RMGR_CHECKPOINT_DIR"; asked=; trap 'asked=1' USR1; end=$0.end
while [ ! -e $end ]; do
    echo begins >> $0; while [ ! -e $0.go ]; do sleep 0.05; done; sleep 0.1
    if [ "$asked" ]; then asked=; echo kept > kept; cp .rmgr/number .rmgr/saved; echo saved >> $0; [ ! -e .rmgr/stop ] || exit 85; fi
done"""


def test_one_that_a_policy_would_move_goes_on_when_it_does_not_answer_in_its_grace(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it answers later: the request does not ask it to stop any more."""
    start(rig, "n1")
    notes = noted(monkeypatch)
    told = tmp_path / "told"
    rigid = Rigid(checkpoint=True, checkpoint_grace_us=1_000_000)
    number = rig.submit(Command(argv=("sh", "-c", SLOW, str(told))), queue="batch", rigid=rigid)
    put(rig, number)
    eventually(told.exists, "it to run")
    guid = order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "stop", "why": "policy", "unsaved": "go-on"})
    crossed_off(rig, guid)
    assert any("has until" in note.saving for note in notes), "its block said that it was asked, and until when"
    data = running(rig, number)
    assert data.story == ("stop (policy) refused: it has not saved its state within 1s",)
    assert (data.stopping, data.saving, data.answered, data.moves) == ("", "", False, 0)
    Path(f"{told}.go").touch()
    eventually(lambda: "saved" in told.read_text(), "its late answer")
    lines = told.read_text().count("begins")
    eventually(lambda: told.read_text().count("begins") > lines, "it to go on behind it")
    assert running(rig, number).allocation is not None
    guid = order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "go-on", "why": "user", "grace_us": "30000000"})
    crossed_off(rig, guid)
    assert running(rig, number).answered, "it has answered: so it saves"
    order(rig, OrderKind.CHECKPOINT, number, 0, extra={"then": "stop", "why": "policy", "unsaved": "go-on", "grace_us": "30000000"})
    data = back(rig, number, 2)
    assert (data.past[-1].reason, data.answered, data.moves, data.saving) == (Reason.MIGRATED, True, 1, "")
    put(rig, number)
    eventually(lambda: running(rig, number).moves == 1, "what was counted is there")
    Path(f"{told}.end").touch()
    assert rig.outcomes(number, 1)[0].state is State.COMPLETED


def test_what_has_begun_is_not_taken_back_and_what_has_not_is(rig: Rig, tmp_path: Path) -> None:
    start(rig, "n1")
    told = tmp_path / "told"
    first = rig.submit(Command(argv=("sh", "-c", SLOW, str(told))), queue="batch", rigid=Rigid(processes=2))
    second = rig.submit(Command(argv=("true",)), queue="batch")
    put(rig, first, (("n1", 2),))
    eventually(told.exists, "it to run")
    put(rig, second)  # no core is free
    extra = {"then": "stop", "why": "policy", "unsaved": "go-on", "unbegun": "1"}
    crossed_off(rig, order(rig, OrderKind.CHECKPOINT, first, 0, extra=extra))
    assert running(rig, first).stopping == ""
    crossed_off(rig, order(rig, OrderKind.CHECKPOINT, second, 0, extra=extra))
    assert back(rig, second, 1).past == ()
    Path(f"{told}.end").touch()
    Path(f"{told}.go").touch()
    assert rig.outcomes(first, 1)[0].state is State.COMPLETED
    put(rig, second)
    assert rig.outcomes(second, 1)[0].state is State.COMPLETED
