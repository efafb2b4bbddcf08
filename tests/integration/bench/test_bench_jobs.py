"""`rmgr bench jobs` prints rows of the right shape, at a tiny size on a real cluster."""

from __future__ import annotations

import json

import pytest

from rmgr.bench import jobs as bench_jobs
from rmgr.cli.main import run


def test_placed_jobs_are_counted_with_what_each_costs(
    zookeeper_parts: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_jobs, "_WARM", 1)
    monkeypatch.setattr(bench_jobs, "_CORES", (2,))
    assert run(["bench", "jobs", "--json", "--repeat", "1", "--scale", "0.001"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["bench"]) == ("rmgr/1", "jobs")
    rates, times = answer["rows"][:3], answer["rows"][3:]
    parts = ("leader", "zookeeper", "starters", "spawners", "jobs", "client")
    for row in rates:
        assert row["unit"] == "jobs/s"
        assert row["rate"] > 0
        assert row["detail"]["in_all_us"] == pytest.approx(sum(row["detail"][f"{part}_us"] for part in parts))
        assert row["detail"]["transactions"] > 0.05
    assert [row["unit"] for row in times] == ["ms"] * 6
    first, _, last, _, gap, _ = (row["rate"] for row in times)
    assert gap > 0
    assert 0 < first < last
