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
    "data classes of all kinds": """
        import dataclasses, typing
        @dataclasses.dataclass(slots=True, kw_only=True)
        class Base:
            name: str = "n"
            parts: list = dataclasses.field(default_factory=lambda: [1])
        @dataclasses.dataclass(slots=True, kw_only=True)
        class Derived(Base):
            size: int = 0
            kind: typing.ClassVar[str] = "derived"
            def __post_init__(self):
                self.size += len(self.parts)
        def use(thing):
            return dataclasses.asdict(thing), Derived(size=2), [f.name for f in dataclasses.fields(thing)], thing.kind
        if __name__ == "__main__":
            with pool() as executor:
                for found in executor.map(use, [Derived(size=n, parts=[n] * n) for n in range(3)]):
                    print(found, type(found[1]) is Derived)
    """,
    "enums of all kinds": """
        import enum
        class Color(enum.StrEnum):
            RED = enum.auto()
            BLUE = enum.auto()
        class Level(enum.IntEnum):
            LOW, HIGH = 1, 2
            def up(self):
                return Level.HIGH
        class Perm(enum.Flag):
            R = enum.auto()
            W = enum.auto()
        Shape = enum.Enum("Shape", "SQUARE CIRCLE")
        table = {Color.RED: Level.LOW, Color.BLUE: Level.HIGH}
        def use(color):
            return color is Color.RED, table[color], Level.LOW.up(), Perm.R | Perm.W, Shape.CIRCLE, Color("blue"), list(Color)
        if __name__ == "__main__":
            with pool() as executor:
                for a, b, c, d, e, f, g in executor.map(use, Color):
                    print(a, b is table[Color.RED] or b is table[Color.BLUE], c is Level.HIGH, d, e is Shape.CIRCLE, f, g == list(Color))
    """,
    "types of typing": """
        import typing, abc
        @typing.runtime_checkable
        class Sized(typing.Protocol):
            def size(self) -> int: ...
        class Row(typing.TypedDict):
            key: str
        UserId = typing.NewType("UserId", int)
        T = typing.TypeVar("T", bound="Point")
        class Point:
            x: int
            next: "Point | None" = None
            def size(self) -> int:
                return 3
        class Line(typing.Generic[T]):
            start: "Point"
            def __class_getitem__(cls, item):
                return super().__class_getitem__(item)
        class Box(Line[Point]):
            pass
        class Virtual(abc.ABC):
            pass
        Virtual.register(Point)
        def use(_):
            hints = typing.get_type_hints(Line)
            kinds = issubclass(Point, Virtual), Box.__mro__[1].__name__
            return isinstance(Point(), Sized), Row(key="k"), UserId(3), hints["start"] is Point, kinds
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, range(2))))
    """,
    "metaclasses and descriptors": """
        class Singleton(type):
            made = {}
            def __call__(cls, *args):
                if cls not in Singleton.made:
                    Singleton.made[cls] = super().__call__(*args)
                return Singleton.made[cls]
        class Settings(metaclass=Singleton):
            def __init__(self):
                self.level = 3
        class Positive:
            def __set_name__(self, owner, name):
                self.name = "_" + name
            def __get__(self, instance, owner):
                return self if instance is None else getattr(instance, self.name)
            def __set__(self, instance, value):
                if value < 0:
                    raise ValueError(value)
                setattr(instance, self.name, value)
        class Account:
            balance = Positive()
            class Entry:
                def __init__(self, n):
                    self.n = n
            def __init__(self, balance):
                self.balance = balance
            @property
            def entries(self):
                return [Account.Entry(n) for n in range(self.balance)]
        def use(account):
            return Settings() is Settings(), Settings().level, account.balance, account.entries
        if __name__ == "__main__":
            with pool() as executor:
                for same, level, balance, entries in executor.map(use, [Account(1), Account(2)]):
                    print(same, level, balance, [entry.n for entry in entries], all(type(e) is Account.Entry for e in entries))
    """,
    "decorators of all kinds": """
        import functools
        def repeat(times):
            def decorate(function):
                @functools.wraps(function)
                def wrapper(*args):
                    return [function(*args) for _ in range(times)]
                return wrapper
            return decorate
        def named(cls):
            cls.label = cls.__name__.lower()
            return cls
        @repeat(2)
        @functools.cache
        def square(n):
            return n * n
        @named
        @functools.total_ordering
        class Card:
            def __init__(self, n):
                self.n = n
            def __eq__(self, other):
                return self.n == other.n
            def __lt__(self, other):
                return self.n < other.n
            @functools.singledispatchmethod
            def show(self, x):
                return "any"
            @show.register
            def _(self, x: int):
                return "int"
            plus = functools.partialmethod(lambda self, by, n: self.n + by + n, 10)
            @functools.cached_property
            def twice(self):
                return self.n * 2
        def use(n):
            card = Card(n)
            return square(n), card.label, card > Card(1), card.show(1), card.show("x"), card.plus(1), card.twice
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, range(4))), executor.submit(max, Card(1), Card(3)).result().n)
    """,
    "tables of functions": """
        import operator
        def double(n):
            return n * 2
        actions = {"double": double, "square": lambda n: n * n, "again": lambda n: actions["double"](actions["square"](n))}
        class Runner:
            steps = [double, operator.neg]
            handlers = {"x": double}
            def run(self, n):
                for step in self.steps:
                    n = step(n)
                return self.handlers["x"](n)
        def use(name, n):
            return actions[name](n), Runner().run(n), actions["double"] is double, Runner.handlers["x"] is double
        if __name__ == "__main__":
            with pool() as executor:
                print([executor.submit(use, name, 3).result() for name in actions])
    """,
    "containers of the program": """
        import collections
        class Bag(collections.Counter):
            pass
        class Stack(list):
            def top(self):
                return self[-1]
        class Key(str):
            __slots__ = ()
        class Meters(float):
            def __new__(cls, value):
                return super().__new__(cls, value)
        class Pair(tuple):
            def __new__(cls, a, b):
                return super().__new__(cls, (a, b))
            def __getnewargs__(self):
                return tuple(self)
        class Node(collections.namedtuple("Node", "value children")):
            __slots__ = ()
            def total(self):
                return self.value + sum(child.total() for child in self.children)
        def new_list():
            return ["new"]
        grouped = collections.defaultdict(new_list)
        def use(n):
            grouped[n].append(n)
            return Bag("aab"), Stack([1, n]).top(), Key("k"), Meters(n), Pair(n, n), Node(n, [Node(1, [])]), dict(grouped)[n]
        if __name__ == "__main__":
            with pool() as executor:
                for bag, top, key, meters, both, node, group in executor.map(use, range(2)):
                    same = [type(x) is y for x, y in ((bag, Bag), (key, Key), (both, Pair))]
                    print(bag, top, key, meters, both, node.total(), group, same)
    """,
    "pickling of one's own": """
        class Handle:
            def __init__(self, name):
                self.name, self.lock = name, open
            def __reduce__(self):
                return make_handle, (self.name,)
        def make_handle(name):
            return Handle(name + "'")
        class State:
            def __init__(self):
                self.a, self.cache = 1, {}
            def __getstate__(self):
                return {"a": self.a + 1}
            def __setstate__(self, state):
                self.a, self.cache = state["a"], "restored"
        class Extra:
            def __new__(cls, *, n):
                made = super().__new__(cls)
                made.n = n
                return made
            def __getnewargs_ex__(self):
                return (), {"n": self.n}
        def use(handle, state, extra):
            return handle.name, handle, state.cache, state, extra.n, extra
        if __name__ == "__main__":
            with pool() as executor:
                name, handle, cache, state, n, extra = executor.submit(use, Handle("h"), State(), Extra(n=3)).result()
                print(name, handle.name, cache, state.a, n, extra.n)
    """,
    "names that only text mentions": """
        import sys
        def add(n):
            return n + offset
        offset = 5
        def by_name(name, n):
            return globals()[name](n), eval("offset + n"), getattr(sys.modules[__name__], name)(n)
        def by_main(n):
            import __main__
            return __main__.offset + n
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(by_name, "add", 2).result(), executor.submit(by_main, 1).result())
    """,
    "coroutines and generators": """
        import asyncio, contextlib
        async def fetch(n):
            await asyncio.sleep(0)
            return n * scale
        scale = 2
        async def stream(n):
            for i in range(n):
                yield await fetch(i)
        @contextlib.asynccontextmanager
        async def session():
            yield "s"
        async def gather(n):
            async with session() as name:
                return name, await asyncio.gather(*(fetch(i) for i in range(n))), [x async for x in stream(n)]
        def numbers(n):
            yield from range(n)
        def use(n):
            return asyncio.run(gather(n)), list(numbers(n))
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, range(3))))
    """,
    "objects that no pickle holds": """
        import contextvars, queue, random, re, struct, threading, types, weakref
        head = struct.Struct("<I")
        user = contextvars.ContextVar("user", default="nobody")
        jobs = queue.Queue()
        gate = threading.Semaphore(2)
        ready = threading.Condition()
        secret = random.SystemRandom()
        pattern = re.compile("a+")
        space = types.SimpleNamespace(a=1)
        class Thing:
            pass
        kept = Thing()
        cache = weakref.WeakValueDictionary(kept=kept)
        def use(n):
            with gate, ready:
                jobs.put(n)
                user.set(f"user {n}")
                drawn = 0 <= secret.random() < 1
                return head.pack(n), user.get(), jobs.get(), drawn, pattern.findall("aab"), space.a, cache["kept"] is kept
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, range(3))))
    """,
    "processes and threads in calls": """
        import concurrent.futures as cf, multiprocessing, pickle, subprocess, sys, threading
        class Item:
            def __init__(self, n):
                self.n = n
        def inner(item):
            return Item(item.n + 1)
        def use(n):
            with multiprocessing.get_context("fork").Pool(2) as inside:
                a = [item.n for item in inside.map(inner, [Item(n), Item(n + 1)])]
            with cf.ThreadPoolExecutor(2) as threads:
                b = [item.n for item in threads.map(inner, [Item(n)])]
            c = pickle.loads(pickle.dumps(Item(n))).n
            d = subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout.strip()
            return a, b, c, d
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, range(2))))
    """,
    "names that come and go": """
        import math
        from math import *
        if True:
            def chosen():
                return "yes"
        else:
            def chosen():
                return "no"
        for i in range(3):
            last = i
        (walrus := 4)
        unused = open(__file__)
        def shadow(n, math=math):
            sum = n
            return sum, math.floor(2.5), floor(3.5), chosen(), last, walrus, [x for x in range(last)], __builtins__ is not None
        def matches(x):
            match x:
                case Point(x=1):
                    return "one"
                case Point():
                    return "point"
                case _:
                    return "none"
        class Point:
            __match_args__ = ("x",)
            def __init__(self, x):
                self.x = x
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(shadow, 1).result(), list(executor.map(matches, [Point(1), Point(2), 3])))
    """,
    "super and friends": """
        class A:
            registry = []
            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                A.registry.append(cls.__name__)
            def who(self):
                return ["A"]
        class B(A):
            def who(self):
                return ["B", *super().who()]
        class C(A):
            def who(self):
                return ["C", *super().who()]
        class D(B, C):
            def who(self):
                return ["D", *super().who()]
            def __private(self):
                return "private"
            def tell(self):
                return self.__private()
        def use(d):
            return d.who(), d.tell(), isinstance(d, A), D().who(), sorted(set(A.registry))
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, [D(), D()])))
    """,
    "exceptions of all kinds": """
        class WithText(Exception):
            def __init__(self, name):
                super().__init__(name)
                self.name = name
        class Missing(FileNotFoundError):
            pass
        def raise_text():
            raise WithText("a.dat")
        def raise_os():
            raise Missing(2, "gone", "b.dat")
        def raise_from():
            try:
                {}["k"]
            except KeyError as error:
                raise WithText("c") from error
        def raise_noted():
            error = ValueError("noted")
            error.add_note("a note")
            raise error
        def raise_group():
            raise ExceptionGroup("several", [ValueError(1), WithText("d")])
        if __name__ == "__main__":
            with pool() as executor:
                for function in (raise_text, raise_os, raise_from, raise_noted, raise_group):
                    try:
                        executor.submit(function).result()
                    except Exception as error:
                        told = [type(error).__name__, str(error), error.args == getattr(error, "args"), getattr(error, "name", None)]
                        told += [getattr(error, "errno", None), getattr(error, "filename", None), getattr(error, "__notes__", None)]
                        print(*told, [(type(e).__name__, str(e)) for e in getattr(error, "exceptions", ())])
    """,
    "subclasses that register": """
        class Plugin:
            known = {}
            asked = []
            def __init_subclass__(cls, *, key, level=0, **options):
                super().__init_subclass__(**options)
                Plugin.asked.append(key)
                cls.key, cls.level = key, level
                Plugin.known[key] = cls
        class Json(Plugin, key="json", level=2):
            def write(self, x):
                return f"json {x} {self.level}"
        class Text(Plugin, key="text"):
            def write(self, x):
                return f"text {x} {self.level}"
        class Long(Text, key="long"):
            pass
        def write(key, x):
            return Plugin.known[key]().write(x), Plugin.known[key].key, len(Plugin.asked), sorted(Plugin.known)
        def later(x):
            class Late(Plugin, key="late"):
                def write(self, x):
                    return f"late {x}"
            return Plugin.known["late"]().write(x), len(Plugin.asked), type(Json()) is Plugin.known["json"]
        if __name__ == "__main__":
            with pool(1) as executor:
                for key in ("json", "text", "long"):
                    print(executor.submit(write, key, 1).result())
                print(executor.submit(later, 2).result(), Plugin.asked, sorted(Plugin.known))
                print(executor.submit(Json().write, 3).result(), executor.submit(write, "text", 4).result())
                print(type(executor.submit(Long).result()) is Long, Plugin.asked)
    """,
    "metaclasses that remember": """
        made = []
        class Table(type):
            @classmethod
            def __prepare__(mcls, name, bases, **options):
                return {"order": []}
            def __new__(mcls, name, bases, namespace, *, columns):
                namespace["columns"] = tuple(columns.split()) + (namespace["marker"],)
                return super().__new__(mcls, name, bases, namespace)
            def __init__(cls, name, bases, namespace, **options):
                super().__init__(name, bases, namespace)
                made.append(name)
            def __len__(cls):
                return len(cls.columns)
            def __getattr__(cls, name):
                if name.startswith("col_"):
                    return cls.columns[int(name[4:])]
                raise AttributeError(name)
        class Users(metaclass=Table, columns="id name"):
            marker = "end"
            order.append("users")
        def look(n):
            return len(Users), Users.columns, Users.col_0, Users.order, made, type(Users) is Table, Users().columns[n]
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(look, 1).result())
                print(executor.submit(len, Users).result(), made)
    """,
    "abstract classes with a metaclass of the program": """
        import abc
        seen = []
        class Counted(abc.ABCMeta):
            def __init__(cls, *given, **options):
                super().__init__(*given, **options)
                seen.append(cls.__name__)
        class Shape(metaclass=Counted):
            @abc.abstractmethod
            def area(self): ...
        class Square(Shape):
            def area(self):
                return 4
        class Duck:
            pass
        Shape.register(Duck)
        def use():
            try:
                Shape()
            except TypeError:
                refused = True
            return Square().area(), isinstance(Duck(), Shape), issubclass(Square, Shape), seen, refused
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use).result(), seen)
    """,
    "classes that refuse changes": """
        class Constant(type):
            def __setattr__(cls, name, value):
                raise TypeError(f"{name} is constant")
            def __delattr__(cls, name):
                raise TypeError(f"{name} is constant")
        class Limits(metaclass=Constant):
            most = 7
            @classmethod
            def under(cls, n):
                return n < cls.most
        class Frozen:
            __slots__ = ("x",)
            def __init__(self, x):
                object.__setattr__(self, "x", x)
            def __setattr__(self, name, value):
                raise AttributeError(f"{name} cannot be set")
            def __getstate__(self):
                return self.x
            def __setstate__(self, x):
                object.__setattr__(self, "x", x)
        def use(frozen):
            said = []
            for thing, name in ((Limits, "most"), (frozen, "x")):
                try:
                    setattr(thing, name, 9)
                except (TypeError, AttributeError) as error:
                    said.append(str(error))
            return Limits.under(frozen.x), said
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, Frozen(3)).result(), executor.submit(Limits.under, 8).result())
    """,
    "descriptors that count": """
        named = []
        class Field:
            def __init__(self, kind):
                self.kind = kind
            def __set_name__(self, owner, name):
                named.append(f"{owner.__name__}.{name}")
                self.name = name
                owner.fields = (*getattr(owner, "fields", ()), name)
            def __get__(self, instance, owner=None):
                return self if instance is None else vars(instance)[self.name]
            def __set__(self, instance, value):
                vars(instance)[self.name] = self.kind(value)
        class Row:
            a = Field(int)
            b = Field(str)
            def __init__(self, a, b):
                self.a, self.b = a, b
        class Wide(Row):
            c = Field(float)
        def use(row):
            row.a = "5"
            return row.a, row.b, Row.fields, Wide.fields, Row.a.name, named, Wide(1, 2).b
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, Row("1", 2)).result(), named)
    """,
    "decorators of classes": """
        import dataclasses, functools
        decorated, born = [], []
        def register(name):
            def decorate(cls):
                decorated.append(name)
                cls.registered = name
                return cls
            return decorate
        def singleton(cls):
            made = {}
            @functools.wraps(cls, updated=())
            def get(*args):
                if cls not in made:
                    born.append(cls.__name__)
                    made[cls] = cls(*args)
                return made[cls]
            return get
        @register("point")
        @functools.total_ordering
        @dataclasses.dataclass(slots=True)
        class Point:
            x: int
            scale: dataclasses.InitVar[int] = 2
            y: int = dataclasses.field(init=False, default=0)
            def __post_init__(self, scale):
                self.y = self.x * scale
            def __lt__(self, other):
                return self.y < other.y
        @singleton
        class Config:
            level = 3
        def use(point):
            config = Config() is Config(), Config().level, born
            return point.y, Point.registered, decorated, config, point >= Point(1), max(point, Point(9)).x
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, Point(3)).result(), decorated, born)
    """,
    "subclasses of classes of the library": """
        import collections, configparser, contextlib, enum, json, string, threading
        class Percent(string.Template):
            delimiter = "%"
        class Upper(json.JSONEncoder):
            def default(self, x):
                return sorted(x)
        class Case(configparser.ConfigParser):
            def optionxform(self, text):
                return text
        class Default(dict):
            def __missing__(self, key):
                return key * 2
        class Words(collections.UserList):
            def longest(self):
                return max(self.data, key=len)
        class Timer(contextlib.ContextDecorator):
            entered = 0
            def __enter__(self):
                Timer.entered += 1
            def __exit__(self, *error):
                return False
        @Timer()
        def timed(n):
            return n, Timer.entered
        class Worker(threading.Thread):
            def run(self):
                self.answer = "ran"
        class Text(str):
            def shout(self):
                return self.upper() + "!"
        class Level(str, enum.Enum):
            LOW = "low"
            @classmethod
            def _missing_(cls, value):
                return cls.LOW
        def use(text):
            thread = Worker()
            thread.start()
            thread.join()
            case = Case()
            case.read_string("[A]\\nKey=1")
            return (Percent("%who $who").substitute(who=text), json.dumps({1: {3, 2}}, cls=Upper), list(case["A"]), Default()["a"],
                Words(["a", "abc"]).longest(), timed(1), thread.answer, Text(text).shout(), Level("?") is Level.LOW)
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, "me").result())
                print(executor.submit(Text, "x").result().shout(), executor.submit(Default, {1: 2}).result()[4])
    """,
    "protocols and checks of a metaclass": """
        import typing
        class Even(type):
            def __instancecheck__(cls, x):
                return x % 2 == 0
            def __contains__(cls, x):
                return x in cls.known
            def __iter__(cls):
                return iter(cls.known)
            def __class_getitem__(cls, x):
                return "item"
            @property
            def size(cls):
                return len(cls.known)
        class Number(metaclass=Even):
            known = [2, 4]
            def __class_getitem__(cls, x):
                return cls, x
        @typing.runtime_checkable
        class Closes(typing.Protocol):
            def close(self): ...
        class File:
            def close(self):
                return "closed"
        def use(n):
            closes = isinstance(File(), Closes), isinstance(3, Closes)
            return isinstance(n, Number), 2 in Number, list(Number), Number.size, Number[3][1], closes
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, [3, 4])))
    """,
    "exceptions that register": """
        class AppError(Exception):
            codes = {}
            def __init_subclass__(cls, code=0, **options):
                super().__init_subclass__(**options)
                if code in AppError.codes:
                    raise RuntimeError(f"code {code} is taken by {AppError.codes[code].__name__}")
                cls.code = code
                AppError.codes[code] = cls
        class NotThere(AppError, code=404):
            pass
        class Teapot(AppError, code=418):
            def __init__(self, cups):
                super().__init__(cups)
                self.cups = cups
        def fail(code):
            raise AppError.codes[code](3)
        if __name__ == "__main__":
            with pool(1) as executor:
                for code in (404, 418):
                    try:
                        executor.submit(fail, code).result()
                    except AppError as error:
                        print(type(error) is AppError.codes[code], error.code, error, getattr(error, "cups", None), sorted(AppError.codes))
    """,
    "enums whose members know more": """
        import enum
        class Planet(enum.Enum):
            EARTH = (5.9, 6.3)
            MARS = (0.6, 3.4)
            def __init__(self, mass, radius):
                self.mass, self.radius = mass, radius
            @property
            def density(self):
                return round(self.mass / self.radius ** 3, 4)
        class Coin(enum.Enum):
            CENT = (1, "copper")
            EURO = (100, "gold")
            def __new__(cls, value, metal):
                made = object.__new__(cls)
                made._value_, made.metal = value, metal
                return made
        def use(planet):
            masses = [p.mass for p in Planet]
            return planet.density, Planet((0.6, 3.4)).radius, masses, Coin(100).metal, Coin.CENT.metal, planet is Planet.EARTH
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, Planet.EARTH).result(), executor.submit(Planet, (5.9, 6.3)).result() is Planet.EARTH)
    """,
    "classes that keep their own instances": """
        class Unit(tuple):
            def __new__(cls, name, power):
                return super().__new__(cls, (name, power))
            def __getnewargs__(self):
                return tuple(self)
            @property
            def name(self):
                return self[0]
        Unit.METER = Unit("m", 1)
        class Money:
            def __init__(self, cents):
                self.cents = cents
            def __getstate__(self):
                return [self.cents]
            def __setstate__(self, state):
                (self.cents,) = state
            def __eq__(self, other):
                return self.cents == other.cents
            def __hash__(self):
                return hash(self.cents)
        Money.zero = Money(0)
        Money.names = {Money.zero: "nothing", Money(1): "a cent"}
        def use(unit, money):
            return unit == Unit.METER, Unit.METER.name, type(Unit.METER) is Unit, money == Money.zero, Money.names[money], Money.zero.cents
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, Unit.METER, Money(0)).result(), executor.submit(Unit, "m", 2).result())
    """,
    "mixins and hooks": """
        import enum
        calls = []
        class Base:
            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                calls.append(("base", cls.__name__))
        class Other:
            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                calls.append(("other", cls.__name__))
                cls.hooked = len(calls)
        class Both(Base, Other):
            pass
        class Deep(Both):
            __slots__ = ("x",)
            def __init__(self):
                self.x = self.hooked
        class Coded(enum.Enum):
            def __init_subclass__(cls, **options):
                super().__init_subclass__(**options)
                calls.append(("enum", cls.__name__))
            @property
            def code(self):
                return self.value * 10
        class Color(Coded):
            RED = 1
        def use():
            return Color.RED.code, Deep().x, Both.hooked, calls, [kind.__name__ for kind in Deep.__mro__], Deep.__slots__
        def more():
            Local = type("Local", (Both,), {"y": 1})
            return calls[-2:], Local.hooked, Local.y
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use).result(), calls)
                print(executor.submit(more).result(), executor.submit(use).result()[:2], len(calls))
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
