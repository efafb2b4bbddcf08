"""`cassandra://host1,host2[:port]/keyspace?option=value&...`: a store URL, parsed strictly, and the place of its password.

`rmgr status` shows the URL, so it holds no secret: the password comes from a file that only its owner can read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl

from rmgr.errors import ConfigError, UsageError

PASSWORD_FILE_VARIABLE = "RMGR_STORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable
CONSISTENCIES = ("LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL", "LOCAL_ONE", "ONE")
DEFAULT_PORT = 9042
_EXAMPLE = "cassandra://host1,host2,host3/rmgr?replication_factor=3"
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}\Z")
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|\[[0-9A-Fa-f:.%]+\]\Z")
_DATACENTER = re.compile(r"[\w.-]{1,200}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraTarget:
    """Parts of a store URL. Times in seconds; `url` holds no secret."""

    url: str
    hosts: tuple[str, ...]
    port: int = DEFAULT_PORT
    keyspace: str = "rmgr"
    replication_factor: int = 3  #: of a keyspace made by `rmgr admin init-store`
    local_dc: str = "datacenter1"
    consistency: str = "LOCAL_QUORUM"
    user: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    check_hostname: bool = True
    request_timeout_s: float = 2.0  #: of one request; the call has a longer deadline of its own
    connect_timeout_s: float = 5.0

    @property
    def where(self) -> str:
        """Hosts and port for messages: `host1, host2 (port 9042)`."""
        return f"{', '.join(self.hosts)} (port {self.port})"

    def password(self) -> str:
        """Returns the password, read at each connection, so that a new one takes effect.

        Raises: `ConfigError` if the file cannot be read, or can be read by others than its owner.
        """
        path = Path(self.password_file)
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(
                f"the password file of the store, {path}, cannot be read: {reason}", hint=f"one line, chmod 600 {path}"
            ) from None
        if mode & 0o077:
            raise ConfigError(f"the password file of the store, {path}, has mode {mode:04o}: others can read it", hint=f"chmod 600 {path}")
        return text.rstrip("\r\n")


def parse_url(url: str, *, environ: Mapping[str, str] = os.environ) -> CassandraTarget:
    """Parses a URL. Raises: `UsageError`, which names the mistake and never repeats a secret."""
    rest = url.removeprefix("cassandra:")
    if not rest.startswith("//"):
        raise UsageError("the URL of a Cassandra store begins with cassandra://", hint=f"for example {_EXAMPLE}")
    authority, _, query = rest[2:].partition("?")
    hosts_text, _, keyspace = authority.partition("/")
    if "@" in hosts_text:
        raise UsageError(
            "the URL of a store is shown in many places and cannot hold a user or password before an @",
            hint=f"say ?user=NAME&password_file=FILE (mode 0600), or set {PASSWORD_FILE_VARIABLE}=FILE",
        )
    hosts, port = _hosts(hosts_text)
    options = _options(query)
    if not _KEYSPACE.match(keyspace):
        what = f"{keyspace!r} is not the name of a keyspace" if keyspace else "the URL of the store names no keyspace"
        raise UsageError(what, hint=f"lower-case letters, digits and _, at most 48, behind the hosts: {_EXAMPLE}")
    target = CassandraTarget(
        url=url,
        hosts=hosts,
        port=port,
        keyspace=keyspace,
        replication_factor=_whole(options, "replication_factor", 3, 1, 100),
        local_dc=_datacenter(options),
        consistency=_consistency(options),
        user=options.get("user", ""),
        password_file=options.get("password_file", ""),
        tls=_flag(options, "tls", default=any(options.get(name) for name in ("ca", "cert", "key"))),
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
        check_hostname=_flag(options, "check_hostname", default=True),
        request_timeout_s=_seconds(options, "request_timeout", 2.0),
        connect_timeout_s=_seconds(options, "connect_timeout", 5.0),
    )
    return _with_password_file(target, environ)


def _with_password_file(target: CassandraTarget, environ: Mapping[str, str]) -> CassandraTarget:
    if target.password_file and not target.user:
        raise UsageError("the URL of the store names a password_file and no user", hint="add user=NAME")
    if target.user and not target.password_file:
        target = replace(target, password_file=environ.get(PASSWORD_FILE_VARIABLE, ""))
        if not target.password_file:
            hint = f"add password_file=FILE (mode 0600), or set {PASSWORD_FILE_VARIABLE}=FILE"
            raise UsageError(f"no password file for user {target.user!r} of the store", hint=hint)
    if bool(target.cert) != bool(target.key):
        raise UsageError("cert and key of the store's URL belong together, and one is missing", hint="cert=FILE&key=FILE")
    if (target.ca or target.cert) and not target.tls:
        raise UsageError("the store's URL names certificates and says tls=0", hint="leave tls=0 out")
    return target


def _hosts(text: str) -> tuple[tuple[str, ...], int]:
    hosts, ports = [], set()
    for part in text.split(","):
        host, port = part, ""
        if ":" in part and not part.endswith("]"):
            host, _, port = part.rpartition(":")
        if not _HOST.match(host):
            what = f"{part!r} is not the name of a Cassandra host" if part else "the URL of the store names no host"
            raise UsageError(what, hint=f"host1,host2[:port], for example {_EXAMPLE}")
        if port or part.endswith(":"):
            if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
                raise UsageError(f"{port!r} is not a port", hint=f"for example {_EXAMPLE}")
            ports.add(int(port))
        hosts.append(host.strip("[]"))
    if len(ports) > 1:
        raise UsageError("the hosts of a Cassandra store share one port", hint="name it once, behind the last host")
    return tuple(dict.fromkeys(hosts)), ports.pop() if ports else DEFAULT_PORT


_KNOWN = (
    "replication_factor", "local_dc", "consistency", "user", "password_file", "tls", "ca", "cert", "key", "check_hostname",
    "request_timeout", "connect_timeout",
)  # fmt: skip


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise UsageError("the options of the store's URL are name=value pairs joined by &", hint=f"for example {_EXAMPLE}") from None
    for name, value in pairs:
        if name in {"password", "passwd", "pwd"}:
            hint = f"put it into a file of mode 0600: password_file=FILE, or {PASSWORD_FILE_VARIABLE}=FILE"
            raise UsageError("the URL of a store is shown in many places and cannot hold a password", hint=hint)
        if name not in _KNOWN:
            raise UsageError(f"the URL of a Cassandra store has no option {name!r}", hint=f"known: {', '.join(_KNOWN)}")
        if name in found:
            raise UsageError(f"the option {name!r} stands twice in the URL of the store")
        if not value:
            raise UsageError(f"the option {name!r} in the URL of the store has no value")
        found[name] = value
    return found


def _whole(options: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise UsageError(f"{name}={text} of the store's URL is not a number from {least} to {most}")
    return int(text)


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name, "")
    if not text:
        return default
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 60:
        raise UsageError(f"{name}={text} of the store's URL is not a time from 0.1 to 60 seconds")
    return value


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in {"0", "1", "true", "false", "yes", "no"}:
        raise UsageError(f"{name}={text} of the store's URL is neither 1 nor 0")
    return text.lower() in {"1", "true", "yes"}


def _consistency(options: Mapping[str, str]) -> str:
    text = options.get("consistency", "LOCAL_QUORUM").upper()
    if text not in CONSISTENCIES:
        raise UsageError(f"consistency={text} of the store's URL is unknown", hint=f"one of {', '.join(CONSISTENCIES)}")
    return text


def _datacenter(options: Mapping[str, str]) -> str:
    text = options.get("local_dc", "datacenter1")
    if not _DATACENTER.match(text):
        raise UsageError(f"local_dc={text!r} of the store's URL is not the name of a data centre", hint="nodetool status shows it")
    return text
