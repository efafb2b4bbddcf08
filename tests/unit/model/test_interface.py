"""Interfaces of functions: meaning, errors and choice among several; formulas of cost without Python's eval."""

from __future__ import annotations

import math
from random import Random

import pytest

from rmgr.errors import ConfigError, NotFound, UsageError
from rmgr.model.interface import (
    ExpressionError,
    Interface,
    encode_interface,
    function_line,
    interface_of,
    named,
    offers,
    parse,
    read_functions,
)

SOLVERS = """\
[[function]]
name = "linsolve"
call = "solvers:linsolve"
arguments = ["in A float64[n,n]", "in b float64[n]", "out x float64[n]"]
operations = "2/3*n**3 + 2*n**2"
idempotent = true
time = "10m"
memory = "2G"
users = ["ana"]

[[function]]
name = "scale"
version = 3
call = "pkg.mod:scale"
arguments = [
    "in k int", "inout b float32[2*k, m]",
    "in text str", "out y complex128[]"]
operations = 7
bytes = "8*k"
"""


def changed(old: str, new: str) -> str:
    assert SOLVERS.count(old) >= 1
    return SOLVERS.replace(old, new, 1)


def table(**fields: object) -> dict[str, object]:
    return {"name": "f", "arguments": ["in A float64[n]"], "operations": "n", **fields}


def test_a_file_of_functions() -> None:
    linsolve, scale = read_functions(SOLVERS, "solvers.toml")
    assert (linsolve.call, linsolve.time_us, linsolve.memory_bytes, linsolve.users) == ("solvers:linsolve", 600_000_000, 2 << 30, ("ana",))
    assert (linsolve.interface.key, scale.interface.key, scale.interface.idempotent, scale.users) == ("linsolve@1", "scale@3", False, ())
    assert [str(one) for one in scale.interface.outputs] == ["inout b float32[2*k,m]", "out y complex128[]"]
    assert (linsolve.interface.sizes, scale.interface.sizes) == (("n",), ("k", "m"))


def test_the_line_of_a_function() -> None:
    (linsolve, _) = read_functions(SOLVERS, "f")
    assert function_line(linsolve.interface, ["s1", "s2"]) == (
        "linsolve 1  in A float64[n,n], in b float64[n], out x float64[n]  2/3*n**3 + 2*n**2 operations  idempotent  s1 s2"
    )


def test_costs_come_from_formulas_and_shapes() -> None:
    linsolve, scale = (one.interface for one in read_functions(SOLVERS, "f"))
    assert linsolve.cost({"n": 600}) == (144_720_000, 8 * (600 * 600 + 600 + 600))
    assert scale.cost({"k": 5, "m": 2}, lengths=100) == (7, 40)
    inout = interface_of(table(arguments=["inout b float32[n]", "in s str", "in k int"]), "x")
    assert inout.cost({"n": 3, "k": 9}, lengths=5) == (3, 2 * 12 + 5 + 8)
    with pytest.raises(UsageError, match="linsolve@1 needs the size n"):
        linsolve.cost({})
    with pytest.raises(UsageError, match="a cost cannot be above 1e18"):
        interface_of(table(arguments=["in A float64[n,n]"]), "x").cost({"n": 10**17})


def test_a_table_travels_and_its_digest_is_that_of_its_meaning() -> None:
    linsolve, scale = (one.interface for one in read_functions(SOLVERS, "f"))
    for one in (linsolve, scale):
        assert interface_of(one.table(), "server s1") == one
    spaced = read_functions(changed("2/3*n**3 + 2*n**2", " 2/3 * n ** 3+2*n**2"), "f")[0].interface
    odd = read_functions(changed("in b float64[n]", "in b float32[n]"), "f")[0].interface
    assert (spaced.digest == linsolve.digest, odd.digest == linsolve.digest, odd.key) == (True, False, linsolve.key)


def test_of_several_interfaces_that_of_most_servers_counts_and_of_equals_that_of_the_first() -> None:
    one, two, other = (encode_interface(interface_of(table(arguments=[f"in {name} float64[n]"]), "x")) for name in "abc")
    found = offers([("s1", [other, other, other]), ("s2", [two]), ("s3", [one]), ("s4", [one, b"no interface"])])
    told = [(interface.inputs[0].name, servers) for interface, servers in found["f@1"]]
    assert told == [("a", ["s3", "s4"]), ("c", ["s1"]), ("b", ["s2"])]
    assert list(found) == ["f@1"]
    assert offers([("s1", [two]), ("s2", [one])])["f@1"][0][1] == ["s1"]


