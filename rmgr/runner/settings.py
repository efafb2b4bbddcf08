"""What a program has set of its interpreter, on its way to its workers: digits of `decimal`, the recursion limit, what `logging` shows, ...

Only what differs from a fresh interpreter travels, and only settings of modules that the program has loaded.
Imported by clients and workers: standard library only.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: (name, value as JSON).
Setting = tuple[str, str]
#: Most bytes of what a record keeps of one setting, and of loggers.
_MOST_BYTES, _MOST_OF_LOGGERS = 2048, 1500
_STREAMS = ("stdout", "stderr")


def current() -> tuple[Setting, ...]:
    """Returns what this process has set. Cost: 20 us, and 1 us a logger."""
    found = []
    for name, kind in _KINDS.items():
        if kind.module in sys.modules:
            with contextlib.suppress(Exception):  # a program may have put anything in a module's place
                value = kind.read()
                if value != kind.usual and len(text := json.dumps(value)) <= _MOST_BYTES:
                    found.append((name, text))
    return tuple(found)


def apply(settings: tuple[Setting, ...]) -> None:
    """Sets this process likewise. What this node does not have is left: a locale, numpy, a setting of a newer client."""
    for name, value in settings:
        if name in _KINDS:
            with contextlib.suppress(Exception):
                _KINDS[name].set(json.loads(value))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A setting. module: without it the program cannot have set it. usual: what `read` returns if nobody has."""

    module: str
    read: Callable[[], Any]
    set: Callable[[Any], object]
    usual: Any


def _int_digits() -> int:
    return sys.get_int_max_str_digits()


def _decimal() -> list[object]:
    import decimal

    own = decimal.getcontext()
    traps = sorted(kind.__name__ for kind, is_trapped in own.traps.items() if is_trapped)
    return [own.prec, own.rounding, own.Emin, own.Emax, own.capitals, own.clamp, traps]


def _set_decimal(given: list[Any]) -> None:
    import decimal

    precision, rounding, least, most, capitals, clamp, traps = given
    trapped = [getattr(decimal, name) for name in traps]
    decimal.setcontext(decimal.Context(precision, rounding, least, most, capitals, clamp, [], trapped))


def _csv(limit: int | None = None) -> int:
    import csv

    return csv.field_size_limit() if limit is None else csv.field_size_limit(limit)


def _socket() -> float | None:
    import socket

    return socket.getdefaulttimeout()


def _set_socket(timeout: float) -> None:
    import socket

    socket.setdefaulttimeout(timeout)


def _locale() -> str:
    """Returns all categories, "" if only the one that Python sets itself differs from "C"."""
    import locale

    found = locale.setlocale(locale.LC_ALL)
    others = [part.partition("=")[2] for part in found.split(";") if not part.startswith("LC_CTYPE=")] if "=" in found else [found]
    return found if set(others) != {"C"} else ""


def _set_locale(given: str) -> None:
    import locale

    locale.setlocale(locale.LC_ALL, given)


_ERRORS_OF_NUMPY = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
_PRINTED_BY_NUMPY = {
    "edgeitems": 3,
    "threshold": 1000,
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "sign": "-",
    "floatmode": "maxprec",
}


def _numpy() -> list[dict[str, object]]:
    import numpy as np

    printed: dict[str, object] = {**np.get_printoptions()}
    return [dict(np.geterr()), {name: printed[name] for name in _PRINTED_BY_NUMPY}]


def _set_numpy(given: list[dict[str, Any]]) -> None:
    import numpy as np

    np.seterr(**given[0])
    np.set_printoptions(**given[1])


def _logging() -> list[Any]:
    """Returns the level up to which all are silent, whether loggers tell of warnings, and [name, level, whether it propagates, whether it
    is silent, handlers] of loggers that somebody has set, the root and then those that a record can hold."""
    import logging

    root = logging.getLogger()
    loggers = {"": root, **{name: one for name, one in root.manager.loggerDict.copy().items() if isinstance(one, logging.Logger)}}
    found: list[object] = []
    left = _MOST_OF_LOGGERS
    for name, one in loggers.items():
        handlers = [told for handler in one.handlers if (told := _handler(handler)) is not None]
        described = [name, one.level, one.propagate, one.disabled, handlers]
        if described[1:] != [logging.NOTSET if name else logging.WARNING, True, False, []]:
            size = len(json.dumps(described))
            if size <= left:
                left -= size
                found.append(described)
    return [root.manager.disable, logging._warnings_showwarning is not None, found]  # type: ignore[attr-defined] # noqa: SLF001 - listed


def _handler(handler: Any) -> list[object] | None:
    """Returns [stream, level, format, format of dates, style] of a handler that writes to a stream of the process, None for others: a file
    is the program's own. Formatters and styles of others' classes become the usual one."""
    import logging

    if not isinstance(handler, logging.StreamHandler) or handler.filters:
        return None
    stream = next((name for name in _STREAMS if handler.stream in (getattr(sys, name), getattr(sys, f"__{name}__"))), None)
    if stream is None or handler.stream is None:
        return None
    given: Any = handler.formatter
    if given is None:
        return [stream, handler.level, None, None, "%"]
    styles: Any = logging._STYLES  # noqa: SLF001 - it has no other name
    kind = type(given._style) if type(given) is logging.Formatter else None  # noqa: SLF001 - as above
    style = next((sign for sign, (known, _) in styles.items() if known is kind), "")
    if not style:
        return [stream, handler.level, logging.BASIC_FORMAT, None, "%"]
    return [stream, handler.level, given._fmt, given.datefmt, style]  # noqa: SLF001 - as above


def _set_logging(given: list[Any]) -> None:
    import logging

    silent, tells_warnings, loggers = given
    logging.disable(silent)
    logging.captureWarnings(tells_warnings)
    for name, level, propagates, is_silent, handlers in loggers:
        one = logging.getLogger(name)
        one.setLevel(level)
        one.propagate, one.disabled = propagates, is_silent
        for stream, threshold, text, dates, style in handlers:
            handler = logging.StreamHandler(getattr(sys, stream))
            handler.setLevel(threshold)
            if text is not None:
                handler.setFormatter(logging.Formatter(text, dates, style))
            one.addHandler(handler)


_KINDS = {
    "recursion": _Kind("sys", sys.getrecursionlimit, sys.setrecursionlimit, 1000),
    "int digits": _Kind("sys", _int_digits, sys.set_int_max_str_digits, sys.int_info.default_max_str_digits),
    "decimal": _Kind(
        "decimal",
        _decimal,
        _set_decimal,
        [28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0, ["DivisionByZero", "InvalidOperation", "Overflow"]],
    ),
    "csv": _Kind("csv", _csv, _csv, 128 * 1024),
    "socket": _Kind("socket", _socket, _set_socket, None),
    "locale": _Kind("locale", _locale, _set_locale, ""),
    "numpy": _Kind("numpy", _numpy, _set_numpy, [_ERRORS_OF_NUMPY, _PRINTED_BY_NUMPY]),
    "logging": _Kind("logging", _logging, _set_logging, [0, False, []]),
}
