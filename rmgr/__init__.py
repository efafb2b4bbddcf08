"""rmgr: a fault-tolerant resource manager for clusters whose parts keep failing.

    from rmgr import TaskQueue, Executor, connect
    rmgr.call("linsolve", A, b)                     # a function that a server offers
    from rmgr import checkpoint                     # in programs that run as placed jobs

Importing this module costs nothing: what it offers is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmgr.client.calls import call, call_async
    from rmgr.client.connection import Connection, connect
    from rmgr.client.executor import Executor
    from rmgr.client.futures import Future
    from rmgr.client.taskqueue import TaskQueue
    from rmgr.runner.current import current

__all__ = ["Connection", "Executor", "Future", "TaskQueue", "call", "call_async", "connect", "current"]

_WHERE = {
    "Connection": "rmgr.client.connection",
    "Executor": "rmgr.client.executor",
    "Future": "rmgr.client.futures",
    "TaskQueue": "rmgr.client.taskqueue",
    "call": "rmgr.client.calls",
    "call_async": "rmgr.client.calls",
    "connect": "rmgr.client.connection",
    "current": "rmgr.runner.current",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from rmgr.model.version import VERSION

        return VERSION
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'rmgr' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
