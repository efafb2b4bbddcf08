"""`rmgr bench calls` at tiny sizes: each requested row, beside its baseline of the same run."""

from __future__ import annotations

import json

import pytest

from rmgr.bench.calls import ROWS, as_live
from rmgr.cli.main import run
from rmgr.sched.catalogue import call_policy_named
from rmgr.sim.calls.scenario import scenario_named
from rmgr.sim.calls.world import replicate


@pytest.mark.usefixtures("guests")
def test_rows_stand_beside_their_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "calls", "--row", "pick,echo,bulk,memory", "--json", "--repeat", "1", "--scale", "0.02"]
    assert run(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {(row["what"], row["system"]): row for row in rows}
    assert found["a pick by gRPC, p50", "a health check of that leader"]["ratio"] == 1.0
    assert found["a pick by gRPC, p50", "rmgr"]["ratio"] > 0
    assert {system for what, system in found if what == "echo of 8 bytes, p50"} == {"two hops of bare gRPC", "Executor.submit", "rmgr"}
    assert found["1 MiB both ways", "rmgr"]["rate"] > 0
    assert any(what.startswith("RSS of the gateway") for what, _ in found)


def test_a_row_that_is_not_known_is_an_error_that_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "calls", "--row", "picks"]) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in ROWS)


def test_the_simulated_side_of_a_scenario_serves_as_live_servers_do() -> None:
    for name in ("ninf_shared", "ninf_table4"):
        scenario = as_live(scenario_named(name))
        assert {(server.discipline, server.background) for server in scenario.servers} == {("fcfs", 0.0)}
        assert len(replicate(scenario, scenario.cases[0], call_policy_named("loth"), seed=1).requests) == scenario.requests
