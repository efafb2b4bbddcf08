"""Sets up the interpreter of a daemon: modules that it never uses are not loaded (nor by commands), garbage collections are rare and short.

Modules that others import and a daemon never uses are loaded when an attribute of theirs is used, which is never (`defer`). The gain: a
daemon's private memory is 36.3 MiB with it, 42.1 without, and 45.1 without it and without `rmgr.log`'s way around rich.

A daemon holds some hundred thousand objects as long as it lives, and many small ones for a moment. CPython's defaults scan all of them now
and then: pauses of up to 0.8 s in a busy leader with 2,000 submissions (`set_for_daemon`).
"""

from __future__ import annotations

import gc
import importlib
import logging
import resource
import sys
import types
from importlib.machinery import PathFinder
from typing import Any

from rmgr.errors import ConfigError

#: Allocations before a young collection, young ones before a middle one, middle ones before a full one.
_THRESHOLDS = (20_000, 20, 50)

#: A daemon with fewer descriptors would run out of them with its first work or clients.
LEAST_FILES = 128

#: 3.5 MiB of a daemon: the event loop, which structlog (26.1) and gRPC (1.71) import for their asynchronous halves, and those halves.
UNUSED = (
    "asyncio",
    "grpc.aio",
    "grpc_health.v1._async",
    "prometheus_client",
    "google.protobuf.internal.python_message",
    "google.protobuf.text_format",
    "tarfile",
    "locale",
    "importlib.metadata",
)


def defer() -> None:
    """Makes later imports of `UNUSED` load nothing. Modules that are loaded already, or not installed, are left alone."""
    if sys.version_info >= (3, 12):
        logging.logAsyncioTasks = False  # otherwise each record asks the event loop for its task, and so loads it
    for name in UNUSED:
        found = None if name in sys.modules else _spec(name)
        if found is not None:
            module = _Deferred(name)
            module.__spec__ = found
            module.__file__ = found.origin
            module.__package__ = found.parent
            if found.submodule_search_locations is not None:
                module.__path__ = found.submodule_search_locations
            sys.modules[name] = module
            parent, _, last = name.rpartition(".")
            if parent in sys.modules:  # otherwise `from parent import last` finds it nevertheless
                setattr(sys.modules[parent], last, module)


class _Deferred(types.ModuleType):
    """Stands for a module until an attribute of it is used; submodules may be imported before."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (path := self.__dict__.get("__path__")) is not None and PathFinder.find_spec(f"{self.__name__}.{name}", path) is not None:
            return importlib.import_module(f"{self.__name__}.{name}")  # a submodule, which does not need the whole
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of a module without loading the packages around it."""
    path, found = None, None
    for end in range(1, len(name.split(".")) + 1):
        found = PathFinder.find_spec(".".join(name.split(".")[:end]), path)
        if found is None:
            return None
        path = found.submodule_search_locations
    return found


def check_descriptors() -> None:
    """Raises ConfigError if this process may have too few open files and connections for a daemon."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < LEAST_FILES:
        how = "raise the limit: ulimit -n 65536, or LimitNOFILE= of its unit"
        raise ConfigError(f"a daemon needs at least {LEAST_FILES} file descriptors, and may have {files} here", hint=how)


def set_for_daemon() -> None:
    """Sets up garbage collection, once, when everything is imported and nothing is served yet. Cost: about 50 ms."""
    from rmgr.runner.host.kernel import trim_memory  # processes that only defer do not need it

    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    trim_memory()
