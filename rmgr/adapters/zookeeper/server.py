"""One server of an ensemble: a connection to it, its answers to four-letter words, and the reasons why it gives no session.

Needs no session and no rights: TCP (TLS where the cluster uses it). `explain` turns a look at all servers into one error.

`glance` reads a few znodes in a session of two round trips. A command that only asks for the leader would spend more time on kazoo and its
threads than on everything else. Anything unusual (no server answers at once, no right to read, an unknown reply) raises `GlanceFailed`, and
the caller takes the long way, which waits and explains. The request to close the session travels in the same write as the reads, so
`glance` waits for the answers alone. It sets no watches and writes nothing.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rmgr.errors import ConfigError, CoordinationUnavailable, NotConnected, RmgrError, Unavailable
from rmgr.model.units import format_duration

_STANDARD_PORT = 2181


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkSecurity:
    """Protection of a connection; the default is plain TCP without identity.

    Args: `tls` with the three files (PEM); `auth_scheme`/`auth_credential` as ZooKeeper's addauth ("digest", "user:password").
    """

    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    auth_scheme: str = ""
    auth_credential: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context. Reads the files each time: certificates are renewed while daemons run.

        With a `ca_file` no other authority is trusted, not even those of the operating system.
        Raises: ConfigError naming the file that is missing or unusable.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the server's certificate, and its host name
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        at = self.ca_file
        try:
            if self.ca_file:
                context.load_verify_locations(self.ca_file)
            else:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            at = f"{self.cert_file}, {self.key_file}"
            if self.cert_file and self.key_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:  # ssl.SSLError is an OSError
            raise ConfigError(f"{at}: {error.strerror or error}", hint="[security] dir must name a complete bundle: rmgr doctor") from error
        return context


def open_socket(address: tuple[str, int], hostname: str, timeout_s: float, security: ZkSecurity) -> socket.socket:
    """Returns a connection to `address`, whose certificate names `hostname`. Raises: OSError (ssl.SSLError, TimeoutError), ConfigError."""
    made = socket.create_connection(address, timeout_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return security.context().wrap_socket(made, server_hostname=hostname) if security.tls else made
    except BaseException:
        made.close()
        raise


def four_letter(host: str, port: int, word: str, *, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None) -> str:
    """Returns the server's answer to a four-letter word (`ruok`, `srvr`, `mntr`) that its whitelist permits, over TCP, or over `tls`.

    Raises: Unavailable if no answer comes within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain:
            plain.settimeout(max(0.001, deadline - time.monotonic()))
            with tls.wrap_socket(plain, server_hostname=host) if tls else contextlib.nullcontext(plain) as link:
                link.sendall(word.encode())
                while True:
                    link.settimeout(max(0.001, deadline - time.monotonic()))
                    part = link.recv(65536)
                    if not part:
                        break
                    parts.append(part)
    except OSError as error:
        msg = f"ZooKeeper at {host}:{port} does not answer '{word}': {error}"
        raise Unavailable(msg, hint="is the server running, and is the word in its 4lw.commands.whitelist?") from error
    return b"".join(parts).decode("utf-8", "replace")


# -- what a server does --------------------------------------------------------------------------------------------------------


class ServerFinding(StrEnum):
    """State of one server, as a look at it showed."""

    SERVES = "serves"
    ANSWERS = "answers and does not tell its state (srvr is not in its 4lw.commands.whitelist)"
    NO_QUORUM = "answers, and has no quorum"
    REFUSES = "refuses connections"
    SILENT = "does not answer"
    UNKNOWN = "has no address: the name does not resolve"
    UNREACHABLE = "cannot be reached"
    CLOSES = "closes the connection"
    TLS = "fails the TLS handshake"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedServer:
    """Findings about one server. report: its answer to `srvr`."""

    server: str
    finding: ServerFinding
    detail: str = ""
    report: str = ""

    @property
    def sentence(self) -> str:
        """Returns the finding as a sentence: `zk1:2181 refuses connections`."""
        return f"{self.server} {self.what}"

    @property
    def mode(self) -> str:
        """Returns `leader`, `follower` or `standalone`, or "" if the server does not serve."""
        return self.fact("Mode:")

    @property
    def zxid(self) -> int:
        """Returns the number of the last change that the server knows, or 0 if the report does not name it."""
        with contextlib.suppress(ValueError):
            return int(self.fact("Zxid:"), 16)
        return 0

    def fact(self, name: str) -> str:
        """Returns the text after `name` in the report, or "" if absent."""
        return next((line.removeprefix(name).strip() for line in self.report.splitlines() if line.startswith(name)), "")

    @property
    def what(self) -> str:
        """Returns the finding without the server's name: `refuses connections`."""
        return f"{self.finding}" + (f" ({self.detail})" if self.detail else "")


