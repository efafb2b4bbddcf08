"""Small programs as users write them. `pool()` is either `ProcessPoolExecutor` or `rmgr.Executor`; both must print the same."""

from __future__ import annotations

from tests.harness.class_programs import CLASS_PROGRAMS

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
    "values of a thread, and decoders": """
        import json, threading
        class Own(threading.local):
            def __init__(self, size):
                self.size, self.seen = size, []
        class Exact(json.JSONDecoder):
            def __init__(self):
                super().__init__(parse_float=str, object_hook=self.changed)
            def changed(self, found):
                return {**found, "by": type(self).__name__}
        plain, own, decoder, exact = threading.local(), Own(3), json.JSONDecoder(), Exact()
        plain.n, plain.closed, own.none = 5, open("/dev/null", "rb"), None
        own.seen.append(1)
        def use():
            own.seen.append(2)
            plain.n += 1
            other = []
            thread = threading.Thread(target=lambda: other.append((hasattr(plain, "n"), own.size, own.seen, hasattr(own, "none"))))
            thread.start()
            thread.join()
            return plain.n, own.size, own.seen, own.none, other, decoder.decode("[1.5]"), exact.decode('{"a": 1.50}')
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(use).result())
    """,
    "weak references, and threads of one's own": """
        import asyncio, concurrent.futures, queue, weakref
        class Node:
            def __init__(self, name, parent=None):
                self.name, self.parent, self.children = name, parent and weakref.ref(parent), []
                if parent is not None:
                    parent.children.append(self)
            def told(self):
                return self.name
        root = Node("root")
        leaf = Node("leaf", root)
        alone = weakref.ref(root)
        gone = weakref.ref(Node("gone"))
        kept = weakref.WeakValueDictionary({"root": root}), weakref.WeakSet([leaf])
        threads = concurrent.futures.ThreadPoolExecutor(2, "mine", initializer=len, initargs=([],))
        def double(n):
            return n * 2
        def use():
            return alone() is root, root.children[0].parent() is root, leaf.parent().name, gone(), [len(one) for one in kept]
        method, waiting, loop = weakref.WeakMethod(root.told), queue.SimpleQueue(), asyncio.new_event_loop()
        def others():
            waiting.put(1)
            return method()(), method().__self__ is root, waiting.get(), loop.run_until_complete(asyncio.sleep(0, "slept"))
        def alone_used():
            return alone().children[0].parent().name, list(threads.map(double, range(3))), threads._max_workers
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(alone_used).result(), executor.submit(use).result(), executor.submit(others).result())
    """,
    "globals that are put right": """
        class Config:
            def __init__(self):
                self.log, self.n = open("/dev/null", "w"), 1
        config = Config()
        class Model:
            def plain(self):
                return "plain"
            def use(self):
                return config.n
        def ask(model, method):
            return getattr(model, method)()
        if __name__ == "__main__":
            model = Model()
            with pool(1) as executor:
                print(executor.submit(ask, model, "plain").result())
            config.log.close()
            config.log, config.n = None, 2
            with pool(1) as executor:
                print(executor.submit(ask, model, "use").result(), executor.submit(model.use).result())
    """,
    "libraries and types of ctypes": """
        import ctypes, ctypes.util
        import numpy as np
        libc = ctypes.CDLL(None, use_errno=True)
        libm = ctypes.CDLL(ctypes.util.find_library("m"))
        libm.pow.argtypes, libm.pow.restype = [ctypes.c_double, ctypes.c_double], ctypes.c_double
        strlen = ctypes.CDLL(None).strlen
        strlen.argtypes, strlen.restype = [ctypes.c_char_p], ctypes.c_size_t
        strlen.errcheck = lambda result, function, arguments: result * 10
        Triple, Int = ctypes.c_int * 3, ctypes.POINTER(ctypes.c_int)
        Compare = ctypes.CFUNCTYPE(ctypes.c_int, Int, Int)
        three, text = Triple(3, 1, 2), ctypes.create_string_buffer(b"abc")
        Floats = np.ctypeslib.ndpointer(dtype=np.float64, ndim=1, flags="C")
        class Point(ctypes.Structure):
            _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_double), ("tag", ctypes.c_char * 4)]
            def sum(self):
                return self.x + self.y
        class Deep(Point):
            _fields_ = [("z", ctypes.c_int)]
        class Either(ctypes.Union):
            _fields_ = [("i", ctypes.c_int), ("f", ctypes.c_float)]
        class Packed(ctypes.BigEndianStructure):
            class Bits(ctypes.BigEndianStructure):
                _fields_ = [("a", ctypes.c_short, 3), ("b", ctypes.c_short, 5)]
            _pack_, _anonymous_ = 1, ["bits"]
            _fields_ = [("k", ctypes.c_char), ("bits", Bits), ("v", ctypes.c_int)]
        class Node(ctypes.Structure):
            pass
        Node._fields_ = [("n", ctypes.c_int), ("next", ctypes.POINTER(Node))]
        point = Point(1, 2.5, b"ab")
        def functions():
            mine = Triple(*three)
            libc.qsort(mine, 3, ctypes.sizeof(ctypes.c_int), Compare(lambda one, other: one[0] - other[0]))
            libc.open(b"/nowhere", 0)
            return list(mine), libm.pow(2, 3), strlen(b"abcd"), ctypes.get_errno(), list(three), text.value, Floats._ndim_
        def kinds():
            node = Node(5, ctypes.pointer(Node(6)))
            packed = Packed(b"k", (1, 2), 3)
            deep = Deep(1, 2.0, b"t", 9)
            return node.next[0].n, bytes(packed), packed.a, Either(f=1.0).i, deep.z, deep.sum(), point.tag, Int(ctypes.c_int(3))[0]
        def moved(given):
            given.x += 1
            return given
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(functions).result(), executor.submit(kinds).result())
                back = executor.submit(moved, point).result()
                print(type(back) is Point, back.sum(), point.x)
    """,
    "a second name of the script's module": """
        import sys
        sys.modules["__mp_main__"] = sys.modules["__main__"]  # as joblib does, and processes that multiprocessing spawns
        factor = 3
        class Point:
            def __init__(self, n):
                self.n = n
        class Spawned(Point):
            __module__ = "__mp_main__"
        class Wrong(Exception):
            __module__ = "__mp_main__"
        def grown(given):
            return Spawned(given.n * factor), type(given) is Point, type(given) is Spawned
        def looked_up(n):
            return eval("factor + n"), globals()["Point"](5).n, Spawned.__module__
        def wrong(n):
            raise Wrong(n)
        if __name__ == "__main__":
            with pool(1) as executor:
                for given in Point(2), Spawned(3):
                    back, *told = executor.submit(grown, given).result()
                    print(back.n, told, type(back) is Spawned)
                print(executor.submit(looked_up, 1).result())
                try:
                    executor.submit(wrong, 1).result()
                except Wrong as error:
                    print(error)
    """,
    "dictionaries with types, and constructors that need arguments": """
        import typing
        T = typing.TypeVar("T")
        class Row(typing.TypedDict):
            a: int
            b: typing.NotRequired[str]
        class Long(Row, total=False):
            "docs"
            c: float
        class Box(typing.TypedDict, typing.Generic[T]):
            value: T
        Odd = typing.TypedDict("Odd", {"in": int, "x-y": str})
        class Template:
            def __new__(cls, source, *, mode):
                made = super().__new__(cls)
                made.source = source + mode
                return made
        class Pair(tuple):
            def __new__(cls, one, other):
                return super().__new__(cls, (one, other))
        class Length(float):
            def __new__(cls, value, unit, *, exact):
                made = super().__new__(cls, value)
                made.unit = unit
                return made
        template, pair, length = Template("a", mode="b"), Pair(1, 2), Length(1.5, "m", exact=True)
        def longer(row: Row) -> Long:
            return Long(**row, c=1.0)
        def told():
            keys = [(sorted(kind.__required_keys__), sorted(kind.__optional_keys__), kind.__doc__) for kind in (Row, Long, Box, Odd)]
            hints, is_one = str(typing.get_type_hints(Long)), typing.is_typeddict(Long)
            return keys, Box[int].__origin__ is Box, hints, Odd({"in": 1}), is_one, Long.__bases__
        def looked_up(n):
            return eval("template.source + str(n)"), type(template) is Template, tuple(pair), type(pair) is Pair, length + 1, length.unit
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(longer, Row(a=1)).result(), executor.submit(told).result(), executor.submit(looked_up, 1).result())
    """,
    "parsers of arguments": """
        import argparse
        class Upper(argparse.Action):
            def __call__(self, parser, namespace, values, option=None):
                setattr(namespace, self.dest, values.upper())
        parser = argparse.ArgumentParser(prog="it")
        parser.add_argument("-n", type=int, default=3, help="how many")
        parser.add_argument("--flag", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        parser.add_argument("--word", action=Upper)
        commands = parser.add_subparsers()
        commands.add_parser("go").add_argument("where", nargs="?", default="there")
        arguments = parser.parse_args(["--flag"])
        def parsed(*words):
            return sorted(vars(parser.parse_args(words)).items()), vars(arguments)
        def helped():
            return parser.format_help()
        if __name__ == "__main__":
            with pool(1) as executor:
                for words in ["-n", "4"], ["--flag", "--word", "x"], ["go"]:
                    print(executor.submit(parsed, *words).result())
                print(executor.submit(helped).result())
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
    "closures that share variables": """
        def counter(n=0):
            def add(by=1):
                nonlocal n
                n += by
                return n
            def get():
                return n
            def reset():
                nonlocal n
                n = 0
                return add, get
            return add, get, reset
        add, get, reset = counter()
        other, _, _ = counter(10)
        def account():
            balance = 0
            class Account:
                def pay(self, x):
                    nonlocal balance
                    balance += x
                    return super().__init__() or balance
                def show(self):
                    return balance, type(self) is __class__
            return Account
        Account = account()
        def unbound():
            def first():
                return second() + 1
            def early():
                return late
            def second():
                return 1
            return first, early
            late = 1
        first, early = unbound()
        def factorial():
            def f(n):
                return 1 if n == 0 else n * f(n - 1)
            return f
        f = factorial()
        def use(n):
            add(), add(n), other()
            mine = Account()
            mine.pay(n)
            try:
                early()
            except NameError as error:
                said = str(error)[:30]
            again = reset()
            return get(), other(), mine.show(), first(), f(5), said, again[0] is add, again[1] is get
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, 5).result(), executor.submit(use, 6).result(), get(), other())
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
    "pools one after the other": """
        import collections
        found, settings, counts = [], {"depth": 1}, collections.Counter()
        class Model:
            rate = 1
            registry = {}
        class Config:
            def __init__(self):
                self.debug = False
        config, left = Config(), Config()
        right = left
        def note(key):
            Model.registry[key] = config
        def use(_=None):
            return len(found), settings["depth"], counts["a"], Model.rate, sorted(Model.registry), config.debug
        def lefts():
            return left.debug
        def rights():
            return right.debug
        def same(model):
            return model is Model and Model.registry.get("a") is config
        if __name__ == "__main__":
            for n in range(3):
                with pool(1) as executor:
                    print(executor.submit(use).result(), executor.submit(same, Model).result(), list(executor.map(use, range(2))))
                    print([executor.submit(called).result() for called in (lefts, rights)])
                left.debug = n
                if n == 0:
                    found.append(n)
                    counts.update("a")
                    note("a")
                    Model.rate = 2
                else:
                    settings["depth"] += 1
                    config.debug = True
            with pool(1, initializer=note, initargs=("b",)) as executor:
                print(executor.submit(use).result())
    """,
    "pools side by side": """
        model, settings, resources = None, [], {}
        def begin():
            global model
            model = "loaded"
            resources["a"] = 1
        def use():
            return model, resources, len(settings)
        if __name__ == "__main__":
            with pool(1, initializer=begin) as one:
                print(one.submit(use).result())
                settings.append(1)
                with pool(1) as other:
                    print(other.submit(use).result(), one.submit(use).result())
    """,
    "a library that is kept out": """
        import sys
        sys.modules["wrapt"] = None  # as tests do
        class Odd:
            n = 3
        Odd.__module__ = "_wrappers"
        odd = Odd()
        def use():
            return odd.n, Odd.n
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(use).result())
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
    "decorators of wrapt": """
        try:
            import wrapt
        except ImportError:  # libraries bring it: Deprecated, debugpy, opentelemetry
            wrapt = None
        calls = []
        if wrapt is not None:
            @wrapt.decorator
            def counted(wrapped, instance, args, kwargs):
                calls.append(wrapped.__name__)
                return wrapped(*args, **kwargs) + 100
            @counted
            def work(n):
                return n if n == 0 else work(n - 1)
            class Model:
                @counted
                def use(self, n):
                    return n * 10
                @counted
                @classmethod
                def make(cls, n):
                    return len(cls.__name__) + n
            def use(n):
                @counted
                def inside(n):
                    return n
                return work(n), Model().use(n), Model.make(n), inside(n), calls, work.__name__
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(use, 1).result() if wrapt else None)
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
    "streams in globals": """
        import functools, os, sys
        from os import environ
        out, raw, write, write_raw = sys.stdout, sys.stdout.buffer, sys.stdout.write, sys.stderr.buffer.write
        say = functools.partial(print, file=sys.stderr)
        class Teller:
            stream = sys.stdout
        def same(to=sys.stdout.buffer):
            of_print = say.keywords["file"] is sys.stderr, write == sys.stdout.write, write_raw == sys.stderr.buffer.write
            return out is sys.stdout, raw is to is sys.stdout.buffer, Teller.stream is out, environ is os.environ, *of_print
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(same).result())
    """,
    "objects that no pickle holds": """
        import contextvars, queue, random, re, struct, threading, types, weakref
        head = struct.Struct("<I")
        user = contextvars.ContextVar("user", default="nobody")
        unset, default = contextvars.ContextVar("unset"), contextvars.ContextVar("default", default=3)
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
                told = user.get(), default.get(), unset.get(None)
                return head.pack(n), told, jobs.get(), drawn, pattern.findall("aab"), space.a, cache["kept"] is kept
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
    "processes that calls spawn": """
        import concurrent.futures as cf, multiprocessing
        factor = 3
        class Item:
            def __init__(self, n):
                self.n = n
        def times(item):
            return Item(item.n * factor)
        def spawned(how):
            with multiprocessing.get_context(how).Pool(1) as inside:
                a = [(type(item) is Item, item.n) for item in inside.map(times, [Item(1), Item(2)])]
            with cf.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(how)) as inside:
                b = [(type(item) is Item, item.n) for item in inside.map(times, [Item(3)])]
            return a, b
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(spawned, ["spawn", "forkserver"])))
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
    "modules that an importer of the program makes": """
        import importlib.abc, importlib.util, sys
        TEXTS = {"made": "factor = 5", "made.of_text": "from made import factor\\nclass Thing: pass\\ndef work(n): return n * factor"}
        class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
            def find_spec(self, name, path, target=None):
                if name in TEXTS:
                    return importlib.util.spec_from_loader(name, self, is_package=name == "made")
            def create_module(self, spec):
                return None
            def exec_module(self, module):
                exec(TEXTS[module.__name__], vars(module))
        sys.meta_path.append(Importer())
        import made.of_text as made_of_text
        def use(n):
            return made_of_text.work(n)
        if __name__ == "__main__":
            with pool() as executor:
                thing = executor.submit(made_of_text.Thing).result()
                print(list(executor.map(use, range(3))), executor.submit(made_of_text.work, 4).result())
                print(type(thing) is made_of_text.Thing)
    """,
    "modules that raise or load when they are asked": """
        import importlib.util, sys, types
        class Refusing(types.ModuleType):
            def __getattr__(self, name):
                raise RuntimeError(name)
        sys.modules["refusing"] = Refusing("refusing")
        spec = importlib.util.find_spec("tabnanny")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules["tabnanny"] = lazy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(lazy)
        def double(n):
            return n * 2
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(double, 2).result(), type(lazy).__name__)
    """,
    "modules that the program puts there": """
        import importlib, sys, types, typing
        def made(name, text):
            module = sys.modules[name] = types.ModuleType(name)
            exec(text, vars(module))
            return module
        plain = made("plain_one", "factor = 5\\ndef work(n): return n * factor\\nhandle = open('/dev/null', 'w')")
        made("package_one", "inside = 3")
        sys.modules["package_one"].deep = made("package_one.deep", "class Thing: pass")
        made("by_text", "n = 8")
        class Computed(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return name + self.suffix
        computed = Computed("computed")
        computed.suffix = "!"
        # As libraries do that replace themselves, or load a part when it is used.
        with open("replacing.py", "w") as file:
            file.write("import sys, types\\nclass Own(types.ModuleType):\\n")
            file.write("    def __getattr__(self, name): return [name][name[0] == '_']\\n")
            file.write("def work(n): return n\\nown = Own(__name__)\\nown.__dict__.update(globals())\\nsys.modules[__name__] = own\\n")
        import replacing
        class Later(types.ModuleType):
            def __init__(self, name):
                super().__init__(name)
                self.real = name
            def __getattr__(self, name):
                return getattr(importlib.import_module(self.real), name)
        wave = Later("wave")
        def use(n):
            import plain_one
            import package_one.deep
            from package_one import inside
            text = importlib.import_module("by_text").n
            told = plain_one.work(n), inside, type(package_one.deep.Thing()).__name__, text
            return *told, computed.grey, replacing.work(n), replacing.other, wave.open.__name__
        class Kind:
            pass
        def hinted(kind: "Kind | None" = None):
            import plain_one
            return [hint.__name__ for hint in typing.get_args(typing.get_type_hints(hinted)["kind"])]
        def main_itself():
            import __main__
            return __main__.use is use, __main__.wave is wave
        if __name__ == "__main__":
            with pool() as executor:
                print(list(executor.map(use, range(2))), executor.submit(plain.work, 2).result(), executor.submit(hinted).result())
                print(executor.submit(main_itself).result())
    """,
    "sentinels of modules": """
        import dataclasses, socket
        DEFAULT = socket._GLOBAL_DEFAULT_TIMEOUT
        class Nothing:
            pass
        nothing = Nothing()
        table = {"default": DEFAULT, "missing": dataclasses.MISSING, "nothing": nothing}
        @dataclasses.dataclass
        class Base:
            first: int
            second: int = 2
            rest: list = dataclasses.field(default_factory=list)
        def use(default=DEFAULT):
            @dataclasses.dataclass
            class Derived(Base):
                last: int = 3
            derived = Derived(1)
            derived.rest.append(4)
            fields = [(field.default is dataclasses.MISSING, field.default_factory is list) for field in dataclasses.fields(Base)]
            same = default is socket._GLOBAL_DEFAULT_TIMEOUT, table["default"] is default, table["missing"] is dataclasses.MISSING
            return dataclasses.asdict(derived), fields, same, table["nothing"] is nothing
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(use).result())
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
} | CLASS_PROGRAMS
