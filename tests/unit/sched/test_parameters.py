"""Parameters as data: the input of each kind, its errors, and the parameters of the catalogue's policies."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import ClassVar

import pytest

from rmgr.errors import ConfigError
from rmgr.sched.catalogue import POLICIES, built, policy_named
from rmgr.sched.parameters import about, parameters_of, read_values
from rmgr.sched.policies.orders import Ageing, Fcfs, Sjf
from rmgr.sched.policies.searches import Easy
from rmgr.sched.policy import Order

HOUR_US = 3_600_000_000


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, kw_only=True)
class Everything:
    name: ClassVar[str] = "everything"
    wait_us: int = field(default=HOUR_US, metadata=about("how long", least=1_000_000, most=10 * HOUR_US))
    memory_bytes: int = 0
    cores: int = field(default=2, metadata=about("cores kept free", unit="cores", least=0, most=8))
    factor: float = field(default=1.5, metadata=about("a factor", least=0))
    exact: Fraction = Fraction(1)
    eager: bool = False
    colour: Colour = Colour.RED
    site: str = ""
    sites: tuple[str, ...] = ()
    shares: tuple[tuple[str, int], ...] = ()
    most: int | None = None
    order: Order = field(default_factory=Sjf)


PARAMETERS = [p for p in parameters_of(Everything) if p.name != "order"]


@pytest.mark.parametrize(
    ("key", "given", "held"),
    [
        ("wait", "2h", {"wait_us": 2 * HOUR_US}),
        ("wait", 90, {"wait_us": 90_000_000}),
        ("wait", 0.5 + 1, {"wait_us": 1_500_000}),
        ("memory", "2G", {"memory_bytes": 2 << 30}),
        ("cores", "8", {"cores": 8}),
        ("cores", 3, {"cores": 3}),
        ("factor", "2", {"factor": 2.0}),
        ("exact", "1.1", {"exact": Fraction(11, 10)}),
        ("exact", "2/3", {"exact": Fraction(2, 3)}),
        ("exact", 2, {"exact": Fraction(2)}),
        ("eager", "Yes", {"eager": True}),
        ("eager", False, {"eager": False}),
        ("colour", "green", {"colour": Colour.GREEN}),
        ("sites", "a, b", {"sites": ("a", "b")}),
        ("sites", ["a", "b"], {"sites": ("a", "b")}),
        ("shares", "physics:3,chemistry/ann:1", {"shares": (("chemistry/ann", 1), ("physics", 3))}),
        ("shares", {"physics": 3}, {"shares": (("physics", 3),)}),
        ("most", "none", {"most": None}),
        ("most", "5", {"most": 5}),
    ],
)
def test_a_value_is_read_from_text_and_from_toml(key: str, given: object, held: dict[str, object]) -> None:
    assert read_values("everything", PARAMETERS, {key: given}) == held


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("wait", "soon", "wait of everything is 'soon': 'soon' is not a duration"),
        ("wait", "11h", "wait of everything is '11h': it must be from 1s to 10h"),
        ("wait", 0, "wait of everything is 0: it must be from 1s to 10h"),
        ("wait", -1, "from 1s to 10h"),
        ("wait", True, "a duration is expected"),
        ("wait", float("nan"), "a duration is expected"),
        ("cores", float("inf"), "a whole number is expected"),
        ("cores", "9", "cores of everything is '9': it must be from 0 to 8 cores"),
        ("cores", "two", "a whole number is expected, from 0 to 8 cores"),
        ("cores", 1.5, "a whole number is expected"),
        ("factor", "-0.1", "it must be at least 0"),
        ("factor", "nan", "a number is expected"),
        ("eager", "maybe", "yes or no is expected"),
        ("colour", "gren", "it is none of red, green; did you mean green"),
        ("shares", "physics:0", "it must be at least 1"),
        ("shares", "physics", "shares are expected, as physics:3"),
        ("shares", {"physics": 1.5}, "shares are expected"),
        ("sites", [1], "names are expected"),
        ("cores", "+-5", "a whole number is expected"),
        ("cores", "9" * 5000, "a whole number is expected"),
        ("cores", 10**400, "a whole number is expected"),
        ("cores", 1 << 100_000, "cores of everything is a number of 100001 bits"),
        ("most", 1 << 80, "a whole number is expected"),
        ("memory", 10**400, "a size is expected"),
        ("memory", 1 << 70, "a size is expected"),
        ("wait", 10**400, "a duration is expected"),
        ("factor", 10**400, "a number is expected"),
        ("factor", "1e999", "a number is expected"),
        ("exact", "1e1000000000", "a number is expected"),
        ("exact", "1e-1000000000", "a number is expected"),
        ("exact", 10**400, "a number is expected"),
        ("exact", "1/0", "a number is expected"),
        ("shares", "physics:" + "9" * 5000, "shares are expected"),
        ("corse", "1", "no parameter of everything is called 'corse'; did you mean cores"),
        ("wait_us", "1", "did you mean wait"),
    ],
    ids=lambda value: str(value if not isinstance(value, int) or abs(value) < 1 << 80 else "huge")[:30],
)
def test_an_error_names_key_value_unit_range_and_the_nearest(key: str, given: object, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_values("everything", PARAMETERS, {key: given})
    assert said in error.value.message


def test_any_order_composes_with_any_search_and_ageing_with_any_order() -> None:
    for search in ("head_blocking", "first_fit", "easy", "conservative"):
        for order in ("fcfs", "sjf", "ljf", "priority"):
            policy = policy_named("easy", {"search": search, "order": order, "max_wait": "1h"})
            assert policy.name == search
            assert policy.order == Ageing(max_wait_us=HOUR_US, base=policy_named("easy", {"order": order}).order)  # type: ignore[attr-defined]
    assert policy_named("sjf", {"search": "easy"}) == Easy(order=Sjf())
    assert policy_named("easy") == Easy(order=Fcfs())


@pytest.mark.parametrize("given", ["0", 0, "-5", "soon"])
def test_a_wait_for_ageing_is_above_zero(given: object) -> None:
    with pytest.raises(ConfigError, match="max_wait of sjf"):
        policy_named("sjf", {"max_wait": given})


def test_a_policy_of_ones_own_with_an_order_takes_every_order() -> None:
    assert built(Everything, {}, name="mine").order == Sjf()  # type: ignore[attr-defined]
    made = built(Everything, {"order": "fcfs", "max_wait": "2h", "cores": "4"}, name="mine")
    assert made == Everything(order=Ageing(max_wait_us=2 * HOUR_US, base=Fcfs()), cores=4)
    with pytest.raises(ConfigError, match="no parameter of mine is called 'search'"):
        built(Everything, {"search": "easy"}, name="mine")


@pytest.mark.parametrize("name", POLICIES)
def test_each_entry_lists_parameters_whose_defaults_make_it(name: str) -> None:
    entry = POLICIES[name]
    assert entry.summary
    assert len(entry.summary) <= 120
    for parameter in entry.parameters:
        told = parameter.described()
        assert json.loads(json.dumps(told)) == told
        assert parameter.what, f"{name}: {parameter.name} says nothing"