def split_hosts(hosts: str) -> list[str]:
    """Splits a list of servers: `zk1:2181, zk2` -> ["zk1:2181", "zk2:2181"]."""
    servers = [server.strip() for server in hosts.partition("/")[0].split(",") if server.strip()]
    return [server if server.rpartition(":")[2].isdigit() and ":" in server else f"{server}:{_STANDARD_PORT}" for server in servers]


def look(server: str, security: ZkSecurity | None = None, *, timeout_s: float = 1.0) -> ProbedServer:
    """Looks at one server. Never raises for a server's behaviour. Cost: up to `timeout_s`, plus the resolution of its name."""
    host, _, port = server.rpartition(":")
    security = security or ZkSecurity()
    try:
        text = four_letter(host.strip("[]"), int(port), "srvr", timeout_s=timeout_s, tls=security.context() if security.tls else None)
    except Unavailable as error:
        return _why(server, error.__cause__, timeout_s)
    if "Mode:" in text:
        return ProbedServer(server=server, finding=ServerFinding.SERVES, report=text)
    if "not in the whitelist" in text:
        return ProbedServer(server=server, finding=ServerFinding.ANSWERS)
    if "not currently serving" in text:
        return ProbedServer(server=server, finding=ServerFinding.NO_QUORUM)
    return ProbedServer(
        server=server, finding=ServerFinding.CLOSES, detail="" if security.tls else "is it a port for TLS? [security] zookeeper_tls"
    )


def look_at_all(hosts: str, security: ZkSecurity | None = None, *, timeout_s: float = 1.0) -> list[ProbedServer]:
    """Looks at every server at the same time; a server whose name takes longer to resolve counts as SILENT."""
    servers = split_hosts(hosts)
    silent = format_duration(timeout_s)
    seen: list[ProbedServer] = [ProbedServer(server=server, finding=ServerFinding.SILENT, detail=silent) for server in servers]

    def put(index: int) -> None:
        seen[index] = look(servers[index], security, timeout_s=timeout_s)

    threads = [threading.Thread(target=put, args=(index,), name="zookeeper-look", daemon=True) for index in range(len(servers))]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + timeout_s + 0.5
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    return list(seen)


def explain(hosts: str, looks: Sequence[ProbedServer], waited_s: float) -> RmgrError:
    """Returns the error for "no session within `waited_s`": it names every server, its state, and the remedy."""
    found = {look.finding for look in looks}
    sentences = "; ".join(look.sentence for look in looks) if len(looks) > 1 else "".join(f"it {look.what}" for look in looks)
    if ServerFinding.SERVES in found:
        return CoordinationUnavailable(
            f"ZooKeeper at {hosts} gave no session within {format_duration(waited_s)}: {sentences}",
            hint="it is overloaded, or the way there loses data: try again with a longer --timeout; its log tells more",
        )
    if ServerFinding.TLS in found:
        return NotConnected(
            f"no ZooKeeper at {hosts}: {sentences}",
            hint="is it a port for TLS (secureClientPort), as zookeeper_tls = true says? a server's certificate and ca.crt of the bundle "
            "must belong together, be in date and name the host: rmgr doctor",
        )
    if found & {ServerFinding.ANSWERS, ServerFinding.NO_QUORUM}:
        hint = f"more than half of the servers ({len(looks)}) must run: start the others"
        return CoordinationUnavailable(f"ZooKeeper at {hosts} has no quorum: {sentences}", hint=hint)
    if found & {ServerFinding.SILENT, ServerFinding.CLOSES}:
        hint = "does it hang, is a firewall in between, is TLS on at both ends? rmgr doctor looks closer"
        return CoordinationUnavailable(f"ZooKeeper at {hosts} gave no session within {format_duration(waited_s)}: {sentences}", hint=hint)
    hint = "is it running? rmgr doctor looks closer; --zk or RMGR_ZK names another, and rmgr dev starts one"
    return NotConnected(f"no ZooKeeper at {hosts}: {sentences}", hint=hint)


