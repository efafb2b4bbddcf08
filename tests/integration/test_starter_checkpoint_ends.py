"""What ends of a program mean that was asked to save its state: 85 is "saved, run me again", whether it was to stop or not."""

from __future__ import annotations

from pathlib import Path

from rmgr.model.node import Order
from rmgr.model.states import Reason
from rmgr.model.submission import Command
from tests.harness.hand_leader import put
from tests.harness.starter_rig import Rig, wait_for
from tests.integration.test_starter_checkpoints import back, rig, saved, start
from tests.integration.test_starter_orders import crossed_off, order

__all__ = ["rig"]

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
        wait_for(lambda: told.exists() and told.read_text().count("\n") == lines, f"{lines} attempts")
        return order(rig, Order.CHECKPOINT, number, 0, extra={"then": "go-on", "why": "user"})

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
