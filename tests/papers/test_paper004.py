"""Paper 004 (papers.md section 4): decoded table 4 and the real environment, by their checks, mostly with few replications."""

from __future__ import annotations

import pytest

from rmgr.sim.papers.paper004 import CASES, NOTES, POLICIES, STUDY, TABLE_3, TABLE_4, Paper004Runs
from rmgr.sim.papers.report import PaperCheck

#: Enough for orderings; the tolerances of C4.2 want the paper's 50.
FEW = tuple(range(1, 11))


def test_the_printed_tables_are_whole() -> None:
    assert set(TABLE_3) == set(TABLE_4) == {(policy, case) for policy in POLICIES for case in CASES}
    for row in TABLE_4.values():
        assert row.total_s == pytest.approx(row.computing_s + row.transfer_s, abs=0.002)


def test_c4_1_is_exact() -> None:
    report = STUDY.report(Paper004Runs((1,)), ("C4.1",))
    assert {check.id: check.verdict for check in report.checks} == {"C4.1": "pass", "C4.1b": "pass", "C4.1c": "pass"}
    assert (report.tables, report.notes) == ((), ())


@pytest.fixture(scope="module")
def orderings() -> dict[str, list[PaperCheck]]:
    """The checks that compare policies, by id without a letter; what several of them ask for is run once."""
    found: dict[str, list[PaperCheck]] = {}
    for check in STUDY.report(Paper004Runs(FEW), ("C4.3", "C4.4", "C4.6", "C4.7", "C4.8")).checks:
        found.setdefault(check.id.rstrip("abcdefghijklmnopqrstuvwxyz"), []).append(check)
    return found


@pytest.mark.parametrize("name", ["C4.3", "C4.4", "C4.6", "C4.7", "C4.8"])
def test_the_orderings_of_tables_3_and_4(orderings: dict[str, list[PaperCheck]], name: str) -> None:
    assert [check.id for check in orderings[name] if check.verdict == "fail"] == []
    assert any(check.required for check in orderings[name])


def test_c4_2_table_4_within_its_tolerances() -> None:
    report = STUDY.report(Paper004Runs(range(1, 51)), ("C4.2",))
    assert {check.id: check.verdict for check in report.checks} == dict.fromkeys(
        ["C4.2", *(f"C4.2{letter}" for letter in "bcdefgh")], "pass"
    )


def test_reported_checks_do_not_fail_the_report_and_notes_name_the_errata() -> None:
    report = STUDY.report(Paper004Runs((1, 2)), ("C4.5", "tnet", "adaptive", "queueing"))
    assert {check.verdict for check in report.checks} == {"reported"}
    assert report.passes
    assert any("columns of utilisation in table 4 are swapped" in note for note in NOTES)
    assert any("0.247" in note and "0.10" in note for note in NOTES)
