"""A real ZooKeeper server or ensemble as child processes, for `rmgr dev`, tests and measurements; and the choice of its jars.

Data are fsynced as in production. Nothing is written outside the data directory. Jars are Debian's 3.8, or 3.9 fetched by `rmgr.dev.jars`.
RMGR_ZOOKEEPER_LIB chooses for every server without a `release`: a directory of jars, or one of `RELEASES`.
"""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from rmgr.adapters.zookeeper.server import four_letter
from rmgr.dev import jars
from rmgr.dev.server import ServerProcess, free_port, wait_all_ready
from rmgr.errors import Unavailable

__all__ = ["ServerTls", "ZooKeeperEnsemble", "ZooKeeperServer", "free_port", "java", "missing_parts"]
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
#: ZooKeeper's own limit is twenty ticks: only ten seconds with the short ticks of a test that wants sessions to end soon.
_LONGEST_SESSION_MS = 60_000
#: An idle JVM wakes five times a second, to look for unused monitors and to stop all threads for a moment; these options prevent it.
_SLEEPY = (
    "-XX:+IgnoreUnrecognizedVMOptions",  # other releases of Java do not have them
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:AsyncDeflationInterval=5000",
    "-XX:GuaranteedSafepointInterval=60000",
)
#: Debian's package, and the one from Maven Central (zookeeper-3.9.pom.xml).
RELEASES = ("3.8", "3.9")
FETCHED = "zookeeper-3.9"
DEBIAN_JARS = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "slf4j-simple.jar", "netty-all.jar", "netty-codec.jar")
_NEEDED = DEBIAN_JARS[:4]
_DEBIAN_DIR = Path("/usr/share/java")
HOW_TO_INSTALL = "apt-get install --no-install-recommends default-jre-headless libzookeeper-java libnetty-java libslf4j-java"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The identity of a server (all in PEM), and which clients it admits.

    Args:
        needs_client: refuses clients without a certificate of the same authority, in the handshake.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes
    needs_client: bool = True

    def write(self, directory: Path) -> dict[str, object]:
        """Writes the files into `directory`. Returns lines of zoo.cfg."""
        keys, trusted = directory / "server.pem", directory / "ca.pem"
        keys.touch(mode=0o600)
        keys.write_bytes(self.key + self.certificate)
        trusted.write_bytes(self.ca)
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": keys,
            "ssl.trustStore.location": trusted,
            "ssl.clientAuth": "need" if self.needs_client else "none",
            "ssl.hostnameVerification": "false",  # of clients: the authority of their certificate counts, not their address
            "sslQuorum": "false",
        }

    def context(self, directory: Path) -> ssl.SSLContext:
        """Returns a context for questions to the server itself, with its own certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.needs_client:
            context.load_cert_chain(directory / "server.pem")
        return context


class ZooKeeperServer(ServerProcess):
    """One server process on one data directory; start, stop, kill and start again as often as needed.

    Args:
        data_dir: made if absent; contains configuration, log (`zookeeper.log`), snapshots and transactions.
        port: client port on `host`, None: a free one, kept over restarts.
        tick_ms: sessions last from two ticks to a minute.
        heap_mb: largest heap.
        release: "3.8" (Debian's) or "3.9" (fetched from Maven Central); "": what `class_path` finds.
        config: more lines of zoo.cfg.
        tls: `port` speaks TLS, and there is no other port.
        words: four-letter words that it answers to anybody: rmgr needs `srvr`; `mntr` and `conf` tell strangers much more.
        die_with_parent: see `ServerProcess`.
    """

    NAME: ClassVar[str] = "ZooKeeper"
    START_S: ClassVar[float] = 20.0
    STOP_S: ClassVar[float] = 10.0
    POLL_S: ClassVar[float] = 0.02

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        tick_ms: int = 1000,
        heap_mb: int = 128,
        release: str = "",
        config: Mapping[str, object] | None = None,
        tls: ServerTls | None = None,
        words: Sequence[str] = ("srvr",),
        die_with_parent: bool = False,
    ) -> None:
        super().__init__(data_dir, log_name="zookeeper.log", die_with_parent=die_with_parent)
        self.tls = tls
        self.host = host
        self.port = port or free_port(host)
        self._tick_ms = tick_ms
        self._heap_mb = heap_mb
        self._release = release
        self._config = dict(config or {})
        self._words = tuple(words)

    # -- implements `ServerProcess`

    @property
    def place(self) -> str:
        """See `ServerProcess`."""
        return f"on port {self.port}"

    def command(self) -> list[str]:
        """See `ServerProcess`."""
        program = java()
        if program is None:
            raise Unavailable("ZooKeeper needs Java: no `java` on PATH nor in JAVA_HOME", hint=HOW_TO_INSTALL)
        return [
            program,
            "-Xms8m",
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # the optimising compiler takes more of two cores than its code gives back, even over 400,000 tasks
            "-XX:-UsePerfData",  # no file in /tmp
            "-XX:+ExitOnOutOfMemoryError",
            *_SLEEPY,
            f"-Djava.io.tmpdir={self.data_dir}",  # for unpacked native libraries
            "-Djava.net.preferIPv4Stack=true",
            "-Dzookeeper.preAllocSize=16384",
            "-Dzookeeper.enforceQuota=true",  # of subtrees that have one: `adapters/zookeeper/tree.py`
            "-Dzookeeper.nio.numWorkerThreads=0",  # the selecting thread also reads and writes: half the thread switches a request
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            "-cp",
            class_path(self._release),
            MAIN_CLASS,
            str(self._write_config()),
        ]

    def is_ready(self) -> bool:
        """Whether it answers and, in an ensemble, has a leader."""
        return self.mode() in {"standalone", "leader", "follower", "observer"}

    # -- facts

    @property
    def hosts(self) -> str:
        """"host:port", for clients."""
        return f"{self.host}:{self.port}"

    def mode(self) -> str:
        """Returns "standalone", "leader", "follower"; "" if it does not serve."""
        return self._say("Mode:")

    def version(self) -> str:
        """Returns "3.9.5-..."; "" if it does not serve."""
        return self._say("Zookeeper version:")

    def synced_followers(self) -> int:
        """Returns how many other servers have everything that this leader has; 0 if it does not lead. Needs the word `mntr`."""
        return int(float(self._say("zk_synced_followers", "mntr") or 0))

    def clients(self) -> tuple[int, int]:
        """Returns the numbers of open connections here, and of watches set on them. Needs the word `mntr`."""
        found = (self._say(what, "mntr") for what in ("zk_num_alive_connections", "zk_watch_count"))
        connections, watches = (int(float(number or 0)) for number in found)
        return connections, watches

    def _say(self, what: str, command: str = "srvr") -> str:
        try:
            tls = self.tls.context(self.data_dir) if self.tls else None
            answer = four_letter(self.host, self.port, command, timeout_s=1.0, tls=tls)
        except Unavailable:
            return ""
        return next((line.removeprefix(what).strip() for line in answer.splitlines() if line.startswith(what)), "")

    def _write_config(self) -> Path:
        for place in (self.data_dir, self.data_dir / "data"):  # nobody else may read znodes, transactions and the log
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o700)
        settings: dict[str, object] = {
            "tickTime": self._tick_ms,
            "maxSessionTimeout": _LONGEST_SESSION_MS,
            "initLimit": 10,
            "syncLimit": 5,
            "dataDir": self.data_dir / "data",
            ("secureClientPort" if self.tls else "clientPort"): self.port,
            ("secureClientPortAddress" if self.tls else "clientPortAddress"): self.host,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
            "4lw.commands.whitelist": ",".join(self._words),
            **(self.tls.write(self.data_dir) if self.tls else {}),
            **self._config,
        }
        path = self.data_dir / "zoo.cfg"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


class ZooKeeperEnsemble:
    """Several servers on one machine that form a quorum; each of `servers` may be stopped, killed and started alone.

    Args:
        options: of each `ZooKeeperServer`.
    """

    def __init__(self, data_dir: Path | str, *, size: int = 3, host: str = "127.0.0.1", **options: Any) -> None:
        self.data_dir = Path(data_dir)
        members = {f"server.{number}": f"{host}:{free_port(host)}:{free_port(host)}" for number in range(1, size + 1)}
        self.servers = [ZooKeeperServer(self.data_dir / str(number), host=host, config=members, **options) for number in range(1, size + 1)]

    @property
    def hosts(self) -> str:
        """"host:port,host:port,...", for clients."""
        return ",".join(server.hosts for server in self.servers)

    def start(self, *, wait_s: float = 30.0) -> Self:
        """Starts all servers and waits until they serve. Raises: Unavailable."""
        for number, server in enumerate(self.servers, start=1):
            (server.data_dir / "data").mkdir(parents=True, exist_ok=True)
            (server.data_dir / "data" / "myid").write_text(f"{number}\n")
            server.start(wait_s=0)
        try:
            wait_all_ready(self.servers, wait_s)
        except Unavailable:
            self.stop()
            raise
        return self

    def leader(self) -> ZooKeeperServer | None:
        """Returns the current leader, None without a quorum."""
        return next((server for server in self.servers if server.running and server.mode() == "leader"), None)

    def is_whole(self) -> bool:
        """Whether every server serves and is in step with the leader, so that one may go. Needs the word `mntr`.

        A server says that it follows before it has caught up. If it loses its leader just then, it may come back with other data than the
        rest (ZooKeeper 3.9.5: NullPointerException in Learner.syncWithLeader, then "Digests are not matching").
        """
        leader = self.leader()
        return leader is not None and leader.synced_followers() == len(self.servers) - 1

    def stop(self) -> None:
        """Stops all servers."""
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()


def missing_parts(release: str = "") -> str | None:
    """Returns what is missing to run a server (of this release) here, None if nothing is."""
    if java() is None:
        return "no `java` on PATH nor in JAVA_HOME"
    try:
        class_path(release)
    except Unavailable as error:
        return error.message
    return None


def java() -> str | None:
    """Returns the Java program: JAVA_HOME's, or the one on PATH, or None."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def fetched_dir() -> Path:
    """Returns the directory for the jars of 3.9, in the user's cache."""
    return jars.directory(FETCHED)


def class_path(release: str = "") -> str:
    """Returns Java's class path for the server.

    Args:
        release: one of `RELEASES`; "" = what RMGR_ZOOKEEPER_LIB says, or Debian's, or the fetched one.
    Raises: Unavailable if jars are missing.
    """
    chosen = release or os.environ.get("RMGR_ZOOKEEPER_LIB", "")
    if chosen == "3.8":
        return _debian()
    if chosen == "3.9":
        return _directory(fetched_dir(), f"type: {jars.command(FETCHED)}")
    if chosen:
        return _directory(Path(chosen), "a directory with ZooKeeper's jar and all its dependencies is meant", "RMGR_ZOOKEEPER_LIB=")
    try:
        return _debian()
    except Unavailable:
        if any(fetched_dir().glob("zookeeper*.jar")):
            return str(fetched_dir() / "*")
        raise


def _directory(where: Path, hint: str, name: str = "") -> str:
    if not any(where.glob("zookeeper*.jar")):
        raise Unavailable(f"{name}{where} holds no zookeeper*.jar", hint=hint)
    return str(where / "*")


def _debian() -> str:
    lacking = [name for name in _NEEDED if not (_DEBIAN_DIR / name).exists()]
    if lacking:
        msg = f"ZooKeeper's jars are missing in {_DEBIAN_DIR}: {', '.join(lacking)}"
        elsewhere = f"not on Debian: {jars.command(FETCHED)}, or RMGR_ZOOKEEPER_LIB=DIR with its jars"
        raise Unavailable(msg, hint=f"{HOW_TO_INSTALL}; {elsewhere}")
    return ":".join(str(_DEBIAN_DIR / name) for name in DEBIAN_JARS if (_DEBIAN_DIR / name).exists())