def _why(server: str, cause: BaseException | None, timeout_s: float) -> ProbedServer:
    match cause:
        case ssl.SSLError():
            return ProbedServer(server=server, finding=ServerFinding.TLS, detail=tls_sentence(cause))
        case TimeoutError():
            return ProbedServer(server=server, finding=ServerFinding.SILENT, detail=format_duration(timeout_s))
        case ConnectionRefusedError():
            return ProbedServer(server=server, finding=ServerFinding.REFUSES)
        case socket.gaierror():
            return ProbedServer(server=server, finding=ServerFinding.UNKNOWN)
        case ConnectionError():
            return ProbedServer(server=server, finding=ServerFinding.CLOSES)
        case OSError():
            return ProbedServer(server=server, finding=ServerFinding.UNREACHABLE, detail=cause.strerror or str(cause))
    return ProbedServer(server=server, finding=ServerFinding.UNREACHABLE, detail=str(cause))


def tls_sentence(error: ssl.SSLError) -> str:
    """Returns what went wrong in a handshake, without OpenSSL's numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "(eof)" in reason or "eof occurred" in reason or "unexpected eof" in reason:
        return "the connection was closed in the middle"
    return "it does not speak TLS" if reason in {"wrong version number", "record layer failure"} else reason


# -- a glance at a few znodes, for commands that only ask who leads ------------------------------------------------------------


_CONNECT = struct.Struct("!iqiqi16sB")  # protocol version, last zxid, timeout (ms), session, password, read only
_INT, _REPLY, _REQUEST = struct.Struct("!i"), struct.Struct("!iqi"), struct.Struct("!ii")
_DATA, _ACL, _CHILDREN, _SYNC, _CLOSE, _AUTH = 4, 6, 8, 9, -11, 100
_AUTH_XID = -4
_NO_NODE = -101
_READ_BYTES = 1 << 16
_MOST_BYTES = 1 << 22
#: Seconds after which a server that has not answered is abandoned for the next one.
_SERVER_S = 0.5


class GlanceFailed(Exception):
    """The look needs the full client: `glance` understands only the simplest answers."""


class Glance(NamedTuple):
    """Result of a look. data: path -> content, None if absent. children: path -> names. schemes: path -> schemes of its access list."""

    server: str
    data: dict[str, bytes | None]
    children: dict[str, list[str]]
    schemes: dict[str, tuple[str, ...]]


def glance(
    hosts: str,
    root: str,
    *,
    data: Sequence[str] = (),
    children: Sequence[str] = (),
    access: Sequence[str] = (),
    security: ZkSecurity | None = None,
    timeout_s: float = 1.0,
) -> Glance:
    """Reads a few znodes, at least as new as the moment of the call (it begins with a sync).

    Args: hosts: "h1:2181,h2:2181". root: chroot, "" or "/a/b". data, children, access: paths below it. timeout_s: for all servers together.
    Raises: GlanceFailed.
    """
    end = time.monotonic() + timeout_s
    servers = [server.strip() for server in hosts.split(",")]
    random.shuffle(servers)
    why = "no server"
    for server in servers:
        left_s = min(_SERVER_S, end - time.monotonic())
        if left_s <= 0:
            break
        try:
            return _look(server, root, data, children, access, security or ZkSecurity(), left_s)
        except (OSError, ConfigError, ValueError, struct.error) as error:  # ssl.SSLError is an OSError
            why = f"{server}: {error}"
    raise GlanceFailed(why)


def _look(
    server: str, root: str, data: Sequence[str], children: Sequence[str], access: Sequence[str], security: ZkSecurity, timeout_s: float
) -> Glance:
    host, _, port = server.rpartition(":")
    end = time.monotonic() + timeout_s
    with open_socket((host.strip("[]"), int(port)), host.strip("[]"), timeout_s, security) as link:
        frames = _Frames(link, end)
        frames.send(_CONNECT.pack(0, 0, 10_000, 0, 16, b"", 0))
        greeting = frames.next()
        if int.from_bytes(greeting[8:16], "big") == 0:
            raise ConnectionError("it gives no session")
        asked = [(_SYNC, "/")]
        asked += [(kind, path) for kind, paths in ((_DATA, data), (_CHILDREN, children), (_ACL, access)) for path in paths]
        out = []
        if security.auth_scheme:
            out.append(_REQUEST.pack(_AUTH_XID, _AUTH) + _INT.pack(0) + _text(security.auth_scheme) + _text(security.auth_credential))
        for xid, (kind, path) in enumerate(asked, start=1):
            flag = b"\0" if kind in {_DATA, _CHILDREN} else b""  # no watch
            out.append(_REQUEST.pack(xid, kind) + _text((root if path == "/" else root + path) or "/") + flag)
        out.append(_REQUEST.pack(len(asked) + 1, _CLOSE))
        frames.send(*out)
        seen = Glance(server, {}, {}, {})
        if security.auth_scheme:
            frames.answer(_AUTH_XID)
        for xid, (kind, path) in enumerate(asked, start=1):
            body = frames.answer(xid)
            if kind == _DATA:
                seen.data[path] = None if body is None else body[4 : 4 + max(0, _INT.unpack_from(body)[0])]
            elif kind == _CHILDREN:
                seen.children[path] = [] if body is None else _texts(body, 1)
            elif kind == _ACL:
                seen.schemes[path] = () if body is None else tuple(_texts(body, 2, skip=4)[::2])
        return seen


class _Frames:
    """Frames sent and received on one connection, until `end` (monotonic)."""

    def __init__(self, link: socket.socket, end: float) -> None:
        self._link = link
        self._end = end
        self._buffer = bytearray()

    def send(self, *frames: bytes) -> None:
        self._link.sendall(b"".join(_INT.pack(len(frame)) + frame for frame in frames))

    def next(self) -> bytes:
        while True:
            if len(self._buffer) >= 4:
                (length,) = _INT.unpack_from(self._buffer)
                if not 0 <= length <= _MOST_BYTES:
                    raise ValueError("this is not ZooKeeper's protocol")
                if len(self._buffer) >= 4 + length:
                    frame = bytes(self._buffer[4 : 4 + length])
                    del self._buffer[: 4 + length]
                    return frame
            self._link.settimeout(max(0.001, self._end - time.monotonic()))
            chunk = self._link.recv(_READ_BYTES)
            if not chunk:
                raise ConnectionError("the server hung up")
            self._buffer += chunk

    def answer(self, xid: int) -> bytes | None:
        """Returns the body of the reply to `xid`, or None if the znode is absent."""
        frame = self.next()
        found, _, code = _REPLY.unpack_from(frame)
        if found != xid or code not in {0, _NO_NODE}:
            raise GlanceFailed(f"reply {found} to request {xid}, error {code}")
        return frame[_REPLY.size :] if code == 0 else None


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT.pack(len(data)) + data


def _texts(body: bytes, each: int, *, skip: int = 0) -> list[str]:
    """Returns the strings of a vector whose elements have `skip` bytes and then `each` strings."""
    (count,) = _INT.unpack_from(body)
    at, found = 4, []
    for _ in range(max(0, count)):
        at += skip
        for _ in range(each):
            (length,) = _INT.unpack_from(body, at)
            found.append(body[at + 4 : at + 4 + length].decode())
            at += 4 + length
    return found
