"""Typed times follow the wall clock of the machine's time zone: across jumps, repeated hours, and a day that never came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from rmgr.cli.listing.report import Days
from rmgr.cli.words.params import parse_begin, parse_since
from rmgr.errors import UsageError

Zone = Callable[[str], None]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """Sets the time zone of this process until the test's end."""

    def changed(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()
        if name != "UTC" and time.tzname[0] == "UTC":
            pytest.skip(f"this machine has no time zone {name} (tzdata)")

    yield changed
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    """A moment with its zone, in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def shown(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="minutes").removesuffix("+00:00") + "Z"


# Zones whose days to come are tested, by POSIX rules: laws change, and the zones of the names with them. Days that are gone stay.
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"  # 2026-03-29 02:00 -> 03:00, 2026-10-25 03:00 -> 02:00
LORD_HOWE = "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0"  # half an hour: 2026-10-04 02:00 -> 02:30, 2026-04-05 02:00 -> 01:30
HAVANA = "CST5CDT,M3.2.0/0,M11.1.0/1"  # 2026-03-08 00:00 -> 01:00, 2026-11-01 01:00 -> 00:00: midnight comes twice
DUBLIN = "IST-1GMT0,M10.5.0,M3.5.0/1"  # winter is the time that differs, by law
NEW_YORK = "EST5EDT,M3.2.0,M11.1.0"
APIA = "Pacific/Apia"  # 2011-12-29 24:00 (-10) -> 2011-12-31 00:00 (+14): there is no 30th
SAO_PAULO = "America/Sao_Paulo"  # 2017-10-15 00:00 -> 01:00, 2018-02-18 00:00 -> 2018-02-17 23:00
CASABLANCA = "Africa/Casablanca"  # Ramadan: 2025-02-23 03:00 -> 02:00, 2025-04-06 02:00 -> 03:00


@pytest.mark.parametrize(
    ("name", "now", "text", "begins"),
    [
        (BERLIN, "2026-03-28T12:00+01:00", "tomorrow", "2026-03-28T23:00Z"),  # the day before the jump
        (BERLIN, "2026-03-29T01:00+01:00", "tomorrow", "2026-03-29T22:00Z"),  # the day of 23 hours
        (BERLIN, "2026-10-25T01:00+02:00", "tomorrow", "2026-10-25T23:00Z"),  # the day of 25 hours
        (BERLIN, "2026-10-25T01:00+02:00", "midnight", "2026-10-25T23:00Z"),
        (BERLIN, "2026-03-28T17:00+01:00", "16:00", "2026-03-29T14:00Z"),
        (BERLIN, "2026-03-29T01:00+01:00", "16:00", "2026-03-29T14:00Z"),  # today, behind the jump
        (BERLIN, "2026-10-24T17:00+02:00", "16:00", "2026-10-25T15:00Z"),
        (BERLIN, "2026-10-25T01:00+02:00", "16:00", "2026-10-25T15:00Z"),
        (BERLIN, "2026-03-28T12:00+01:00", "02:30", "2026-03-29T01:00Z"),  # there is none: the first moment after the gap
        (BERLIN, "2026-03-29T03:10+02:00", "02:30", "2026-03-30T00:30Z"),
        (BERLIN, "2026-10-24T12:00+02:00", "02:30", "2026-10-25T00:30Z"),  # there are two: the first
        (BERLIN, "2026-10-25T02:40+02:00", "02:30", "2026-10-25T01:30Z"),  # the first is over: the second is the next one
        (BERLIN, "2026-10-25T02:40+01:00", "02:30", "2026-10-26T01:30Z"),
        (BERLIN, "2026-01-01T00:00+01:00", "2026-03-29T02:30", "2026-03-29T01:00Z"),
        (BERLIN, "2026-01-01T00:00+01:00", "2026-10-25T02:30", "2026-10-25T00:30Z"),
        (BERLIN, "2026-01-01T00:00+01:00", "2026-07-01", "2026-06-30T22:00Z"),
        (BERLIN, "2026-01-01T00:00+01:00", "2026-03-29T02:30+01:00", "2026-03-29T01:30Z"),  # with a zone it is one moment
        (BERLIN, "2026-10-25T01:30+02:00", "now+1d", "2026-10-25T23:30Z"),  # durations are time that passes: 24 hours
        (BERLIN, "2026-03-29T01:30+01:00", "1h", "2026-03-29T01:30Z"),
        (LORD_HOWE, "2026-10-03T12:00+10:30", "02:15", "2026-10-03T15:30Z"),
        (LORD_HOWE, "2026-10-03T12:00+10:30", "tomorrow", "2026-10-03T13:30Z"),
        (LORD_HOWE, "2026-10-04T01:00+10:30", "tomorrow", "2026-10-04T13:00Z"),
        (LORD_HOWE, "2026-04-04T12:00+11:00", "01:45", "2026-04-04T14:45Z"),
        (LORD_HOWE, "2026-04-05T01:50+11:00", "01:45", "2026-04-04T15:15Z"),
        (LORD_HOWE, "2026-04-05T01:00+11:00", "tomorrow", "2026-04-05T13:30Z"),
        (APIA, "2011-12-29T12:00-10:00", "tomorrow", "2011-12-30T10:00Z"),
        (APIA, "2011-12-29T12:00-10:00", "09:30", "2011-12-30T19:30Z"),  # of the 31st, which follows the 29th
        (APIA, "2011-12-29T12:00-10:00", "2011-12-30T09:30", "2011-12-30T10:00Z"),
        (APIA, "2011-12-31T12:00+14:00", "tomorrow", "2011-12-31T10:00Z"),
        (SAO_PAULO, "2017-10-14T12:00-03:00", "tomorrow", "2017-10-15T03:00Z"),  # there is no midnight
        (SAO_PAULO, "2017-10-14T12:00-03:00", "00:30", "2017-10-15T03:00Z"),
        (SAO_PAULO, "2017-10-14T12:00-03:00", "16:00", "2017-10-14T19:00Z"),
        (SAO_PAULO, "2017-10-14T17:00-03:00", "16:00", "2017-10-15T18:00Z"),
        (SAO_PAULO, "2018-02-17T23:30-02:00", "tomorrow", "2018-02-18T03:00Z"),  # 23:30 comes once more before
        (SAO_PAULO, "2018-02-17T23:30-02:00", "23:15", "2018-02-18T02:15Z"),
        (CASABLANCA, "2025-02-22T12:00+01:00", "tomorrow", "2025-02-22T23:00Z"),
        (CASABLANCA, "2025-02-23T01:00+01:00", "16:00", "2025-02-23T16:00Z"),
        (CASABLANCA, "2025-04-05T12:00+00:00", "02:30", "2025-04-06T02:00Z"),
        (CASABLANCA, "2025-04-05T17:00+00:00", "16:00", "2025-04-06T15:00Z"),
        (HAVANA, "2026-03-07T12:00-05:00", "tomorrow", "2026-03-08T05:00Z"),
        (HAVANA, "2026-10-31T12:00-04:00", "tomorrow", "2026-11-01T04:00Z"),  # the first of two midnights
        (HAVANA, "2026-11-01T00:30-04:00", "tomorrow", "2026-11-02T05:00Z"),
        (HAVANA, "2026-11-01T00:30-04:00", "midnight", "2026-11-01T05:00Z"),  # the next time the clock shows 00:00
        (DUBLIN, "2026-03-28T12:00+00:00", "16:00", "2026-03-28T16:00Z"),
        (DUBLIN, "2026-03-28T17:00+00:00", "16:00", "2026-03-29T15:00Z"),
        (NEW_YORK, "2026-12-31T23:00-05:00", "tomorrow", "2027-01-01T05:00Z"),
        ("UTC", "2026-03-29T01:00+00:00", "02:30", "2026-03-29T02:30Z"),
    ],
)
def test_work_begins_when_the_clock_shows_that_time(zone: Zone, name: str, now: str, text: str, begins: str) -> None:
    zone(name)
    assert shown(parse_begin(text, at(now))) == begins


@pytest.mark.parametrize("text", ["today", "now", "0", "2026-03-28T23:00", "2026-03-29T02:30", "2026-03-29T03:00+02:00"])
def test_what_is_past_begins_at_once(zone: Zone, text: str) -> None:
    zone(BERLIN)
    assert parse_begin(text, at("2026-03-29T03:00+02:00")) == 0


@pytest.mark.parametrize(
    ("name", "text", "means"),
    [
        (BERLIN, "2026-03-29", "2026-03-28T23:00Z"),
        (BERLIN, "2026-03-30", "2026-03-29T22:00Z"),
        (BERLIN, "2026-03-29T02:30", "2026-03-29T01:00Z"),
        (BERLIN, "2026-10-25T02:30", "2026-10-25T00:30Z"),
        (BERLIN, "2026-10-25T02:30+01:00", "2026-10-25T01:30Z"),
        (LORD_HOWE, "2026-10-04T02:10", "2026-10-03T15:30Z"),
        (APIA, "2011-12-30", "2011-12-30T10:00Z"),
        (APIA, "2011-12-31", "2011-12-30T10:00Z"),
        (SAO_PAULO, "2017-10-15", "2017-10-15T03:00Z"),
        (HAVANA, "2026-11-01", "2026-11-01T04:00Z"),
        (CASABLANCA, "2025-02-23T02:30", "2025-02-23T01:30Z"),
        (BERLIN, "today", "2026-11-30T23:00Z"),
        (BERLIN, "Yesterday", "2026-11-29T23:00Z"),
        (BERLIN, "now-1day", "2026-11-30T00:00Z"),
    ],
)
def test_since_until_and_before_are_the_same_moments(zone: Zone, name: str, text: str, means: str) -> None:
    zone(name)
    assert shown(parse_since(text, at("2026-12-01T00:00+00:00"))) == means


@pytest.mark.parametrize(
    ("name", "now", "text", "means"),
    [
        (BERLIN, "2026-03-29T17:00+02:00", "16:00", "2026-03-29T14:00Z"),
        (BERLIN, "2026-03-29T15:00+02:00", "16:00", "2026-03-28T15:00Z"),  # not yet today: yesterday, before the jump
        (BERLIN, "2026-03-29T16:00+02:00", "16:00:00", "2026-03-29T14:00Z"),  # now
        (BERLIN, "2026-03-29T03:10+02:00", "2:30", "2026-03-29T01:00Z"),  # there is none: the first moment after the gap
        (BERLIN, "2026-10-25T02:40+02:00", "02:30", "2026-10-25T00:30Z"),  # there are two: the first one was the last
        (BERLIN, "2026-10-25T02:20+01:00", "02:30", "2026-10-25T00:30Z"),
        (BERLIN, "2026-10-25T02:40+01:00", "02:30", "2026-10-25T01:30Z"),
        (BERLIN, "2026-10-25T01:00+02:00", "02:30", "2026-10-24T00:30Z"),
        (APIA, "2011-12-31T08:00+14:00", "09:30", "2011-12-29T19:30Z"),  # of the 29th, which comes before the 31st
        (SAO_PAULO, "2017-10-15T12:00-02:00", "00:30", "2017-10-15T03:00Z"),
        (SAO_PAULO, "2018-02-17T23:10-03:00", "23:15", "2018-02-18T01:15Z"),
        (HAVANA, "2026-11-01T00:30-05:00", "00:00", "2026-11-01T05:00Z"),
        ("UTC", "2026-03-29T16:30+00:00", "16:00:30", "2026-03-29T16:00Z"),
        ("UTC", "2026-03-29T16:30+00:00", "16m", "2026-03-29T16:14Z"),
        ("UTC", "2026-03-29T16:30+00:00", "2h", "2026-03-29T14:30Z"),
        ("UTC", "2026-03-29T16:30+00:00", "1-02:00:00", "2026-03-28T14:30Z"),  # a day and two hours ago
    ],
)
def test_a_time_of_day_is_the_last_one_that_the_clock_showed(zone: Zone, name: str, now: str, text: str, means: str) -> None:
    zone(name)
    assert shown(parse_since(text, at(now))) == means


@pytest.mark.parametrize("text", ["25:00", "90:00", "100:00", "1:5", "24:00:00"])
def test_what_looks_like_a_time_of_day_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="no time of day") as caught:
        parse_since(text)
    assert "2h" in str(caught.value.hint)
    assert "16:00" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["now-16:00", "now-1:30:00", "1-99", "12-25", "1-24:00"])
def test_what_may_be_a_date_or_a_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither a duration nor a date or time of day") as caught:
        parse_since(text)
    assert "2026-11-30" in str(caught.value.hint)


def test_a_day_ago_is_24_hours_ago(zone: Zone) -> None:
    zone(BERLIN)
    assert shown(parse_since("1d", at("2026-10-25T12:00+01:00"))) == "2026-10-24T11:00Z"


@pytest.mark.parametrize("name", [LORD_HOWE, APIA, "UTC"])
@pytest.mark.parametrize(
    "text", ["12:60", "2026-02-30", "2026-13-01", "2026-03-29T25:00", "yesterdays", "", "-1h", "0001-01-01", "9999-12-31T23:59"]
)
def test_what_is_no_time_is_refused_in_every_zone(zone: Zone, name: str, text: str) -> None:
    zone(name)
    for read in (parse_begin, parse_since):
        if read is parse_since and text.startswith(("0001", "9999")):  # long ago, or far away: nothing ended there
            continue
        with pytest.raises(UsageError) as caught:
            read(text, at("2026-10-03T12:00+10:30"))
        assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "day", "begin", "end"),
    [
        (BERLIN, "2026-03-29", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
        (BERLIN, "2026-10-25", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
        (SAO_PAULO, "2017-10-15", "2017-10-15T03:00Z", "2017-10-16T02:00Z"),
        (HAVANA, "2026-11-01", "2026-11-01T04:00Z", "2026-11-02T05:00Z"),
        (APIA, "2011-12-29", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        (APIA, "2011-12-31", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
    ],
)
def test_days_of_a_report_are_those_of_the_wall_clock(zone: Zone, name: str, day: str, begin: str, end: str) -> None:
    zone(name)
    found = Days(None).around(round(at(begin)) * 1_000_000)
    assert (shown(found[0]), shown(found[1]), found[2]) == (begin, end, day)
