"""What the placing leader writes down is what `rmgr sim replay` reads: the recorded decisions follow from the recorded facts, exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmgr.coord.protocol import keys
from rmgr.errors import RmgrError
from rmgr.sched.pipeline import configured
from rmgr.sched.state.event_log import Opening, Passed
from rmgr.sim.replay import verify
from rmgr.sim.runs.output import read_log
from tests.property.test_placing_failover import Story


@pytest.mark.parametrize("policy", ["easy", "fcfs", "migration"])
def test_a_live_log_run_again_gives_the_decisions_that_were_made(policy: str, tmp_path: Path) -> None:
    story = Story(policy)
    try:
        story.play()
        assert story.bench.leader is not None
        story.bench.leader.close()
        store, prefix = story.bench.store, keys.events_of()
        found = store.keys(prefix)
        last = max(keys.parse_events(key)[:2] for key in found)
        file = tmp_path / "live.jsonl"
        file.write_bytes(b"".join(store.get(key)[0] for key in found if keys.parse_events(key)[:2] == last))
    finally:
        story.close()
    entries = list(read_log(file))
    opening = entries[0]
    assert isinstance(opening, Opening)
    assert (opening.policy, opening.carried_out) == (policy, "at once")
    starts = [one for entry in entries if isinstance(entry, Passed) for one in entry.decisions if one["do"] == "start"]
    assert len(starts) == len(story.seen.starts)
    history = verify(entries, configured(policy).stages)  # raises at the first decision that differs
    assert history.passes == sum(isinstance(entry, Passed) for entry in entries)
    with pytest.raises(RmgrError, match="decision"):
        verify(entries, configured("ljf").stages)  # the check can fail
