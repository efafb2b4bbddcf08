"""structlog set-up of daemons: JSON lines if stderr is no terminal, pretty on one; closed field names, no secrets, an audit, no storms.

One fact a line, past tense: `log.info("task_assigned", task_id=..., attempt=2, node=...)`. A field that is not in `FIELDS` is a defect:
tests raise on it, production renames it to `extra_<name>` and goes on.

A line may be written once for each failed attempt, however many fail: of one event a daemon writes `TROUBLES` or `FACTS` lines a minute,
and one line at its end says how many it left out. Lines of the audit have bounds of their own, debug lines none.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, TextIO, cast

from rmgr.audit_book import AuditBook
from rmgr.config import LogConfig
from rmgr.model.queue import UserLimits
from rmgr.runtime.interpreter import defer
from rmgr.runtime.machine import Log

defer()  # daemons import this module before those that would load them
# structlog (26.1) imports rich if installed, for tracebacks in colours: 7 MiB and 50 modules in every daemon, which draws nothing.
# tests/unit/runtime/test_log.py::test_daemons_log_without_rich would fail without this.
_HAD_RICH = "rich" in sys.modules
if not _HAD_RICH:
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402

if not _HAD_RICH:
    del sys.modules["rich"]

#: All field names that log lines may have. The same thing has the same name in code, log, CLI, znode and proto.
FIELDS = frozenset(
    {
        "event", "level", "timestamp", "logger", "exception", "exc_info", "stack_info",
        "role", "pid", "host", "node", "nodes", "queue", "partition", "user", "name", "version",
        "submission", "task_id", "block", "first", "count", "attempt", "incarnation", "epoch", "zxid", "session_id",
        "state", "reason", "detail", "error", "code", "exit_code", "signal", "why", "policy", "cause",
        "op", "path", "outcome", "kind", "token", "order", "cluster_id", "leader", "candidate", "guid",
        "endpoint", "address", "port", "directory", "file", "size_bytes", "limit", "value", "key",
        "seconds", "deadline_s", "delay_s", "timeout_s", "elapsed_s", "rate", "total", "pending", "running", "done", "failed",
        "worker", "slot", "cores", "memory_bytes", "stream", "part", "thread", "attempts", "store", "zookeeper", "hint",
        "who", "what", "target", "allowed",
    }
)  # fmt: skip
#: Refusals of one user that are logged in a minute; the settings may change the number.
BOOK = AuditBook(UserLimits().audit_lines)
#: Lines of one event in a minute: warnings and errors; facts, which tell of work that was done.
TROUBLES, FACTS = AuditBook(60), AuditBook(600)
#: Lines of libraries that one place of their code writes in a minute.
LIBRARIES = AuditBook(20)
#: Events that `_bounded` lets pass: nothing audited is lost.
_UNBOUNDED = frozenset({"audit", "audit_repeats", "lines_left_out"})
_AUDIT_CHARS = 400
SECRETS = ("password", "passwd", "secret", "private_key", "credential")
_HIDDEN = "***"
#: Patterns of secrets, wherever they stand: private keys, join tokens, passwords in addresses and assignments.
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), _HIDDEN),
    (re.compile(r"\brmgr1\.[A-Za-z0-9_-]{16,}"), f"rmgr1.{_HIDDEN}"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@", re.IGNORECASE), rf"\1:{_HIDDEN}@"),
    (re.compile(r"((?:password|passwd|secret|private_key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
)
_is_suspect = re.compile(r"private[ _]key|rmgr1\.|://|passw|secret").search


def setup(config: LogConfig, role: str, **bound: object) -> Log:
    """Configures logging of this process, once, and returns its logger (role, pid and `bound` on each line)."""
    pretty = config.format == "pretty" or (config.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ) if pretty else structlog.processors.JSONRenderer(sort_keys=True)
    )
    level = getattr(logging, config.level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            partial(_bounded, lambda what, more: log.warning("lines_left_out", what=what, count=more)),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _closed_fields,
            _no_secrets,
            *((_no_controls,) if pretty else ()),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Sturdy())),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Redacting("%(levelname)s %(name)s: %(message)s"))
        handler.addFilter(_admits)
    log: Log = structlog.get_logger().bind(role=role, pid=os.getpid(), **bound)
    return log


def _bounded(left_out: Callable[[str, int], object], logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ARG001 - structlog's signature
    name = str(event["event"])
    if name in _UNBOUNDED or method == "debug":
        return event
    if (FACTS if method == "info" else TROUBLES).admits(name, lambda more: left_out(name, more)):
        return event
    raise structlog.DropEvent


def _closed_fields(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ARG001 - structlog's signature
    for field in [name for name in event if name not in FIELDS]:
        if os.environ.get("RMGR_STRICT_LOG"):
            raise ValueError(f"log field {field!r} is not in rmgr.log.FIELDS")
        event[f"extra_{field}"] = event.pop(field)
    return event


def _no_secrets(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ARG001 - structlog's signature
    for field, value in list(event.items()):
        if field not in FIELDS and any(word in field.lower() for word in SECRETS):  # no known field holds a secret
            event[field] = _HIDDEN
        elif type(value) is str:
            if _is_suspect(value.casefold()):
                event[field] = redacted(value)
        elif not isinstance(value, (int, float, type(None))):
            event[field] = redacted(value)
    return event


def _no_controls(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keeps users' names and words from steering the terminal of the person who runs the daemon. (JSON escapes them anyway.)"""
    for field, value in list(event.items()):
        if isinstance(value, str) and not value.isprintable():
            shown = (char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii") for char in value)
            event[field] = "".join(shown)
    return event


def redacted(value: Any) -> Any:
    """Returns `value` with apparent secrets hidden, in texts and in containers of texts. Cost: about 1 us a harmless text."""
    if isinstance(value, str):
        if not _is_suspect(value.casefold()):
            return value
        for pattern, instead in _PATTERNS:
            value = pattern.sub(instead, value)
        return value
    if isinstance(value, Mapping):
        return {name: _HIDDEN if any(word in str(name).lower() for word in SECRETS) else redacted(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redacted(one) for one in value]
    return value


def audit(log: Log, *, who: str, role: str, what: str, target: str = "", allowed: bool, why: str = "") -> None:
    """Logs an operation that only some users may do, or a refused one.

    Args:
        who, role: the user who wanted it, "" if unknown. what: run, commit, read, cancel, drain, settings, join, ...
        target: the submission, node, row, method. why: the rule by which it was allowed or refused.

    Refusals of one user beyond `BOOK.lines` a minute are counted, and reported in one line. Long texts, which come from users, are cut.
    """
    line = {
        "who": who[:_AUDIT_CHARS],
        "role": role,
        "what": what[:_AUDIT_CHARS],
        "target": target[:_AUDIT_CHARS],
        "why": why[:_AUDIT_CHARS],
    }
    if allowed:
        log.info("audit", allowed=True, **line)
    elif BOOK.admits(who, lambda more: log.warning("audit_repeats", allowed=False, count=more, **line)):
        log.warning("audit", allowed=False, **line)


def _admits(record: logging.LogRecord) -> bool:
    """Whether a line of a library is written. A client may cause them, each with a traceback: of one place there are few a minute."""
    place = f"{record.name}:{record.lineno}"
    return LIBRARIES.admits(place, lambda more: _Sturdy().write(f"{record.levelname} {place}: {more} more like this\n"))


class _Redacting(logging.Formatter):
    """Formats messages of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        return str(redacted(super().format(record)))


class _Sturdy:
    """stderr whose failure (disk full, closed pipe) never stops a daemon."""

    def write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
        except (OSError, ValueError):
            return

    def flush(self) -> None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            return
