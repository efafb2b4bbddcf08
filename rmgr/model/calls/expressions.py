"""Formulas of what a call costs: `2/3*n**3 + 2*n**2`. Python's grammar reads them, nothing evaluates them but what stands here.

Numbers, sizes by name, `+ - * / // % **`, signs, parentheses, min max sqrt log2 ceil, with Python's meaning. Whoever offers a function
writes them, and clients and gateways compute them: length, depth, exponents and every value on the way are bounded.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rmgr.errors import UsageError

MOST_CHARACTERS, DEEPEST, LARGEST_EXPONENT = 200, 20, 8
#: The largest cost; and the largest value on the way to it.
LARGEST, LARGEST_ON_THE_WAY = 10**18, 10**36

Number: TypeAlias = int | float
#: A number, a name, or what is done with others.
_Tree: TypeAlias = "int | float | str | tuple[str, tuple[_Tree, ...]]"

_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {  # how many arguments, at least and at most
    "min": (min, 2, 8), "max": (max, 2, 8), "sqrt": (math.sqrt, 1, 1), "log2": (math.log2, 1, 1), "ceil": (math.ceil, 1, 1),
}  # fmt: skip
_OPERATORS: dict[str, Callable[[Number, Number], Number]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv, "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
}  # fmt: skip


class ExpressionError(UsageError):
    """What does not parse. column: where, from 1."""

    def __init__(self, text: str, column: int, why: str) -> None:
        super().__init__(f"{text!r:.80}, column {column}: {why}", hint="numbers, sizes, + - * / // % **, min max sqrt log2 ceil")
        self.column = column


@dataclass(frozen=True, slots=True)
class Expression:
    """text: spaced and bracketed in one way, the same for the same formula. names: sizes it needs, ascending."""

    text: str
    names: tuple[str, ...]
    _tree: _Tree

    def value(self, sizes: Mapping[str, Number]) -> Number:
        """Raises: UsageError where it is no finite number, an exponent is above 8, or a value above 1e36. KeyError for a missing size."""
        try:
            return _value(self._tree, sizes)
        except (ArithmeticError, ValueError) as error:
            raise UsageError(f"{self.text} has no value with {_told(sizes, self.names)}: {error}") from None

    def cost(self, sizes: Mapping[str, Number]) -> int:
        """The value rounded to a whole number. Raises: as `value`; UsageError below 0 and above 1e18."""
        value = self.value(sizes)
        if not 0 <= value <= LARGEST:
            what = "negative" if value < 0 else "above 1e18"
            raise UsageError(f"{self.text} is {value:g} with {_told(sizes, self.names)}: a cost cannot be {what}")
        return round(value)


def parse(text: str) -> Expression:
    """Raises: ExpressionError, which names the column. Cost: O(length)."""
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(text, MOST_CHARACTERS + 1, f"an expression has at most {MOST_CHARACTERS} characters")
    strange = next((at for at, sign in enumerate(text) if not (sign == " " or "!" <= sign <= "~")), None)
    if strange is not None:
        raise ExpressionError(text, strange + 1, f"{text[strange]!r} means nothing here")
    try:
        parsed = ast.parse(text.lstrip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(text, (error.offset or 1) + len(text) - len(text.lstrip()), error.msg) from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(text, 1, "it cannot be read") from None
    names: set[str] = set()
    tree = _checked(parsed, text, names, 0)
    return Expression(re.sub(r" (\*\*|//|[*/%]) ", r"\1", ast.unparse(parsed)), tuple(sorted(names)), tree)


def _checked(node: ast.expr, text: str, names: set[str], depth: int) -> _Tree:
    """The node as a tree of what is allowed. depth: of brackets, signs and powers; a chain of sums is flat."""

    def error(why: str) -> ExpressionError:
        return ExpressionError(text, node.col_offset + 1 + len(text) - len(text.lstrip()), why)

    if depth > DEEPEST:
        raise error(f"an expression is at most {DEEPEST} deep")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if not value <= LARGEST_ON_THE_WAY:
                raise error("a number is at most 1e36")
            return value
        case ast.Name(id=name) if name not in _FUNCTIONS:
            names.add(name)
            return name
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            inner = _checked(operand, text, names, depth + 1)
            return ("Sub" if isinstance(sign, ast.USub) else "Add", (0, inner))
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, ast.Pow) or type(op).__name__ in _OPERATORS:
            deeper = depth + isinstance(op, ast.Pow)
            return (type(op).__name__, (_checked(left, text, names, deeper), _checked(right, text, names, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            _, least, most = _FUNCTIONS[name]
            if not least <= len(args) <= most:
                raise error(f"{name} takes {least if least == most else f'{least} to {most}'}, not {len(args)}")
            return (name, tuple(_checked(part, text, names, depth + 1) for part in args))
        case _:
            raise error(f"{ast.unparse(node)[:40]} is not allowed")


def _value(tree: _Tree, sizes: Mapping[str, Number]) -> Number:
    if isinstance(tree, str):
        return _bounded(sizes[tree])
    if not isinstance(tree, tuple):
        return tree
    name, parts = tree
    values = [_value(part, sizes) for part in parts]
    if name in _FUNCTIONS:
        return _bounded(_FUNCTIONS[name][0](*values))
    left, right = values
    return _bounded(_power(left, right) if name == "Pow" else _OPERATORS[name](left, right))


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > LARGEST_EXPONENT:
        raise ValueError(f"an exponent of {exponent:g}, {LARGEST_EXPONENT} is the largest")
    power = base**exponent
    if isinstance(power, complex):
        raise ValueError(f"{base:g} ** {exponent:g} is no real number")  # noqa: TRY004 - as of sqrt(-1)
    return power


def _bounded(value: Number) -> Number:
    if not abs(value) <= LARGEST_ON_THE_WAY:  # NaN neither
        raise ValueError("it is too large, or no number")
    return value


def _told(sizes: Mapping[str, Number], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} = {sizes[name]}" for name in names if name in sizes) or "nothing"
