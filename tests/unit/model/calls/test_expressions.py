"""Formulas of cost: Python's meaning, within bounds, without Python's eval."""

from __future__ import annotations

import math
from random import Random

import pytest

from rmgr.errors import UsageError
from rmgr.model.calls.interface import ExpressionError, parse

PLAIN = {"min": min, "max": max, "sqrt": math.sqrt, "log2": math.log2, "ceil": math.ceil, "__builtins__": {}}


def test_linpack_costs_what_the_paper_says() -> None:
    assert parse("2/3*n**3 + 2*n**2").cost({"n": 600}) == 144_720_000
    assert parse("8*n**2 + 20*n").cost({"n": 600}) == 2_892_000


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2*3", "2**3**1", "-2**2", "2**-1", "10 - 3 - 2", "7//2*2", "7 % 4 / 2", "-(n + m)", "min(n, m, 3)", "max(n, m)", "sqrt(n)",
        "log2(m + 1)", "ceil(n / m)", "1e3*n", ".5*n", "1_000 + n", "+n", "2*-n + 8e5", "n**.5", "(((n)))",
    ],
)  # fmt: skip
def test_it_means_what_it_means_in_python(text: str) -> None:
    random = Random(1)
    for _ in range(20):
        sizes = {"n": random.randrange(1, 1000), "m": random.choice((random.randrange(1, 50), random.random() + 0.1))}
        assert parse(text).value(sizes) == eval(text, dict(PLAIN), sizes)


def test_random_formulas_are_those_of_python() -> None:
    random = Random(7)

    def made(depth: int) -> str:
        kind = random.randrange(7) if depth else random.randrange(2)
        if kind < 2:
            return random.choice(("n", "m", "3", "0.5", "12"))
        if kind == 2:
            return f"({made(depth - 1)})"
        if kind == 3:
            return f"{random.choice(('min', 'max'))}({made(depth - 1)}, {made(depth - 1)})"
        if kind == 4:
            return f"-{made(depth - 1)}"
        return f"{made(depth - 1)}{random.choice(('+', ' - ', '*', ' / ', '//', '%'))}{made(depth - 1)}"

    compared = 0
    for _ in range(500):
        text, sizes = made(4), {"n": random.randrange(1, 99), "m": random.random()}
        if len(text) > 200:
            continue
        try:
            wanted = eval(text, dict(PLAIN), sizes)
        except ArithmeticError:
            with pytest.raises(UsageError):
                parse(text).value(sizes)
            continue
        assert parse(text).value(sizes) == wanted
        assert parse(parse(text).text).value(sizes) == wanted
        compared += 1
    assert compared > 300


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("1 + n.real", 5, "n.real is not allowed"),
        ("n[0]", 1, "n[0] is not allowed"),
        (" (n", 2, "'(' was never closed"),
        (" 1 + open(n)", 6, "open(n) is not allowed"),
        ("sqrt", 1, "sqrt is not allowed"),
        ("1 + sqrt(n, m)", 5, "sqrt takes 1, not 2"),
        ("min(n)", 1, "min takes 2 to 8, not 1"),
        ("min(*n)", 1, "min takes 2 to 8, not 1"),
        ("sqrt(*n)", 6, "*n is not allowed"),
        ("max(n, m, key=n)", 1, "is not allowed"),
        ("n + é", 5, "'é' means nothing here"),
        ("n\n+ 1", 2, "means nothing here"),
        ("n if n else 1", 1, "is not allowed"),
        ("(n := 1)", 2, "is not allowed"),
        ("lambda: 1", 1, "is not allowed"),
        ("'a'*n", 1, "'a' is not allowed"),
        ("True + 1j", 1, "True is not allowed"),
        ("n @ n", 1, "is not allowed"),
        ("~n", 1, "~n is not allowed"),
        ("2*9e99", 3, "a number is at most 1e36"),
        ("2*1e999", 3, "a number is at most 1e36"),
        ("2**" * 22 + "n", 61, "at most 20 deep"),
        ("-" * 30 + "n", 22, "at most 20 deep"),
        ("1+" * 100 + "1", 201, "at most 200 characters"),
    ],
)
def test_what_does_not_parse_names_its_column(text: str, column: int, why: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.column == column
    assert why in caught.value.message


@pytest.mark.parametrize("text", ["", " ", "2*", " 2 n", "n +* 2", ")", "1__0", "(" * 199 + "n", "2 = n", "import os", "n; n"])
def test_what_is_no_python_names_a_column_too(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert 1 <= caught.value.column <= len(text) + 2


@pytest.mark.parametrize(
    ("text", "sizes", "why"),
    [
        ("n - 5", {"n": 4}, "cannot be negative"),
        ("n**4", {"n": 10**5}, "cannot be above 1e18"),
        ("n**9", {"n": 2}, "an exponent of 9, 8 is the largest"),
        ("2**n", {"n": 10**9}, "8 is the largest"),
        ("((((n**8)**8)**8)**8)**8", {"n": 10**15}, "too large"),
        ("1/n", {"n": 0}, "division by zero"),
        ("n", {"n": math.nan}, "no number"),
        ("n", {"n": math.inf}, "too large"),
        ("sqrt(n)", {"n": -1}, "has no value with n = -1"),
        ("log2(n)", {"n": 0}, "has no value with n = 0"),
        ("(0 - n)**.5", {"n": 2}, "no real number"),
    ],
)
def test_a_cost_is_a_number_that_servers_can_have(text: str, sizes: dict[str, float], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text).cost(sizes)
    assert why in caught.value.message


def test_the_same_formula_has_the_same_text() -> None:
    assert parse(" 2/3 * n**3+2 *n ** 2 ").text == parse("2/3*n**3 + 2*n**2").text == "2/3*n**3 + 2*n**2"
    assert parse("min( n,-m ) -1").text == "min(n, -m) - 1"
    assert parse("b*a + a").names == ("a", "b")
