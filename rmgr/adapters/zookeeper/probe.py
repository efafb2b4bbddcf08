"""Explains a missing session: looks at each server of an ensemble, all at once, and makes one sentence of it.

Needs no session and no rights: a TCP connection (TLS where the cluster uses it) and the four-letter word `srvr`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rmgr.adapters.zookeeper.link import ZkSecurity
from rmgr.adapters.zookeeper.wire import four_letter
from rmgr.errors import CoordinationUnavailable, NotConnected, RmgrError, Unavailable
from rmgr.model.base.units import format_duration

_STANDARD_PORT = 2181


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
