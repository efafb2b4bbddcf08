"""structlog set-up of daemons: JSON lines when stderr is not a terminal, pretty on one; a closed list of field names.

One fact a line, past tense: `log.info("task_assigned", task_id=..., attempt=2, node=...)`. A field that is not in
`FIELDS` is a defect: tests raise on it, production renames it to `extra_<name>` and goes on.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from rmgr.config import LogConfig

#: Every field name that a log line may have. The same thing has the same name in code, log, CLI, znode and proto.
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
    }
)  # fmt: skip
_SECRETS = ("password", "passwd", "secret", "private_key", "credential")


def setup(config: LogConfig, role: str, **bound: Any) -> Any:
    """Configures logging of this process, once, and returns its logger (role, pid and `bound` on each line)."""
    pretty = config.format == "pretty" or (config.format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ) if pretty else structlog.processors.JSONRenderer(sort_keys=True)
    )
    level = getattr(logging, config.level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _closed_fields,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=_Sturdy()),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    return structlog.get_logger().bind(role=role, pid=os.getpid(), **bound)


def _closed_fields(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:  # noqa: ARG001 - structlog's signature
    for field in [name for name in event if name not in FIELDS]:
        if os.environ.get("RMGR_STRICT_LOG"):
            raise ValueError(f"log field {field!r} is not in rmgr.log.FIELDS")
        event[f"extra_{field}"] = event.pop(field)
    for field in list(event):
        if any(word in field.lower() for word in _SECRETS):
            event[field] = "***"
    return event


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
