"""Small programs as users write them, with their own classes: metaclasses, descriptors, enums, exceptions. See `programs`."""

from __future__ import annotations

CLASS_PROGRAMS = {
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
    "enums with named sums and second names": """
        import enum
        class F1(enum.Flag, boundary=enum.CONFORM): R = 1; W = 2; RW = 3
        class F2(enum.IntFlag, boundary=enum.KEEP): A = 1; ALL = 0xff
        class F3(enum.Flag): R = enum.auto(); W = enum.auto(); RW = R | W; NONE = 0
        class E2(enum.Enum):
            X = 1; Y = 2; Z = 1
        class E3(enum.Enum):
            P = (1, "one"); Q = (2, "two"); P2 = (1, "one")
            def __init__(self, n, label): self.n = n; self.label = label
        class V(enum.Enum):
            def _generate_next_value_(name, start, count, last): return name.lower()
            AA = enum.auto(); BB = enum.auto()
        @enum.unique
        class U(str, enum.Enum):
            A = "a"
            def hi(self): return self.value + "!"
        E5 = enum.Enum("E5", "AA BB")
        class N(enum.IntEnum):
            ONE = 1; UNO = 1
            @enum.property
            def label(self): return "l"
            @enum.nonmember
            class Inner: x = 1
        class M(enum.Enum):
            f = enum.member(len); a = 1
        def look(_):
            out = []
            for k in (F1, F2, F3, E2, E3, V, U, E5, N, M):
                out.append((repr(list(k)), list(k.__members__), repr(k(1)) if k in (F1,F2,F3,E2,N) else ""))
            flags = repr(F1.R | F1.W), F1["RW"], F1(7), F2(0x1ff), F2.ALL, F3.NONE, F3["NONE"], len(F1), F3.RW in F3, list(F3.RW)
            names = E2["Z"] is E2.X, E3["P2"] is E3.P, E3.P2.label, N.UNO is N.ONE, N["UNO"].label, N.Inner.x, M.f.value("abc"), U.A.hi()
            return out, flags, names
        def back(k): return [k, list(k), dict(k.__members__)]
        if __name__ == "__main__":
            with pool() as ex:
                for t in ex.submit(look, 0).result(): print(t)
                for k in (F1, F2, F3, E2, E3, V, U, E5, N, M):
                    same, members, known = ex.submit(back, k).result()
                    print(same is k, all(a is b for a, b in zip(members, k)), [known[name] is k[name] for name in k.__members__])
                print(ex.submit(back, F1.RW.__class__).result()[0] is F1)
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
    "subclasses of property and its like": """
        import functools
        class Loud(property):
            def __init__(self, function):
                self.function = function
            def __get__(self, instance, owner):
                return self if instance is None else f"loud {self.function(instance)}"
        class Typed(property):
            kind = int
            def __set__(self, instance, value):
                super().__set__(instance, self.kind(value))
        class ClassProperty(classmethod):
            def __get__(self, instance, owner):
                return super().__get__(instance, owner)()
        class Static(staticmethod):
            note = "static"
        class Point:
            scale = 3
            def __init__(self, x):
                self._x = x
            @Loud
            def name(self):
                return self._x
            def x(self):
                "docs of x"
                return self._x
            def set_x(self, x):
                self._x = x
            x = Typed(x, set_x)
            @ClassProperty
            def factor(cls):
                return cls.scale * 2
            @Static
            def unit():
                return 7
        def use(point, x):
            point.x = x
            return point.x, point.name, Point.factor, point.unit(), vars(Point)["unit"].note, Point.x.__doc__, type(Point.x) is Typed
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(use, Point(1), "5").result(), executor.submit(Point, 2).result().name)
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
    "annotations that nobody has looked at yet": """
        import sys, typing
        class Kind:
            n: int
            other: "Kind"
        def used(kind: Kind, *, many: list[Kind]) -> "Kind":
            return kind
        text = "class Late:\\n n: int\\n none: Nowhere\\ndef late(a: Nowhere, b: int = 2, *, c: Nowhere = 3):\\n return a + b + c"
        if sys.version_info < (3, 14):
            text = "from __future__ import annotations\\n" + text
        exec(text)
        late.mark = "x"
        def text_of(thing):
            if sys.version_info < (3, 14):
                return thing.__annotations__
            import annotationlib
            return annotationlib.get_annotations(thing, format=annotationlib.Format.STRING)
        def told():
            hints = typing.get_type_hints(Kind), typing.get_type_hints(used), text_of(Late), text_of(late)
            return str(hints), late(1), late.__kwdefaults__, late.mark, late.__qualname__
        with pool() as executor:
            print(executor.submit(told).result())
            print(executor.submit(late, 1, c=1).result(), executor.submit(isinstance, Late(), Late).result())
    """,
    "structs of msgspec": """
        import enum, msgspec, typing
        class Kind(enum.Enum):
            A = 1
        class Base(msgspec.Struct, tag=True, rename="camel", omit_defaults=True):
            first_name: str
            limit: typing.ClassVar[int] = 9
            kind: Kind = Kind.A
            def hello(self):
                return f"hello {self.first_name} {self.limit}"
        class Node(Base, kw_only=True, weakref=True, dict=True):
            next: typing.Optional["Node"] = None
            must: int
            many: list["Node"] = []
            made: dict = msgspec.field(default_factory=lambda: {"kind": Kind.A}, name="MADE")
            def __post_init__(self):
                self.length = len(self.hello())
            def hello(self):
                return super().hello() + "!"
        class Untagged(Node, tag=False):
            pass
        class Positive(msgspec.Struct, frozen=True, order=True, gc=False):
            x: typing.Annotated[int, msgspec.Meta(gt=0)]
        class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
            n: int
            positive: Positive = Positive(3)
        T = typing.TypeVar("T")
        class Box(msgspec.Struct, typing.Generic[T]):
            value: T
        KINDS = Base, Node, Untagged, Positive, Row, Box
        def described(kind):
            config = kind.__struct_config__
            options = {name: getattr(config, name) for name in dir(config) if name[0] != "_"}
            named = [(name, hint) for name, hint in sorted(typing.get_type_hints(kind).items())]
            return kind.__struct_fields__, kind.__struct_encode_fields__, kind.__match_args__, sorted(kind.__slots__), options, str(named)
        def used(text):
            node = Node(first_name="a", must=1, next=Untagged(first_name=text, must=2))
            node.free = 1
            back = msgspec.json.decode(msgspec.json.encode(node, enc_hook=str), type=Node)
            rows = msgspec.convert([[1, {"x": 5}], [2]], list[Row])
            return back, back.length, back.next.hello(), rows, Positive(1) < Positive(2), msgspec.convert({"value": 3}, Box[int])
        def refused(_):
            return msgspec.convert([1, {"x": -5}], Row)
        if __name__ == "__main__":
            with pool() as executor:
                print(*map(described, KINDS), *executor.map(described, KINDS), sep="\\n")
                print(executor.submit(used, "b").result())
                try:
                    executor.submit(refused, 1).result()
                except msgspec.ValidationError as error:
                    print(error)
                for value in (Base("a"), Node(first_name="a", must=1), Positive(1), Row(1), Box(2)):
                    back = executor.submit(max, [value], key=id).result()
                    print(type(back) is type(value), back == value, back)
    """,
    "nested classes and their text": """
        import inspect, os, pickle, sys
        class Outer:
            class Inner:
                class Deep:
                    x = 1
        def named():
            deep = pickle.loads(pickle.dumps(Outer.Inner.Deep()))
            return type(deep) is Outer.Inner.Deep, Outer.Inner.__qualname__, repr(Outer.Inner.Deep)
        def text():
            import __main__
            return inspect.getsource(Outer.Inner), os.path.basename(inspect.getfile(Outer)), os.path.basename(__main__.__file__)
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(text).result(), executor.submit(named).result())
    """,
    "objects with a name of their own": """
        import enum
        class Sentinel:
            known = {}
            def __new__(cls, name):
                return cls.known.setdefault(name, super().__new__(cls))
            def __init__(self, name):
                self.name = name
            def __reduce__(self):
                return self.name
        NOT_GIVEN, OTHER = Sentinel("NOT_GIVEN"), Sentinel("OTHER")
        class Name(str):
            def __reduce__(self):
                return "THE_NAME"
        THE_NAME = Name("the name")
        class Space:
            class Inner:
                def __reduce_ex__(self, protocol):
                    return "Space.inner"
            inner = Inner()
        @enum.global_enum
        class Level(enum.IntEnum):
            LOW = 1
            HIGH = 2
        class Settings:
            default = NOT_GIVEN
            def __init__(self):
                self.value = OTHER
        settings = Settings()
        ALL = NOT_GIVEN, OTHER, THE_NAME, Space.inner, Level.HIGH, settings.value, Settings.default
        def same(things, given=NOT_GIVEN):
            here = NOT_GIVEN, OTHER, THE_NAME, Space.inner, HIGH, settings.value, Settings.default
            return [one is other for one, other in zip(things, here)], given is NOT_GIVEN, THE_NAME + "!"
        def every():
            return NOT_GIVEN, OTHER, THE_NAME, Space.inner, HIGH, settings.value, Settings.default
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(same, ALL).result(), executor.submit(same, [OTHER]).result())
                print(same(executor.submit(every).result()), executor.submit(list, [{OTHER: HIGH}]).result()[0][OTHER] is HIGH)
    """,
    "classes that find their instances": """
        class Missing:
            only = None
            def __new__(cls):
                if cls.only is None:
                    cls.only = super().__new__(cls)
                return cls.only
        MISSING = Missing()
        class Single:
            kept = {}
            def __new__(cls):
                if cls not in cls.kept:
                    cls.kept[cls] = super().__new__(cls)
                return cls.kept[cls]
        class Config(Single):
            pass
        config = Config()
        config.values, config.itself = [1], config
        class Unit:
            units = {}
            def __new__(cls, name):
                if name not in cls.units:
                    made = cls.units[name] = super().__new__(cls)
                    made.name = name
                return cls.units[name]
            def __getnewargs__(self):
                return (self.name,)
        METRE = Unit("m")
        def missing(given=MISSING):
            return given is MISSING, Missing() is given
        def configured(given):
            return given is config is Config(), config.itself is config, config.values
        def measured(given):
            return given is METRE is Unit("m"), Unit("s").name, Unit("s") is Unit("s"), sorted(Unit.units)
        if __name__ == "__main__":
            with pool(1) as executor:
                print(executor.submit(missing).result(), executor.submit(missing, MISSING).result())
                print(executor.submit(Missing).result() is MISSING)
                print(executor.submit(configured, config).result(), executor.submit(Config).result() is config)
                print(executor.submit(measured, METRE).result(), executor.submit(Unit, "m").result() is METRE)
    """,
    "attributes that are looked up in other ways": """
        class Table(dict):
            __getattr__ = dict.__getitem__
            __setattr__ = dict.__setitem__
            def __call__(self, n):
                return self.base + n
        class Proxy:
            def __init__(self, about):
                self.about = about
            def __getattr__(self, name):
                if name.startswith("__") and name != "__qualname__":
                    raise AttributeError(name)
                return 5
            def __call__(self, n):
                return self.about, n
        class Unbound:
            def __getattr__(self, name):
                if name.startswith("__") and name != "__qualname__":
                    raise AttributeError(name)
                raise RuntimeError("outside of a request: " + name)
            def __call__(self, n):
                return type(self) is Unbound, n
        table, proxy, unbound = Table(base=10), Proxy("it"), Unbound()
        def use(given, other):
            return given.base, type(given) is Table, table.base, given, other.anything, type(unbound) is Unbound
        def fail(given):
            raise ValueError(given)
        def begin(given):
            global begun
            begun = given
        def begun_with():
            return begun.base
        if __name__ == "__main__":
            with pool(1, initializer=begin, initargs=(table,)) as executor:
                print(executor.submit(use, Table(base=1), proxy).result(), executor.submit(begun_with).result())
                print([executor.submit(called, 4).result() for called in (table, proxy, unbound)], executor.submit(type, unbound).result())
                try:
                    executor.submit(fail, table).result()
                except ValueError as error:
                    print(error.args, type(error.args[0]) is Table)
    """,
    "objects that look up or refuse attributes": """
        import importlib
        class Wrapper:
            def __init__(self, inner):
                self._inner = inner
            def __getattr__(self, name):
                return getattr(self._inner, name)
        class Fields:
            def __init__(self, **data):
                self.__dict__["data"] = data
            def __getattr__(self, name):
                return self.data[name]
            def __setattr__(self, name, value):
                self.data[name] = value
        class Api:
            def __init__(self, base):
                self.base = base
            def __getattr__(self, name):
                return lambda: self.base + "/" + name
        class Lazy:
            def __init__(self, name):
                self.__name = name
            def __getattr__(self, name):
                return getattr(importlib.import_module(self.__name), name)
        class Counted(dict):
            asked = ()
            def __getattribute__(self, name):
                counts = object.__getattribute__(self, "counts")
                counts[name] = counts.get(name, 0) + 1
                return object.__getattribute__(self, name)
            def __init__(self, **values):
                object.__setattr__(self, "counts", {})
                self.update(values)
        class Point:
            __slots__ = ("x", "y")
            def __init__(self, x, y):
                object.__setattr__(self, "x", x)
                object.__setattr__(self, "y", y)
            def __setattr__(self, name, value):
                raise TypeError("a point stays where it is")
        class Named(Point):
            def __init__(self, x, y, name):
                super().__init__(x, y)
                self.__dict__["name"] = name
        class Found:
            def __new__(cls, number):
                made = super().__new__(cls)
                made.__dict__["number"] = number
                return made
            def __getattr__(self, name):
                return self.number
        wrapper, fields, api, lazy, counted = Wrapper([3, 1]), Fields(x=1), Api("http:"), Lazy("colorsys"), Counted(a=1)
        point, named, found = Point(1, 2), Named(3, 4, "n"), Found(7)
        def use():
            fields.y = 2
            told = wrapper.index(1), wrapper._inner, fields.x, fields.data, api.users(), api.base, lazy.rgb_to_yiq(0, 0, 0)
            try:
                point.x = 5
            except TypeError as error:
                return *told, dict(counted), counted.counts["update"], point.x, point.y, named.x, named.name, found.anything, str(error)
        if __name__ == "__main__":
            with pool() as executor:
                print(executor.submit(use).result())
    """,
}
