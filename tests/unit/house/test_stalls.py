"""What `tests/stalls.sh` stops, what it lets go on, and that nothing is excused there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness import second_goes, stalls

#: A run: a process that belongs to nobody any more and has the run's mark, one that the run has stopped itself, and itself. Each of the two
#: that run writes down the longest time in which it got nowhere.
_RUN = """if True:
    import os, signal, subprocess, sys, time
    from pathlib import Path
    where = Path(sys.argv[1])
    look = '''if True:
        import sys, time
        from pathlib import Path
        longest, before, end = 0.0, time.monotonic(), time.monotonic() + 8
        while time.monotonic() < end and longest < 1:
            time.sleep(0.05)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
        Path(sys.argv[1]).write_text(str(longest))
    '''
    if not os.fork():
        if not os.fork():
            os.setsid()
            os.execv(sys.executable, [sys.executable, "-c", look, str(where / "orphan")])
        os._exit(0)
    os.wait()
    own = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    own.send_signal(signal.SIGSTOP)
    subprocess.run([sys.executable, "-c", look, str(where / "child")])
    time.sleep(0.5)
    state = Path(f"/proc/{own.pid}/stat").read_text().rpartition(")")[2].split()[0]
    (where / "own").write_text(state)
    own.kill()
    own.wait()
    for _ in range(200):
        if (where / "orphan").exists():
            break
        time.sleep(0.05)
    sys.exit(7)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
def test_a_stall_stops_every_process_of_a_run_and_nobody_goes_on_who_was_stopped_before(tmp_path: Path) -> None:
    code = stalls.run([sys.executable, "-c", _RUN, str(tmp_path)], every_s=2.0, least_s=1.5, most_s=1.5)
    assert code == 7, "the command's own"
    assert float((tmp_path / "child").read_text()) > 1
    assert float((tmp_path / "orphan").read_text()) > 1
    assert (tmp_path / "own").read_text() == "T"


@pytest.mark.parametrize("is_stalled", [True, False])
def test_stalls_that_are_made_on_purpose_excuse_nothing(
    is_stalled: bool, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(second_goes.STALLED_VARIABLE, raising=False)
    if is_stalled:
        monkeypatch.setenv(second_goes.STALLED_VARIABLE, "1")
    goes = second_goes.SecondGoes(pytestconfig)
    goes._witness.stalls.append((10.0, 20.0))
    assert goes.is_excused(15.0, 16.0) is not is_stalled
    assert not goes.is_excused(30.0, 31.0)
