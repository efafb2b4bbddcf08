"""Local modules that workers lack: packed into zip files named by their content, uploaded once.

The same files give the same zip: sorted, without timestamps and caches.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from rmgr.client.values.content import put_once
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.errors import UsageError, ValueTooLarge
from rmgr.model.tasks.submission import MAX_MODULE_BYTES

_STAMP = (1980, 1, 1, 0, 0, 0)
_SKIPPED = frozenset({"__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def ship(store: Store, modules: Iterable[ModuleType | str], *, timeout_s: float = 30.0) -> tuple[str, ...]:
    """Uploads modules and packages (objects or names); returns their ids for `PythonEnvironment.modules`.

    Raises: UsageError for what cannot be shipped; ValueTooLarge; StoreUnavailable.
    """
    digests = []
    for module in modules:
        data = pack(module)
        digest = hashlib.sha256(data).hexdigest()
        if store.head(keys.module(digest), timeout_s=timeout_s) is None:
            put_once(store, keys.module(digest), data, timeout_s=timeout_s)
        digests.append(digest)
    return tuple(digests)


def pack(module: ModuleType | str) -> bytes:
    """One module or package as a zip file that can stand on sys.path."""
    if isinstance(module, str):
        try:
            module = importlib.import_module(module)
        except ImportError as error:
            raise UsageError(f"the module {module!r} cannot be shipped: it cannot be imported here: {error}") from error
    if not isinstance(module, ModuleType):
        raise UsageError(f"{module!r} is not a module", hint="modules=[mypackage], or its name")
    name = module.__name__
    parents = name.split(".")[:-1]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for depth in range(len(parents)):
            _add(archive, "/".join([*parents[: depth + 1], "__init__.py"]), b"")
        for path, inside in sorted(_files(module), key=lambda pair: pair[1]):
            if path.suffix in importlib.machinery.EXTENSION_SUFFIXES or path.name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
                raise UsageError(
                    f"the module {name} cannot be shipped: {path.name} is compiled",
                    hint="install it where the work runs, or point --python at an environment that has it",
                )
            _add(archive, "/".join([*parents, inside]), path.read_bytes())
    data = out.getvalue()
    if len(data) > MAX_MODULE_BYTES:
        raise ValueTooLarge(
            f"the module {name} has {len(data)} bytes packed; the limit is {MAX_MODULE_BYTES}", hint="install it where the work runs"
        )
    return data


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _STAMP)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def _files(module: ModuleType) -> Iterator[tuple[Path, str]]:
    """(file, its name below the module's parent)."""
    short = module.__name__.rpartition(".")[2]
    for entry in getattr(module, "__path__", None) or ():
        root = Path(entry)
        for path in root.rglob("*"):
            below = path.relative_to(root)
            if path.is_file() and not _SKIPPED.intersection(below.parts) and path.suffix != ".pyc":
                yield path, f"{short}/{below.as_posix()}"
    if not hasattr(module, "__path__"):
        source = getattr(module, "__file__", None)
        if not source or not source.endswith((".py", *importlib.machinery.EXTENSION_SUFFIXES)):
            raise UsageError(f"the module {module.__name__} cannot be shipped: it has no source file")
        yield Path(source), Path(source).name
