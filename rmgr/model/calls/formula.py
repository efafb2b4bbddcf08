"""Formulas over the sizes of a call: `2/3*n**3 + 2*n**2`. Parsed and computed here; nothing of Python's own is evaluated.

    sum     = product {("+" | "-") product}
    product = sign {("*" | "/" | "//" | "%") sign}
    sign    = {"-" | "+"} power
    power   = atom ["**" sign]
    atom    = number | size | function "(" sum {"," sum} ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rmgr.errors import UsageError

#: Bounds of a formula: characters, depth of brackets and signs, exponents.
MOST_CHARACTERS, MOST_DEPTH, MOST_EXPONENT = 200, 20, 8
#: No cost is larger: what is beyond is a mistake.
MOST = 10**24

_TOKEN = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|//|[-+*/%(),]))")
_FUNCTIONS: dict[str, tuple[int, Callable[..., float]]] = {  # least arguments; of min and max any number more
    "min": (2, min),
    "max": (2, max),
    "sqrt": (1, math.sqrt),
    "log2": (1, math.log2),
    "ceil": (1, math.ceil),
}
Number = int | float


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula. sizes: names that it needs."""

    text: str
    sizes: frozenset[str]
    _compute: Callable[[Mapping[str, Number]], Number]

    def value(self, sizes: Mapping[str, Number]) -> int:
        """Rounded up to a whole number. Raises: UsageError for a missing size, and a result that is no number from 0 to `MOST`."""
        missing = sorted(self.sizes - sizes.keys())
        if missing:
            raise UsageError(f"{self.text!r} needs {', '.join(missing)}", hint=f"--{missing[0]} NUMBER")
        try:
            found = self._compute(sizes)
            if 0 <= found <= MOST:
                return math.ceil(found)
        except (ArithmeticError, ValueError) as error:
            raise UsageError(f"{self.text!r} cannot be computed for {_shown(sizes)}: {error}") from None
        raise UsageError(f"{self.text!r} is {found:g} for {_shown(sizes)}: a number from 0 to 1e24 is needed")


def parse(text: str) -> Formula:
    """Reads a formula. Raises: UsageError that names the column (from 1)."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"a formula of {len(text)} characters: at most {MOST_CHARACTERS}")
    reader = _Reader(text, _tokens(text))
    compute = reader.sum(0)
    reader.end()
    return Formula(text, frozenset(reader.sizes), compute)


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            column = at + len(text[at:]) - len(text[at:].lstrip()) + 1
            raise UsageError(f"column {column} of {text!r}: {text[column - 1]!r} is not understood")
        kind = str(found.lastgroup)
        tokens.append(_Token(kind, found[kind], found.start(kind) + 1))
        at = found.end()
    return [*tokens, _Token("end", "its end", len(text) + 1)]


class _Reader:
    """Each method reads one rule of the grammar, and returns how its value is computed."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text, self._tokens, self._at = text, tokens, 0
        self.sizes: set[str] = set()

    def end(self) -> None:
        if self._tokens[self._at].kind != "end":
            self._refuse("an operator is needed before it")

    def sum(self, depth: int) -> Callable[[Mapping[str, Number]], Number]:
        left = self._product(depth)
        while (sign := self._next("+", "-")) is not None:
            left = _joined(sign, left, self._product(depth))
        return left

    def _product(self, depth: int) -> Callable[[Mapping[str, Number]], Number]:
        left = self._sign(depth)
        while (sign := self._next("*", "/", "//", "%")) is not None:
            left = _joined(sign, left, self._sign(depth))
        return left

    def _sign(self, depth: int) -> Callable[[Mapping[str, Number]], Number]:
        if depth > MOST_DEPTH:
            self._refuse(f"it is nested deeper than {MOST_DEPTH}")
        sign = self._next("-", "+")
        if sign is None:
            return self._power(depth)
        inner = self._sign(depth + 1)
        return (lambda sizes: -inner(sizes)) if sign == "-" else inner

    def _power(self, depth: int) -> Callable[[Mapping[str, Number]], Number]:
        base = self._atom(depth)
        return base if self._next("**") is None else _joined("**", base, self._sign(depth + 1))

    def _atom(self, depth: int) -> Callable[[Mapping[str, Number]], Number]:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        if token.kind == "number":
            number: Number = int(token.text) if token.text.isdigit() else float(token.text)
            return lambda _: number
        if token.kind == "name" and token.text in _FUNCTIONS:
            return self._call(token, depth)
        if token.kind == "name":
            self.sizes.add(token.text)
            name = token.text
            return lambda sizes: sizes[name]
        if token.text == "(":
            inner = self.sum(depth + 1)
            self._must(")")
            return inner
        self._at -= token.kind != "end"
        self._refuse("a number, a size or '(' is needed")
        raise AssertionError

    def _call(self, token: _Token, depth: int) -> Callable[[Mapping[str, Number]], Number]:
        least, function = _FUNCTIONS[token.text]
        self._must("(")
        arguments = [self.sum(depth + 1)]
        while self._next(",") is not None:
            arguments.append(self.sum(depth + 1))
        if len(arguments) < least or (least == 1 and len(arguments) > 1):
            self._at -= 1
            self._refuse(f"{token.text} takes {least} argument{'s or more' if least > 1 else ''}")
        self._must(")")
        return lambda sizes: function(*(argument(sizes) for argument in arguments))

    def _next(self, *texts: str) -> str | None:
        token = self._tokens[self._at]
        if token.kind == "sign" and token.text in texts:
            self._at += 1
            return token.text
        return None

    def _must(self, text: str) -> None:
        if self._next(text) is None:
            self._refuse(f"{text!r} is needed")

    def _refuse(self, why: str) -> None:
        token = self._tokens[self._at]
        raise UsageError(f"column {token.column} of {self._text!r}, at {token.text}: {why}")


def _joined(
    sign: str, left: Callable[[Mapping[str, Number]], Number], right: Callable[[Mapping[str, Number]], Number]
) -> Callable[[Mapping[str, Number]], Number]:
    def compute(sizes: Mapping[str, Number]) -> Number:
        one, other = left(sizes), right(sizes)
        match sign:
            case "+":
                return one + other
            case "-":
                return one - other
            case "*":
                return one * other
            case "/":
                return one / other
            case "//":
                return one // other
            case "%":
                return one % other
        if abs(other) > MOST_EXPONENT:
            raise ValueError(f"an exponent of {other:g}: at most {MOST_EXPONENT}")
        if abs(one) > MOST:
            raise ValueError(f"the base {one:g} is too large")
        power = one**other
        if isinstance(power, complex):
            raise ValueError(f"{one:g} ** {other:g} is no real number")  # noqa: TRY004 - a value that cannot be, not a wrong type
        return power

    return compute


def _shown(sizes: Mapping[str, Number]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(sizes.items())) or "no sizes"
