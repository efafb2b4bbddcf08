"""One server of an ensemble: the connection to it, what it says of itself in four-letter words, and why it gives no session.

Needs no session and no rights: TCP (TLS where the cluster uses it). `explain` makes one sentence of a look at all servers at once.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rmgr.errors import ConfigError, CoordinationUnavailable, NotConnected, RmgrError, Unavailable
from rmgr.model.base.units import format_duration

_STANDARD_PORT = 2181


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkSecurity:
    """Protection of a connection; the default is plain TCP without identity.

    Args: `tls` and the three files (PEM) with the key's password; `verify` the server's certificate and its host name;
    `auth_scheme`/`auth_credential` as ZooKeeper's addauth ("digest", "user:password"; inside TLS only).
    """

    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    verify: bool = True
    check_hostname: bool = True
    auth_scheme: str = ""
    auth_credential: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """How a connection is protected. The files are read each time: certificates are renewed while daemons run.

        With a `ca_file` nobody else's word counts, the authorities of the operating system included.
        Raises: ConfigError naming the file that is missing or unusable.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        at = self.ca_file
        try:
            if self.ca_file:
                context.load_verify_locations(self.ca_file)
            else:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            at = f"{self.cert_file}, {self.key_file}"
            if self.cert_file and self.key_file:
                context.load_cert_chain(self.cert_file, self.key_file, self.key_password or None)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"{at}: {error.strerror or error}", hint="[security] dir must name a complete bundle: rmgr doctor") from error
        return context


def open_socket(address: tuple[str, int], hostname: str, timeout_s: float, security: ZkSecurity) -> socket.socket:
    """A connection to `address`, whose certificate names `hostname`. Raises: OSError (ssl.SSLError, TimeoutError), ConfigError."""
    made = socket.create_connection(address, timeout_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return security.context().wrap_socket(made, server_hostname=hostname) if security.tls else made
    except BaseException:
        made.close()
        raise


def four_letter(host: str, port: int, word: str, *, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None) -> str:
    """The server's answer to a four-letter word (`ruok`, `srvr`, `mntr`): TCP, or TLS with `tls`; whitelist permitting.

    Raises: Unavailable when there is no answer within `timeout_s`.
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


# -- what a server does ---------------------------------------------------------------------------------------------------------


class ServerFinding(StrEnum):
    """Role of one server."""

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
    """Answers of one server. report: the answer to `srvr`."""

    server: str
    finding: ServerFinding
    detail: str = ""
    report: str = ""

    @property
    def sentence(self) -> str:
        """`zk1:2181 refuses connections`."""
        return f"{self.server} {self.what}"

    @property
    def mode(self) -> str:
        """`leader`, `follower`, `standalone`; "" when it does not serve."""
        return self.fact("Mode:")

    @property
    def zxid(self) -> int:
        """The number of the last change that it knows, 0 when it does not say."""
        with contextlib.suppress(ValueError):
            return int(self.fact("Zxid:"), 16)
        return 0

    def fact(self, name: str) -> str:
        """What stands behind `name` in its report, "" when it does not say."""
        return next((line.removeprefix(name).strip() for line in self.report.splitlines() if line.startswith(name)), "")

    @property
    def what(self) -> str:
        """`refuses connections`."""
        return f"{self.finding}" + (f" ({self.detail})" if self.detail else "")


def split_hosts(hosts: str) -> list[str]:
    """`zk1:2181, zk2` -> ["zk1:2181", "zk2:2181"]."""
    servers = [server.strip() for server in hosts.partition("/")[0].split(",") if server.strip()]
    return [server if server.rpartition(":")[2].isdigit() and ":" in server else f"{server}:{_STANDARD_PORT}" for server in servers]


def look(server: str, security: ZkSecurity | None = None, *, timeout_s: float = 1.0) -> ProbedServer:
    """Looks at one server. Never raises for what the server does. Cost: up to `timeout_s`, a name's resolution comes on top."""
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
    """Looks at every server at the same time; one whose name takes longer to resolve is SILENT."""
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
    """The error for "no session within `waited_s`": names every server, what it does, and what to do about it."""
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
    return NotConnected(f"no ZooKeeper at {hosts}: {sentences}", hint="start a cluster with `rmgr dev`, or name one with --zk or RMGR_ZK")


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
    """What went wrong in a handshake, without OpenSSL's numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "(eof)" in reason or "eof occurred" in reason or "unexpected eof" in reason:
        return "the connection was closed in the middle"
    return "it does not speak TLS" if reason in {"wrong version number", "record layer failure"} else reason
