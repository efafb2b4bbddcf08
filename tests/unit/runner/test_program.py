"""Pickles of a program between client and worker processes, on the oldest and the newest cloudpickle."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path

import pytest

from rmgr.runner.remote import with_sources
from tests.harness.programs import PROGRAMS
from tests.places import ROOT

OLDEST = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmgr" / "cloudpickle-3.0.0"
#: A pool of one process that speaks through pipes: what a Starter's worker does, without a Starter.
_POOL = """
import concurrent.futures, itertools, os, pickle, subprocess, sys, threading
class pool:
    def __init__(self, workers=2, initializer=None, initargs=()):
        from rmgr.runner import pickles, program
        self.program, self.pickles = program, pickles
        pickles.definitions().look_again()
        environment = dict(os.environ, PYTHONPATH=os.environ["WORKER_PATH"])
        words = [sys.executable, os.environ["WORKER"], program.mine().number]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        if initializer is not None:
            self.submit(initializer, *initargs).result()
    def submit(self, function, /, *args, **kwargs):
        from rmgr.client.pickling import dump_call, dump_function
        future = concurrent.futures.Future()
        message = dump_function(function)[0], dump_call(args, kwargs, "it")
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()
        good, data = pickle.load(self.process.stdout)
        load = self.pickles.loads
        future.result = (lambda: load(data)) if good else (lambda: raise_(load(data)))
        return future
    def map(self, function, *iterables):
        return [future.result() for future in [self.submit(function, *args) for args in zip(*iterables)]]
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
def raise_(error):
    raise error
"""
_WORKER = """
import os, pickle, sys, types
number, inside, outside = sys.argv[1], sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
from rmgr.runner import pickles
from rmgr.runner.python.calls import FunctionCache
from rmgr.runner.remote import dump_exception, dump_value
from rmgr.model.frames import BatchShape, TaskBatch
from hashlib import sha256
pickles.serve(number)
cache = FunctionCache()
while True:
    try:
        blob, payload = pickle.load(inside)
    except EOFError:
        break
    try:
        batch = TaskBatch(shape=BatchShape(), function=sha256(blob).hexdigest(), blob=blob, items=())
        function = cache.get(batch)
        args, kwargs = pickles.loads(payload) if payload else ((), {})
        answer = True, dump_value(function(*args, **kwargs))
    except BaseException as error:
        answer = False, dump_exception(error)[0]
    pickle.dump(answer, outside)
    outside.flush()