def test_the_highest_version_counts_unless_one_is_named() -> None:
    old, new = (interface_of(table(version=version), "x") for version in (2, 10))
    known = [new, old]
    assert (named("f", known), named("f@2", known), named("f@10", known)) == (new, old, new)
    for wrong, meant in (("f@3", "did you mean f@2"), ("linsovle", "did you mean linsolve"), ("zzz", "'zzz'")):
        with pytest.raises(NotFound, match=meant):
            named(wrong, [*known, read_functions(SOLVERS, "f")[0].interface])


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "why"),
    [
        ("out x float64[n]", "out x float64[q]", 4, 69, "nothing binds the size q"),
        ("2/3*n**3", "2/3*p**3", 5, 19, "nothing binds the size p"),
        ("2/3*n**3", "2/3*n.n", 5, 19, "n.n is not allowed"),
        ("in b float64[n]", "in b float65[n]", 4, 41, "float65 is no type of b"),
        ("in b float64[n]", "b float64[n]", 4, 36, "'b float64[n]' is no argument"),
        ("in b float64[n]", "in A float64[n]", 4, 1, "two arguments are called A"),
        ('name = "linsolve"', 'name = "lin solve"', 2, 9, "cannot be the name of a function"),
        ('call = "solvers:linsolve"', 'call = "solvers.linsolve"', 3, 9, "call is 'solvers.linsolve'"),
        ("idempotent = true", "idempotent = 1", 6, 1, "idempotent is 1"),
        ("idempotent = true", "idempotentt = true", 6, 1, "a function has no 'idempotentt'"),
        ('time = "10m"', 'time = "10x"', 7, 9, "'10x' is not a duration"),
        ('memory = "2G"', "memory = true", 8, 1, "memory is True"),
        ("version = 3", "version = 0", 13, 1, "version is 0"),
        ('"in k int", "inout b float32[2*k, m]"', '"in k int", "inout b float32[2*k, k.m]"', 16, 39, "k.m is not allowed"),
        ('name = "scale"', 'name = "linsolve"', 13, 1, ""),
        ('"out y complex128[]"', '"out y complex128"', 17, 27, "complex128 is no array without its shape"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_column(old: str, new: str, line: int, column: int, why: str) -> None:
    text = changed(old, new)
    if not why:
        text = text.replace("version = 3", "version = 1")
        why = "linsolve@1 is there twice"
    with pytest.raises(ConfigError) as caught:
        read_functions(text, "solvers.toml")
    assert caught.value.message.startswith(f"solvers.toml, line {line}, column {column}: ")
    assert why in caught.value.message


#: 60 arguments of two large dimensions.
LARGE = ",".join(f"'in {'x' * 50}{at} float64[n,{'1+' * 90}1,{'1+' * 90}1]'" for at in range(60))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = [", "is no TOML: "),
        ("a = " + "[" * 100_000, "is no TOML: "),
        ("a = 1" + "0" * 10_000, "is no TOML: "),
        ("[[function]]\nname='f'\nversion=1" + "0" * 1000, "version is 10"),
        ("[[function]]\nname='f'\noperations=1" + "0" * 300, "operations is 10"),
        ("[[function]]\nname='f'\noperations='" + "(" * 199 + "'", "operations: "),
        ("[[function]]\nname='f'\ncall='m:f'\narguments=[" + LARGE + "]", "the interface of f has"),
        ("".join(f"[[function]]\nname='{'f' * 50}{at}'\ncall='m:f'\noperations='{'1+' * 90}1'\n" for at in range(900)), "are the most"),
        ("", "has no \\[\\[function\\]\\] tables"),
        ("function = 3", "has no \\[\\[function\\]\\] tables"),
        ("function = [3]", "line 1, column 1: a table is expected"),
        ("[function]\nname='f'", "has no \\[\\[function\\]\\] tables"),
        ("[[functions]]", "nothing is called 'functions' here"),
        ("[[function]]\nname='f'\narguments=3", "line 3, column 1: arguments is a list"),
        ("[[function]]\nname='f'\narguments=['in A float64[" + ",".join("n" * 9) + "]']", "more than 8 dimensions"),
    ],
)
def test_what_is_no_file_of_functions(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_functions(text, "f.toml")


def test_a_peer_sends_no_more_than_an_interface() -> None:
    for wrong in (table(call="os:system"), table(arguments=["in A float64[n]"] * 65), [], table(operations="1" * 300), table(version=True)):
        with pytest.raises(ConfigError, match=r"^server s1: "):
            interface_of(wrong, "server s1")
    assert isinstance(interface_of({"name": "f"}, "x"), Interface)


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
