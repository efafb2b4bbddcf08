"""Opens a data store by its URL: the one place that knows the available adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rmgr.errors import UsageError

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Store

_EXAMPLES = "sqlite:PATH (one machine) or cassandra://host1,host2/keyspace (several)"


def open_store(url: str, *, create: bool = True, **options: Any) -> Store:
    """Opens the store that `url` names.

    Args:
        url: `sqlite:PATH` (also `sqlite:///PATH`); or `cassandra://host1,host2/keyspace?...` (`cassandra/url.py`), which
            connects in the background.
        create: make a SQLite file that does not exist; False for processes that only use a store.
        options: keyword arguments of the adapter.
    Raises: `UsageError` for a URL that no adapter understands; `StoreUnavailable` from the adapter.
    """
    scheme, colon, rest = url.partition(":")
    opener = _OPENERS.get(scheme)
    if not colon or opener is None:
        raise UsageError(f"{url!r} is not the URL of a store", hint=f"use {_EXAMPLES}")
    return opener(rest, create, options)


def check_url(url: str) -> str:
    """Returns `url` if `open_store` has an adapter for it and understands it, else raises `UsageError`; opens nothing."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in _OPENERS:
        raise UsageError(f"{url!r} is not the URL of a store", hint=f"use {_EXAMPLES}")
    if scheme == "cassandra":
        from rmgr.adapters.cassandra.url import parse_url

        parse_url(url)
    else:
        _sqlite_path(rest)
    return url


def _sqlite(rest: str, create: bool, options: dict[str, Any]) -> Store:
    from rmgr.adapters.sqlite.store import SqliteStore

    return SqliteStore(_sqlite_path(rest), create=create, **options)


def _sqlite_path(rest: str) -> str:
    path = unquote(rest.removeprefix("//")) if rest.startswith("///") else rest
    if not path or (rest.startswith("//") and not rest.startswith("///")):
        raise UsageError(f"'sqlite:{rest}' names no file", hint="sqlite:PATH, for example sqlite:/var/lib/rmgr/store.db")
    return path


def _cassandra(rest: str, _create: bool, options: dict[str, Any]) -> Store:
    from rmgr.adapters.cassandra.store import CassandraStore
    from rmgr.adapters.cassandra.url import parse_url

    return CassandraStore(parse_url(f"cassandra:{rest}"), **options)


_OPENERS: dict[str, Callable[[str, bool, dict[str, Any]], Store]] = {"sqlite": _sqlite, "cassandra": _cassandra}


def shown(url: str) -> dict[str, object]:
    """Returns a store's kind and place for people, without the options that name key files; passwords are never in a URL (`check_url`)."""
    kind = url.partition(":")[0]
    return {"kind": kind, "url": url.partition("?")[0] if kind == "cassandra" else url}
