"""Finds numbers that stand for "never" or "none" where a moment of a clock belongs, by reading the source.

`time.monotonic()` begins at 0 when a machine boots, so a field that is 0.0 for "long ago" is in the future of a young machine's
decisions: it looks fresh. What a name holds is found from how it is used: assigned from a clock, compared with one, or
subtracted from one, followed through names, attributes, mappings, parameters and returns until nothing new is learned.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Calls that return a moment, and names that hold one wherever they stand.
CLOCKS = frozenset(
    {"boottime", "clock", "clock_gettime", "clock_gettime_ns", "monotonic", "monotonic_ns", "now", "now_ms", "now_ns", "now_s", "now_us"}
    | {"perf_counter", "time", "time_ns", "wall_us", "_clock", "_now", "_now_s", "_now_us"}
)
NOW = frozenset({"now", "now_s", "now_us", "now_ns"})
#: Of names that end so, being true is being a moment: `if self._due_s`. Others (`if end`) say too little.
_TIMED = re.compile(r"_(s|ms|us|ns|since|until|at)$")
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
#: Nodes that tell something; walking all of them each time takes three times as long.
_TELLING = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Compare, ast.Call, ast.Return, ast.FunctionDef, ast.AsyncFunctionDef)
_TELLING += (ast.Lambda, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.If, ast.While, ast.comprehension)
_LOOKUPS = ("get", "pop", "setdefault")

#: What holds a moment: ("attribute", name), ("name", function, name), ("returns", name), or ("item", index, *of one of these).
Place = tuple[object, ...]


def is_zero(node: ast.expr | None) -> bool:
    """0, 0.0, -0.0."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in {int, float} and node.value == 0


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A zero that stands for no moment. name: of the attribute, variable or mapping."""

    line: int
    name: str
    what: str


@dataclass(slots=True)
class Source:
    """One file. function: where each node stands. kept_as: names that values are given to. moments: what is known to hold one."""

    path: Path
    tree: ast.Module
    nodes: list[ast.AST] = field(default_factory=list)
    function: dict[ast.AST, ast.AST | None] = field(default_factory=dict)
    kept_as: dict[ast.expr, str] = field(default_factory=dict)
    moments: set[Place] = field(default_factory=set)

    @classmethod
    def of(cls, path: Path, text: str | None = None) -> Source:
        """Parses it. Raises: SyntaxError."""
        source = cls(path, ast.parse(path.read_text(encoding="utf-8") if text is None else text))
        source._place(source.tree, None)
        source.nodes = [node for node in ast.walk(source.tree) if isinstance(node, _TELLING)]
        return source

    def _place(self, node: ast.AST, function: ast.AST | None) -> None:
        for child in ast.iter_child_nodes(node):
            self.function[child] = function
            match child:
                case ast.keyword(arg=str(name), value=value):
                    self.kept_as[value] = name
                case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
                    self.kept_as[value] = name
            self._place(child, child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else function)

    # -- what holds a moment -------------------------------------------------------------------------------------------------

    def place(self, node: ast.expr) -> Place | None:
        """Where the value of this expression is kept, None for one that is kept nowhere."""
        match node:
            case ast.Attribute(attr=name):
                return ("attribute", name)
            case ast.Name(id=name):
                return ("name", self.function.get(node), name)
            case ast.Subscript(value=value, slice=ast.Name(id=index)) if index.isupper():  # a place of its own, as in a board of words
                return _item(self.place(value), index)
            case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault", value=value)):
                return _item(self.place(value), "")
        return None

    def holds(self, node: ast.expr) -> bool:
        """This expression is known to be a moment."""
        return self.place(node) in self.moments

    def is_moment(self, node: ast.expr) -> bool:
        """Its value is a moment, as far as is known."""
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in NOW:
                return True
            case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCKS:
                return True
            case ast.Call(func=ast.Name(id=name)) if name in CLOCKS - {"time"}:
                return True
            case ast.Call(func=ast.Name(id="int" | "float" | "round" | "min" | "max"), args=args):
                return any(self.is_moment(arg) for arg in args if not isinstance(arg, ast.Starred))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return ("returns", name) in self.moments or self.holds(node)
            case ast.NamedExpr(value=value):
                return self.is_moment(value)
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_moment(body) or self.is_moment(orelse)
            case ast.BoolOp(values=values):
                return any(self.is_moment(value) for value in values)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self.is_moment(left) or self.is_moment(right)
            case ast.BinOp(op=ast.Sub(), left=left, right=right):  # without a constant it may as well be the time between two moments
                return self.is_moment(left) and (isinstance(right, ast.Constant) or (isinstance(right, ast.Name) and right.id.isupper()))
            case ast.BinOp(op=ast.Mult() | ast.Div() | ast.FloorDiv(), left=left, right=ast.Constant()):
                return self.is_moment(left)
        return self.holds(node)

    def learn(self, shared: set[Place]) -> None:
        """Adds what follows from this file and from `shared`, until nothing new does. Cost: a few walks over the tree."""
        self.moments |= shared
        before = -1
        while before != len(self.moments):
            before = len(self.moments)
            for node in self.nodes:
                self._learn(node)

    def _add(self, *nodes: ast.expr) -> None:
        for node in nodes:
            place = self.place(node)
            if place is not None and not str(place[-1]).isupper():
                self.moments.add(place)

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Assign():
                for target, value in _assignments(node):
                    if self.is_moment(value):
                        self._add(target)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                if self.is_moment(value):
                    self._add(target)
            case ast.Compare(left=left, ops=ops, comparators=comparators) if all(isinstance(op, _ORDERS) for op in ops):
                sides = [left, *comparators]
                if any(self.is_moment(side) for side in sides):
                    self._add(*sides)
                for side in sides:  # a difference that is compared is a length of time, of two moments
                    match side:
                        case ast.BinOp(op=ast.Sub(), left=one, right=other) if self.is_moment(one) or self.is_moment(other):
                            self._add(one, other)
            case ast.Call(keywords=keywords):
                for keyword in keywords:
                    if keyword.arg not in {None, "default", "key", "maxlen"} and self.is_moment(keyword.value):
                        self.moments.add(("attribute", keyword.arg))
            case ast.Return(value=ast.expr() as value):
                function = self.function.get(node)
                if isinstance(function, ast.FunctionDef) and self.is_moment(value):
                    self.moments.add(("returns", function.name))

    # -- zeros ---------------------------------------------------------------------------------------------------------------

    def zeros(self) -> list[Found]:
        """Where 0 stands for no moment, or a moment for whether there is one; in the order of the lines."""
        return sorted({found for node in self.nodes for found in self._zeros(node)})

    def _zeros(self, node: ast.AST) -> Iterator[Found]:
        match node:
            case ast.Assign():
                for target, value in _assignments(node):
                    if is_zero(value) and self.holds(target):
                        yield self._found(target, "is set to 0")
            case ast.AnnAssign(target=target, value=value) if is_zero(value):
                if self.holds(target) or ("attribute", getattr(target, "id", None)) in self.moments:
                    yield self._found(target, "begins as 0")
            case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args) | ast.Lambda(args=args):
                for arg, default in _defaults(args):
                    if is_zero(default) and ("name", node, arg.arg) in self.moments:
                        yield Found(arg.lineno, arg.arg, "is 0 when it is not given")
            case ast.Compare(left=left, comparators=comparators):
                sides = [left, *comparators]
                for side in sides:
                    if self.holds(side) and any(is_zero(other) for other in sides):
                        yield self._found(side, "is compared with 0")
            case ast.Call(func=ast.Attribute(attr=name), args=[_, default]) if name in _LOOKUPS and is_zero(default) and self.holds(node):
                yield self._found(node, "is 0 where there is none")
            case ast.IfExp(body=body, orelse=orelse):
                for one, other in ((body, orelse), (orelse, body)):
                    if is_zero(one) and self.is_moment(other):
                        yield Found(node.lineno, self.kept_as.get(node) or _name(other), "is 0 otherwise")
            case ast.BoolOp(op=ast.Or(), values=values) if any(is_zero(value) for value in values):
                for value in values:
                    if self.is_moment(value):
                        yield Found(node.lineno, self.kept_as.get(node) or _name(value), "is 0 otherwise")
        for tested in _tested(node):
            if self.holds(tested) and _TIMED.search(_name(tested)):
                yield self._found(tested, "is none when it is 0")
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "default" and is_zero(keyword.value) and node.args and self.is_moment(_element(node.args[0])):
                    yield self._found(_element(node.args[0]), "is 0 where there is none")
                elif is_zero(keyword.value) and ("attribute", keyword.arg) in self.moments:
                    yield Found(keyword.value.lineno, str(keyword.arg), "is given as 0")

    def _found(self, node: ast.expr, what: str) -> Found:
        return Found(node.lineno, _name(node), what)


def _item(inner: Place | None, index: str) -> Place | None:
    return None if inner is None else ("item", index, *inner)


def _name(node: ast.expr) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault", value=value)):
            return _name(value)
    return ast.unparse(node)


def _assignments(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of each, also of `a, b = 0, 1`."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _defaults(args: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    placed = [*args.posonlyargs, *args.args]
    yield from zip(placed[len(placed) - len(args.defaults) :], args.defaults, strict=True)
    yield from ((arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is not None)


def _tested(node: ast.AST) -> Sequence[ast.expr]:
    """What is taken for true or false here."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return [test]
        case ast.BoolOp(values=values):
            return values
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.comprehension(ifs=ifs):
            return ifs
    return []


def _element(node: ast.expr) -> ast.expr:
    return node.elt if isinstance(node, ast.GeneratorExp | ast.ListComp) else node


def read(paths: Sequence[Path]) -> list[Source]:
    """Sources with all that is known of them together: a public attribute that is a moment in one file is one in all."""
    sources, shared = [Source.of(path) for path in paths], set[Place]()
    known: dict[int, int] = {}  # by source: how much of `shared` it has heard
    while any(known.get(id(source)) != len(shared) for source in sources):
        for source in sources:
            if known.get(id(source)) != len(shared):
                known[id(source)] = len(shared)
                source.learn(shared)
                shared |= {place for place in source.moments if place[0] == "attribute" and not str(place[1]).startswith("_")}
    return sources