"""
_MIXED = [("oldest", "oldest"), ("oldest", "newest"), ("newest", "oldest")]


def path_of(which: str) -> str:
    """PYTHONPATH with that cloudpickle in front."""
    if which == "oldest" and not OLDEST.is_dir():
        why = f"cloudpickle 3.0.0 is not in {OLDEST}: deploy/lib/setup.sh ensure_oldest_cloudpickle"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return os.pathsep.join([*([str(OLDEST)] if which == "oldest" else []), str(ROOT)])


def run(text: str, directory: Path, client: str = "newest", worker: str = "newest") -> str:
    """What a program prints."""
    (directory / "worker.py").write_text(_WORKER)
    (directory / "main.py").write_text(_POOL + textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": path_of(client), "WORKER_PATH": path_of(worker), "WORKER": str(directory / "worker.py")}
    words = [sys.executable, "main.py"]
    done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


_AT_HOME = """
import sys, concurrent.futures, multiprocessing
def pool(workers=2, **options):
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"), **options)
"""


@cache
def at_home(name: str) -> str:
    """What a program prints with a pool of processes."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "main.py").write_text(_AT_HOME + textwrap.dedent(PROGRAMS[name]))
        return subprocess.run([sys.executable, "main.py"], cwd=directory, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_it_prints_at_home(tmp_path: Path, name: str) -> None:
    assert run(PROGRAMS[name], tmp_path) == at_home(name)


@pytest.mark.parametrize(("client", "worker"), _MIXED, ids="-".join)
@pytest.mark.parametrize(
    "name",
    [
        *("wrappers", "everything", "recursion and cycles", "decorators of all kinds", "types of typing"),
        *("mixins and hooks", "metaclasses that remember", "enums whose members know more", "classes that keep their own instances"),
        *("structs of msgspec", "objects with a name of their own", "classes that find their instances"),
    ],
)
def test_with_the_oldest_cloudpickle_too(tmp_path: Path, name: str, client: str, worker: str) -> None:
    assert run(PROGRAMS[name], tmp_path, client, worker) == at_home(name)


_CELLS = (
    "factor = 3\ndef times(n):\n    return n * factor\n",
    "def source(function):\n    return inspect.getsource(function)\nclass Kind:\n    def method(self):\n        return 1 / 0\n",
    "def lines():\n    try:\n        Kind().method()\n    except ArithmeticError:\n        return traceback.format_exc()\n",
)


def test_functions_of_a_notebook_bring_the_text_of_their_cell(tmp_path: Path) -> None:
    text = f"""
        import inspect, linecache, traceback
        for number, text in enumerate({_CELLS!r}):  # as IPython does it
            name = f"<ipython-input-{{number}}-0123456789ab>"
            linecache.cache[name] = len(text), None, text.splitlines(True), name
            exec(compile(text, name, "exec"), globals())
        with pool() as executor:
            print(executor.submit(source, times).result(), executor.submit(source, Kind.method).result(), executor.submit(lines).result())
    """
    told = run(text, tmp_path)
    assert told.startswith("def times(n):\n    return n * factor\n     def method(self):\n        return 1 / 0\n")
    assert "in method\n    return 1 / 0\n" in told


def test_an_exception_that_is_a_global_of_the_program_needs_no_constructor(tmp_path: Path) -> None:
    text = """
        class Refused(Exception):
            def __init__(self, who, *, code):
                super().__init__(f"{who} is refused")
                self.who, self.code = who, code
        NOBODY = Refused("nobody", code=7)
        def ask():
            return NOBODY.code, [NOBODY]
        def tell(error):
            return error.who, error.code
        with pool() as executor:
            code, (error,) = executor.submit(ask).result()
            print(code, error, error.code, executor.submit(tell, Refused("anna", code=3)).result())
    """
    assert run(text, tmp_path).strip() == "7 nobody is refused 7 ('anna', 3)"


def test_processes_that_a_task_spawns_do_not_run_the_programs_file(tmp_path: Path) -> None:
    text = """
        import multiprocessing, os
        print("runs as", __name__)
        factor = 3
        def leaf(x):
            return x * factor
        def task():
            with multiprocessing.get_context("spawn").Pool(1) as inner:
                return inner.map(leaf, [1, 2]), os.path.basename(__file__)
        with pool() as executor:
            os.remove(__file__)
            print(executor.submit(task).result())
    """
    assert run(text, tmp_path).splitlines() == ["runs as __main__", "([3, 6], 'main.py')"]


def test_what_is_bound_anew_is_seen_by_later_calls_and_a_change_in_place_is_not(tmp_path: Path) -> None:
    text = """
        import functools
        x = 1
        items = [1]
        def helper():
            return x
        def ask():
            return x, helper(), list(items)
        class Asker:
            def ask(self):
                return helper()
        with pool() as executor:
            seen = [executor.submit(ask).result()]
            x = 2
            items.append(2)
            seen.append(executor.submit(ask).result())
            def helper():
                return x * 10
            seen += [executor.submit(ask).result(), executor.submit(Asker().ask).result()]
            items = [3]
            x = 3
            asker = Asker()
            seen += [executor.submit(Asker.ask, asker).result(), executor.submit(functools.partial(ask)).result()]
            print(seen)
    """
    assert run(text, tmp_path).strip() == str([(1, 1, [1]), (2, 2, [1]), (2, 20, [1]), 20, 30, (3, 30, [3])])


def test_workers_stay_in_use_as_long_as_nothing_has_changed_in_place(tmp_path: Path) -> None:
    text = """
        class Config:
            debug = False
        left = right = Config()
        def lefts():
            return left.debug
        alias = lefts
        class Plain:
            pass
        def rights():
            return right.debug, alias(), Plain
        for n in range(3):
            with pool() as executor:
                executor.submit(lefts).result(), executor.submit(rights).result()
                print(executor.program.mine().workers["group"] == "")
            assert Plain.__annotations__ == {}
            if n == 1:
                right.debug = True
    """
    assert run(text, tmp_path).split() == ["True", "True", "False"]


def test_what_a_worker_has_set_stays_until_the_program_binds_it_and_a_retry_brings_nothing_back(tmp_path: Path) -> None:
    text = """
        from rmgr.client.pickling import dump_function
        x = "old"
        def set_x(value):
            global x
            x = value
        def get():
            return x
        with pool() as executor:
            first = dump_function(get)[0]
            executor.submit(set_x, "worker's").result()
            seen = [executor.submit(get).result()]
            x = "new"
            seen.append(executor.submit(get).result())
            pickle.dump((first, b""), executor.process.stdin)  # a retry of the first call
            executor.process.stdin.flush()
            seen.append(pickle.loads(pickle.load(executor.process.stdout)[1]))
            print(seen, x)
    """
    assert run(text, tmp_path).strip() == "[\"worker's\", 'new', 'new'] new"


def test_a_class_that_was_defined_anew_is_another_one_and_older_results_are_of_the_present_one(tmp_path: Path) -> None:
    text = """
        class Point:
            kind = "first"
        def make():
            return Point()
        with pool() as executor:
            one = executor.submit(make)
            class Point:
                kind = "second"
            two = executor.submit(make)
            print(one.result().kind, two.result().kind, type(one.result()) is Point)
    """
    assert run(text, tmp_path).strip() == "second second True"


def test_a_program_that_reads_what_another_one_wrote_gets_the_definitions_and_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    writer = """
        limit = 5
        class Point:
            def __init__(self, n):
                self.n = n
            def bounded(self):
                return min(self.n, limit)
        def make(n):
            return Point(n)
        with pool() as executor:
            executor.submit(make, 9).result()
            pickle.dump((make(1).n, executor.pickles.dumps([Point(9), make, lambda: limit])), open("../value", "wb"))
    """
    run(writer, tmp_path / "other")
    (tmp_path / "value").rename(tmp_path / "value.pickle")
    reader = """
        limit = 1
        class Point:
            pass
        _, data = pickle.load(open("value.pickle", "rb"))
        point, make, ask = pickle.loads(data)
        print(point.bounded(), type(point) is Point, limit, ask(), make(2).bounded(), type(make(3)) is type(point))
        with pool() as executor:
            print(executor.submit(type(point).bounded, point).result(), executor.submit(make, 7).result().bounded())
    """
    assert run(reader, tmp_path).splitlines() == ["5 False 1 5 2 True", "5 5"]


def test_local_classes_of_the_program_are_set_up_once(tmp_path: Path) -> None:
    text = """
        def outer():
            class Local:
                scale = 1
                def __init__(self, n):
                    self.n = n
            return Local
        Kind = outer()
        def make(kind, n):
            return kind(n)
        with pool() as executor:
            first = executor.submit(make, Kind, 1)
            Kind.scale = 7
            made = first.result()
            print(type(made) is Kind, Kind.scale, made.scale)
    """
    assert run(text, tmp_path).strip() == "True 7 7"


def test_a_global_that_cannot_travel_is_named_where_it_is_needed_and_left_out_elsewhere(tmp_path: Path) -> None:
    text = """
        import socket
        from rmgr.errors import PickleFailed
        connection = socket.socket()
        def direct():
            return helper()
        def helper():
            return connection.fileno()
        class Client:
            def ask(self):
                return connection.fileno()
            def n(self):
                return 7
        def use(client):
            return client.n()
        with pool() as executor:
            try:
                executor.submit(direct)
            except PickleFailed as error:
                print(error.message, "|", error.hint)
            print(executor.submit(use, Client()).result(), executor.submit(Client).result().n())
    """
    lines = run(text, tmp_path).splitlines()
    assert "connection, a socket of __main__, cannot be pickled: TypeError: cannot pickle 'socket' object" in lines[0]
    assert "the function direct" in lines[0]
    assert lines[1] == "7 7"


def test_a_class_that_cannot_travel_is_named_when_an_argument_is_of_it(tmp_path: Path) -> None:
    text = """
        import socket
        from rmgr.errors import PickleFailed
        class Client:
            connection = socket.socket()
        def use(client):
            return 7
        with pool() as executor:
            try:
                executor.submit(use, Client())
            except PickleFailed as error:
                print(error)
            print(executor.submit(use, 1).result())
    """
    first, second = run(text, tmp_path).splitlines()
    assert "Client, a type of __main__, cannot be pickled: TypeError: cannot pickle 'socket' object" in first
    assert second == "7"


def test_a_child_of_fork_is_a_program_of_its_own_that_reads_its_parents_results(tmp_path: Path) -> None:
    text = """
        class Point:
            pass
        def make():
            return Point()
        with pool() as executor:
            future, mine = executor.submit(make), executor.program.mine().number
            read, write = os.pipe()
            if os.fork() == 0:
                made = future.result()
                os.write(write, repr((type(made) is Point, executor.program.mine().number != mine)).encode())
                os._exit(0)
            os.wait()
            print(os.read(read, 100).decode(), executor.program.mine().number == mine)
    """
    assert run(text, tmp_path).strip() == "(True, True) True"


@pytest.mark.parametrize(("client", "worker"), [*_MIXED, ("newest", "newest")], ids="-".join)
def test_tracebacks_name_the_file_and_the_line_and_show_it(tmp_path: Path, client: str, worker: str) -> None:
    text = """
        import traceback
        def fail():
            raise ValueError("here")
        with pool() as executor:
            try:
                executor.submit(fail).result()
            except ValueError as error:
                print(str(error.__cause__))
    """
    told = run(text, tmp_path, client, worker)
    assert 'main.py", line ' in told
    assert 'in fail\n    raise ValueError("here")' in told


def test_a_traceback_of_a_node_without_the_source_gets_its_lines_here(tmp_path: Path) -> None:
    source = tmp_path / "here.py"
    source.write_text('def fail():\n    raise ValueError("here")\n')
    far = f"""Traceback (most recent call last):
  File "{source}", line 2, in fail
  File "/nowhere/else.py", line 2, in other
  File "{source}", line 1, in known
    def known_there():
  | File "{source}", line 2, in grouped
ValueError: here
"""
    lines = with_sources(far).splitlines()
    assert lines[2] == '    raise ValueError("here")'
    assert lines[3:6] == ['  File "/nowhere/else.py", line 2, in other', f'  File "{source}", line 1, in known', "    def known_there():"]
    assert lines[7].endswith('raise ValueError("here")')
    os.mkfifo(tmp_path / "pipe")
    pipe = f'  File "{tmp_path}/pipe", line 1, in f\n'
    assert with_sources(pipe) == pipe, "nothing but plain files is opened"
