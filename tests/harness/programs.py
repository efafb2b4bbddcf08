"""Small programs as users write them. `pool()` is `ProcessPoolExecutor` at home, and `rmgr.Executor` here; both must print the same."""

from __future__ import annotations

PROGRAMS = {
    "initializer": """
        import os
        connection = None
        def connect(to):
            global connection
            connection = to
        def ask(n):
            return connection, n
        if __name__ == "__main__":
            with pool(initializer=connect, initargs=(42,)) as executor:
                print(list(executor.map(ask, range(24))))
    """,
    "initializer that makes a name": """
        def begin():
            global model
            model = {"weights": [1, 2]}
        def use(n):
            return model["weights"][n % 2]
        if __name__ == "__main__":
            with pool(initializer=begin) as executor:
                print(list(executor.map(use, range(6))))
    """,
    "lru_cache": """
        import functools
        @functools.lru_cache(maxsize=None)
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        def both(n):
            return fib(n), fib.cache_info().maxsize
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(both, range(30))), list(executor.map(fib, range(5))))
    """,
    "class attributes": """
        class Model:
            scale = 0
            def __init__(self, n):
                self.n = n
            def scaled(self):
                return self.n * self.scale
        def make(n):
            return Model(n)
        if __name__ == "__main__":
            with pool() as executor:
                future = executor.submit(make, 3)
                Model.scale = 7
                made = future.result()
                print(made.n, made.scaled(), Model.scale, type(made) is Model)
    """,
    "pool in a call": """
        from concurrent.futures import ProcessPoolExecutor
        import multiprocessing
        def square(n):
            return n * n
        def many(n):
            with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as inner:
                return sum(inner.map(square, range(n)))
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(many, [3, 5])))
    """,
    "wrappers": """
        import contextlib, enum, functools, operator, typing, abc, collections, dataclasses
        factor = 3
        def traced(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function.__name__, function(*args, **kwargs)
            return wrapper
        @traced
        def times(n):
            "docs"
            return n * factor
        @functools.singledispatch
        def kind(x):
            return "object"
        @kind.register
        def _(x: int):
            return "int"
        @kind.register(list)
        def _list(x):
            return "list " + kind(x[0])
        @dataclasses.dataclass(frozen=True, order=True)
        class Point:
            x: int
            y: int = 1
            tags: list = dataclasses.field(default_factory=list, compare=False)
            def moved(self, by):
                return dataclasses.replace(self, x=self.x + by)
        class Color(enum.Enum):
            RED = 1
            GREEN = 2
            @property
            def other(self):
                return Color.GREEN if self is Color.RED else Color.RED
        class Flags(enum.IntFlag):
            A = 1
            B = 2
        Pair = collections.namedtuple("Pair", "left right")
        class Named(typing.NamedTuple):
            a: int
            b: str = "b"
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            def __init__(self, inside: T):
                self.inside = inside
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
            @classmethod
            def make(cls, n):
                return cls(n)
            @staticmethod
            def unit():
                return factor
        class Square(Shape):
            __slots__ = ("side",)
            def __init__(self, side):
                self.side = side
            def area(self):
                return self.side ** 2
            def __eq__(self, other):
                return type(self) is type(other) and self.side == other.side
            def __hash__(self):
                return hash(self.side)
        class Lazy:
            @functools.cached_property
            def value(self):
                return factor * 2
        @contextlib.contextmanager
        def opened(n):
            yield n + factor
        class Callable_:
            def __init__(self, function):
                functools.update_wrapper(self, function)
                self.function = function
            def __call__(self, n):
                return self.function(n)
        @Callable_
        def decorated(n):
            return n + 100
        def use(n):
            with opened(n) as inside:
                return inside, times(n), kind(n), kind([n]), Lazy().value, decorated(n)
        def give(n):
            return Point(n), Color.RED, Flags.A | Flags.B, Pair(n, n), Named(n), Square(n)
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(times, 2).result(), times.__doc__)
                print(executor.submit(functools.partial(operator.add, 1), 2).result())
                print(executor.submit(functools.partial(times), 2).result())
                print(executor.submit(Square.make, 4).result().area(), executor.submit(Square(5).area).result())
                print(executor.submit(Square.unit).result(), executor.submit(kind, 1).result(), executor.submit(kind, "x").result())
                print(executor.submit(use, 1).result())
                point, color, flags, pair, named, square = executor.submit(give, 2).result()
                print(point == Point(2), point.moved(1), type(point) is Point, color is Color.RED, color.other, flags == 3)
                print(isinstance(pair, Pair), pair, type(named) is Named, named, square == Square(2), {square: 1}[Square(2)])
                print(executor.submit(isinstance, square, Shape).result(), executor.submit(Box, 3).result().inside)
                print(executor.submit(Point.moved, point, 5).result(), executor.submit(max, [Point(1), Point(3)]).result())
    """,
    "sentinels": """
        MISSING = object()
        registry = {}
        alias = registry
        class Config:
            debug = False
        config = Config()
        class Service:
            def __init__(self, config):
                self.config = config
        service = Service(config)
        def default(n, value=MISSING):
            registry[n] = True
            return value is MISSING, n in alias, service.config is config, type(service) is Service
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(default, range(6))))
    """,
    "locks": """
        import threading, logging
        lock = threading.Lock()
        rlock = threading.RLock()
        local = threading.local()
        done = threading.Event()
        log = logging.getLogger(__name__)
        def guarded(n):
            with lock, rlock:
                local.n = n
                log.debug("guarded %d", n)
                return local.n, done.is_set()
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(guarded, range(4))))
    """,
    "recursion and cycles": """
        class A:
            def other(self):
                return B()
        class B:
            def other(self):
                return A()
        A.friend, B.friend = B, A
        A.instance = A()
        def even(n):
            return True if n == 0 else odd(n - 1)
        def odd(n):
            return False if n == 0 else even(n - 1)
        def cycle(n):
            a = A()
            return even(n), type(a.other().other()) is A, A.friend.friend is A, type(A.instance) is A
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(cycle, range(4))))
    """,
    "exceptions of the program": """
        class Base(Exception):
            pass
        class Bad(Base):
            def __init__(self, what, code=3):
                super().__init__(what)
                self.code = code
        def fail(n):
            raise Bad(f"number {n}")
        if __name__ == "__main__":
            with pool() as executor:
                for n in range(3):
                    try:
                        executor.submit(fail, n).result()
                    except Base as error:
                        print(type(error) is Bad, error, error.code, error.args)
    """,
    "results with methods": """
        class Tree:
            count = 0
            def __init__(self, *children):
                self.children = children
            def depth(self):
                return 1 + max((child.depth() for child in self.children), default=0)
            def __repr__(self):
                return f"Tree{self.children}"
        def build(n):
            return Tree(*(build(n - 1) for _ in range(2))) if n else Tree()
        if __name__ == "__main__":
            with pool() as executor:
                trees = list(executor.map(build, range(4)))
                print(trees[2], [tree.depth() for tree in trees], list(executor.map(Tree.depth, trees)))
                print(all(type(tree) is Tree for tree in trees))
    """,
    "one worker keeps its globals": """
        calls = 0
        def count(_):
            global calls
            calls += 1
            return calls
        if __name__ == "__main__":
            with pool(1) as executor:
                print([executor.submit(count, n).result() for n in range(5)])
            print(calls)
    """,
    "a fresh callable a call": """
        class Counter:
            def __init__(self):
                self.n = 0
            def __call__(self):
                self.n += 1
                return self.n
        if __name__ == "__main__":
            counter = Counter()
            with pool(1) as executor:
                print([executor.submit(counter).result() for _ in range(21)], counter.n)
    """,
    "dunder names": """
        import os
        where = os.path.basename(__file__)
        def tell(_):
            return __name__, os.path.basename(__file__), where
        if __name__ == "__main__":
            with pool() as executor:
                print(set(executor.map(tell, range(3))))
    """,
    "submodules": """
        import xml
        import xml.dom.minidom
        import os.path as path, json as js
        from collections import OrderedDict as OD
        def parse(text):
            return xml.dom.minidom.parseString(text).documentElement.tagName, path.join("a", "b"), js.dumps(OD(a=1))
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(parse, "<a/>").result())
    """,
    "everything": """
        import functools
        import dataclasses
        level = 1
        table = None
        def fill(value):
            global table
            table = value
        @dataclasses.dataclass
        class Item:
            n: int
            def up(self):
                return Item(self.n + level)
        @functools.lru_cache
        def cached(n):
            return n * 2
        def work(item):
            return item.up(), cached(item.n), table
        def main():
            with pool(initializer=fill, initargs=("t",)) as executor:
                print([(type(item) is Item, item.n, *rest) for item, *rest in executor.map(work, map(Item, range(5)))])
        if __name__ == "__main__":
            main()
    """,
}
