"""Certificates that end soon: a warning fourteen days before, a problem when nobody believes their holder any more."""

from __future__ import annotations

import pytest

from rmgr.coord.views.health import SOON_DAYS, CertificateHolder, ending
from rmgr.model.views import Level

NOW_S, DAY_S = 1_800_000_000.0, 86_400.0


@pytest.mark.parametrize(
    ("days", "level", "told"),
    [
        (SOON_DAYS - 0.1, Level.WARNING, "ends in 13 days (2027-01-29)"),
        (1.5, Level.WARNING, "ends in 1 day (2027-01-16)"),
        (0.5, Level.WARNING, "ends within a day (2027-01-15)"),
        (0.0, Level.PROBLEM, "has ended (2027-01-15)"),
        (-3.0, Level.PROBLEM, "has ended (2027-01-12)"),
    ],
)
def test_it_is_told_when_and_how_bad_that_is(days: float, level: Level, told: str) -> None:
    [part] = ending({CertificateHolder(role="starter", name="n1"): NOW_S + days * DAY_S}, NOW_S)
    assert (part.id, part.level, part.reason) == ("starter n1", level, f"the certificate of starter n1 {told}")
    assert "rmgr admin add-node n1 --role starter --renew" in part.fix


def test_those_that_last_are_not_told() -> None:
    assert ending({CertificateHolder(role="watchdog", name="w1"): NOW_S + SOON_DAYS * DAY_S}, NOW_S) == ()


def test_a_person_asks_for_a_new_bundle() -> None:
    [part] = ending({CertificateHolder(role="user", name="ann", is_person=True): NOW_S + DAY_S}, NOW_S)
    assert part.fix == "ask the cluster's admin for a new bundle: rmgr admin add-user ann"


def test_of_many_the_first_to_end_are_named_and_the_others_counted() -> None:
    found = ending({CertificateHolder(role="starter", name=f"n{at:02}"): NOW_S + (20 - at) * 0.5 * DAY_S for at in range(20)}, NOW_S)
    assert [part.id for part in found[:2]] == ["starter n19", "starter n18"]
    assert (len(found), found[-1].reason) == (9, "12 more certificates end within 14 days")
