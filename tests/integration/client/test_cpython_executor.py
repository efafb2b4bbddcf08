"""CPython's own tests of executors pass with rmgr.Executor on a real cluster.

From Debian's libpython3-testsuite, or any Python that has its `test` package. Left out, with the reason:
- tests of ThreadPoolExecutor's and ProcessPoolExecutor's private attributes (`_threads`, `_processes`, `_call_queue`):
  they are in classes of their own, which are not taken here;
- `FailingInitializerMixin` hands a multiprocessing queue to the initializer: queues are inherited by children of this
  process, and workers are children of a Starter. The same scenario is in test_executor.py.
Scripts that import the executor by its class name from `concurrent.futures` are run with `rmgr` in that place.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import rmgr
from tests.places import ROOT

if TYPE_CHECKING:
    from types import ModuleType

NAMES = {
    "ExecutorTest": "executor",
    "WaitTests": "test_wait",
    "AsCompletedTests": "test_as_completed",
    "ExecutorShutdownTest": "test_shutdown",
    "InitializerMixin": "test_init",
    "init": "test_init",
}
PACKAGE = "test.test_concurrent_futures"


def find(name: str) -> Any:
    """A class of CPython's tests: one module until 3.11, a package since 3.12."""
    whole = importlib.import_module(PACKAGE)
    part: ModuleType = whole if hasattr(whole, name) else importlib.import_module(f"{PACKAGE}.{NAMES.get(name, 'util')}")
    return getattr(part, name)


try:
    found = {name: find(name) for name in [*NAMES, "BaseTestCase"]}
except ImportError as missing:
    pytest.skip(f"CPython's tests are not installed here: {missing}", allow_module_level=True)
else:
    ExecutorTest, WaitTests, AsCompletedTests = found["ExecutorTest"], found["WaitTests"], found["AsCompletedTests"]
    ExecutorShutdownTest, InitializerMixin = found["ExecutorShutdownTest"], found["InitializerMixin"]
    BaseTestCase = found["BaseTestCase"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("threads")]


@pytest.fixture(scope="module")
def threads(live: Any) -> Iterator[None]:
    """The connection's threads exist before the first test: CPython's tear-down waits for all that a test leaves behind.

    It waits by collecting garbage three hundred times, and a run of thousands of tests has left a heap behind of which one
    collection takes 0.3 s: what was there before is not looked at.
    """
    del live
    with rmgr.Executor(1) as executor:
        executor.submit(print, "ready").add_done_callback(lambda future: None)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class FileEvent:
    """An event that calls on other nodes of this machine see: CPython's tests make it by a method of their mixin, since 3.13."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="rmgr-event-")

    def set(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # it is set already
            os.rmdir(self._directory)

    def wait(self, timeout: float = 60.0) -> bool:
        end_s = time.monotonic() + timeout
        while os.path.exists(self._directory) and time.monotonic() < end_s:
            time.sleep(0.01)
        return not os.path.exists(self._directory)


class RmgrMixin:
    """What CPython's ExecutorMixin does, for our executor."""

    worker_count = 5
    executor_type = rmgr.Executor
    executor_kwargs: dict[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self.executor = self.executor_type(max_workers=self.worker_count, **self.executor_kwargs)

    def create_event(self) -> FileEvent:
        return FileEvent()

    def tearDown(self) -> None:
        self.executor.shutdown(wait=True)
        self.executor = None
        super().tearDown()  # type: ignore[misc]


class UncappedMixin(RmgrMixin):
    """The same without a cap on slots."""

    def setUp(self) -> None:
        super(RmgrMixin, self).setUp()  # type: ignore[misc]
        self.executor = self.executor_type(**self.executor_kwargs)


class CappedExecutorTest(RmgrMixin, ExecutorTest, BaseTestCase):
    """Calls, map, timeouts, exceptions, references."""


class UncappedExecutorTest(UncappedMixin, ExecutorTest, BaseTestCase):
    """Calls, map, timeouts, exceptions, references."""


class CappedWaitTest(RmgrMixin, WaitTests, BaseTestCase):
    """concurrent.futures.wait."""


class UncappedAsCompletedTest(UncappedMixin, AsCompletedTests, BaseTestCase):
    """concurrent.futures.as_completed."""


class CappedAsCompletedTest(RmgrMixin, AsCompletedTests, BaseTestCase):
    """concurrent.futures.as_completed."""


class CappedInitializerTest(RmgrMixin, BaseTestCase):
    """Every worker is initialised before its first call."""

    worker_count = 2
    executor_kwargs = {"initializer": find("init"), "initargs": ("initialized",)}
    test_initializer = InitializerMixin.test_initializer


class ShutdownMixin(RmgrMixin):
    """Scripts run in an interpreter of their own get our executor where CPython's name theirs."""

    def script(self, text: str) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=60, env=environment, cwd="/", check=False)


def of_rmgr(original: Any) -> Any:
    """A test whose script imports from concurrent.futures, with the import replaced."""

    def run(self: Any) -> None:
        module = sys.modules[original.__module__]
        real = module.assert_python_ok

        def assert_python_ok(_flag: str, text: str, **_: Any) -> tuple[int, bytes, bytes]:
            ours = re.sub(r"from concurrent\.futures import \w+", "from rmgr import Executor", text)
            ended = self.script(ours)
            assert ended.returncode == 0, ended.stderr.decode()
            return ended.returncode, ended.stdout, ended.stderr

        module.assert_python_ok = assert_python_ok
        try:
            original(self)
        finally:
            module.assert_python_ok = real

    run.__name__ = original.__name__
    return run


class CappedShutdownTest(ShutdownMixin, ExecutorShutdownTest, BaseTestCase):
    """shutdown(wait, cancel_futures), and the end of the interpreter."""

    test_interpreter_shutdown = of_rmgr(ExecutorShutdownTest.test_interpreter_shutdown)
    test_submit_after_interpreter_shutdown = of_rmgr(ExecutorShutdownTest.test_submit_after_interpreter_shutdown)
    test_hang_gh83386 = of_rmgr(ExecutorShutdownTest.test_hang_gh83386)
