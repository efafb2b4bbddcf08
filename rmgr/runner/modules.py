"""Modules of this process: which of them no other process can import, where a program's are found, and whether a file was edited.

Imported by clients and workers: standard library and cloudpickle only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import types
from typing import Any

from cloudpickle import cloudpickle as cp

MAIN = "__main__"
#: What multiprocessing and joblib call the same module in processes that they spawn; a program that imports joblib has both, too.
SPAWNED_MAIN = "__mp_main__"
_STANDARD = os.path.dirname(os.__file__) + os.sep
#: Modules with the loaders of Python itself.
_IMPORT_SYSTEM = frozenset({"_frozen_importlib", "_frozen_importlib_external", "zipimport", "builtins"})
_looked: tuple[int, int] = (0, 0)
_found: tuple[str, ...] = (MAIN,)
_encoded: tuple[bytes, ...] = (MAIN.encode(), SPAWNED_MAIN.encode())


def unimportable() -> tuple[str, ...]:
    """Returns modules of this process that no other process can import. Cost: 0.1 us if none was loaded since the last call."""
    global _looked, _found, _encoded
    now = len(sys.modules), len(cp._PICKLE_BY_VALUE_MODULES)  # noqa: SLF001 - those that a user has told cloudpickle
    if now != _looked:
        by_value = set(cp._PICKLE_BY_VALUE_MODULES)  # noqa: SLF001 - as above
        found = [name for name, module in list(sys.modules.items()) if name in by_value or _is_private(name, module)]
        others = [name for name in found if name not in {MAIN, SPAWNED_MAIN}]
        _found = (MAIN, *others)
        _encoded = tuple(map(str.encode, (*_found, SPAWNED_MAIN)))
        _looked = now
    return _found


def main_or(name: str) -> str:
    """Returns the name under which a module travels."""
    return MAIN if name == SPAWNED_MAIN else name


def unimportable_encoded() -> tuple[bytes, ...]:
    """Returns the same names as they stand in a pickle, with both of `__main__`."""
    unimportable()
    return _encoded


@functools.lru_cache(maxsize=4096)
def _is_private_file(name: str, origin: str) -> bool:
    try:
        found = next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, None)) is not None), None)
    except Exception:  # noqa: BLE001 - finders of others
        return False
    return found is None or found.origin is None or not _same_file(found.origin, origin)


def _same_file(one: str, other: str) -> bool:
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False


def _is_private(name: str, module: object) -> bool:
    """Returns whether a module exists only in this process: made at run time, loaded from a file that no import finds or by an importer of
    the program, rewritten by pytest."""
    if not isinstance(module, types.ModuleType) or name in sys.builtin_module_names:
        return False
    spec = _attribute(module, "__spec__")
    if spec is None:
        file = _attribute(module, "__file__")
        if "." in name:
            parent = name.rpartition(".")[0]
            return file is None and _attribute(module, "__name__") == name and _is_private(parent, sys.modules.get(parent))
        return _attribute(module, "__name__") == name if file is None else _is_private_file(name, str(file))
    loader = spec.loader if isinstance(spec.loader, type) else type(spec.loader)
    if loader.__module__ not in _IMPORT_SYSTEM and (loader.__module__.startswith("_pytest.") or _is_of_program(loader)):
        return True
    if "." in name or loader.__name__ != "SourceFileLoader" or not isinstance(spec.origin, str):
        return False
    return _is_private_file(name, spec.origin)


def namespace_of(module: types.ModuleType) -> dict[str, Any]:
    """Returns the globals of a module, past its own `__getattribute__`; nothing for an object that only claims to be one."""
    return _attribute(module, "__dict__") or {}


def _attribute(module: types.ModuleType, name: str) -> Any:
    """Returns an attribute of a module, None if it has none; past its own `__getattr__`, and a lazy module is not loaded for it."""
    try:
        return object.__getattribute__(module, name)
    except AttributeError:
        return None


def _is_of_program(loader: type) -> bool:
    """Returns whether the program defines this kind of loader: what it has loaded is found where the program's importer was set up."""
    home = sys.modules.get(loader.__module__)
    file = _attribute(home, "__file__") if isinstance(home, types.ModuleType) else None
    return loader.__module__ == MAIN or (isinstance(file, str) and not file.startswith(_STANDARD) and not _is_installed(file))


def being_imported(name: str) -> str | None:
    """Returns the module of that name, or the package that holds it, if its import has begun and not ended."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = sys.modules.get(within := ".".join(parts[:end]))
        if isinstance(module, types.ModuleType) and getattr(_attribute(module, "__spec__"), "_initializing", False):
            return within
    return None


def find_modules_in(directories: tuple[str, ...]) -> None:
    """Adds directories of the program to `sys.path` where they exist; those in front of "" come before what is installed here."""
    fresh = [path for path in directories if not path or (path not in sys.path and os.path.exists(path))]
    border = fresh.index("") if "" in fresh else 0
    at = next((at for at, path in enumerate(sys.path) if _is_installed(path)), len(sys.path))
    sys.path[at:at] = fresh[:border]
    sys.path.extend(filter(None, fresh[border:]))


#: Files of modules as they were found first: (mtime, size, inode).
_found_files: dict[str, tuple[int, int, int]] = {}


def is_edited(since_ns: int) -> bool:
    """Returns whether a module's file has changed since then. Cost: 1 us for each module that is not installed.

    A file found for the first time counts as edited if its time is later than that, unless it lies in the future: that tells nothing.
    """
    now_ns = time.time_ns()
    for module in list(sys.modules.values()):
        file = _attribute(module, "__file__")
        if isinstance(file, str) and not file.startswith(_STANDARD) and not _is_installed(file):
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(file)
                found = (status.st_mtime_ns, status.st_size, status.st_ino)
                if found != _found_files.setdefault(file, found) or since_ns < status.st_mtime_ns <= now_ns:
                    return True
    return False


def _is_installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path
