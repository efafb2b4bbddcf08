"""A real Cassandra node as a child process: for `rmgr dev --store cassandra`, tests and measurements.

Cassandra is not in Debian: its jars (5.0) are in the directory named by RMGR_CASSANDRA_LIB, by default in the user's
cache, into which `rmgr dev --store cassandra` fetches them. Nothing is written outside the data directory. The JVM
options shorten the start (5 s) and suit one machine; for production see Cassandra's own manual.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rmgr.dev import jars
from rmgr.dev.server import ServerProcess, free_port
from rmgr.errors import Unavailable

RELEASE = "5.0"
JARS = f"cassandra-{RELEASE}"
MAIN_CLASS = "org.apache.cassandra.service.CassandraDaemon"
#: The Java releases that run Cassandra 5.0. Its own scripts refuse 21, which is all that Debian 13 has.
JAVA_RELEASES = (11, 17, 21)
_HOW_JAVA = "apt-get install default-jre-headless (Debian 12 and 13), or set JAVA_HOME to a Java 17 or 21"
_JVM_DIRECTORY = Path("/usr/lib/jvm")
_POLL_S = 0.05
#: Time limit of a node's answer.
_ANSWER_S = 1.0
_CQL_OPTIONS = b"\x04\x00\x00\x00\x05\x00\x00\x00\x00"  # protocol 4, stream 0, opcode OPTIONS, empty body
_CQL_SUPPORTED, _CQL_AUTHENTICATE, _CQL_AUTH_SUCCESS = 0x06, 0x03, 0x10
_CQL_STARTUP = b"\x04\x00\x00\x00\x01\x00\x00\x00\x16\x00\x01\x00\x0bCQL_VERSION\x00\x053.0.0"
_CQL_SUPERUSER = b"\x04\x00\x00\x01\x0f\x00\x00\x00\x18\x00\x00\x00\x14\x00cassandra\x00cassandra"

# All needed on Java 17: without any of them, the server ends at its start or a part of it fails later.
_MODULES = (
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.server=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.module=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.loader=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.math=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.module=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.reflect=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.util.jar=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)
_JVM = (
    "-XX:+UseSerialGC",  # for two cores and half a gigabyte, other collectors cost more than they give
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # no file in /tmp
    "-XX:+ExitOnOutOfMemoryError",
    "-Xss512k",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dcassandra-foreground=yes",  # otherwise it closes its own log once it serves
    "-Djava.net.preferIPv4Stack=true",
    # One machine: there are no other nodes to wait for.
    "-Dcassandra.ring_delay_ms=1000",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
    "-Dcassandra.shutdown_announce_in_ms=100",
)
_LOGBACK = """\
<configuration>
  <appender name="LOG" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level [%thread] %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="LOG"/></root>
</configuration>
"""


# -- the parts on this machine -----------------------------------------------------------------------------------------------


def prepare(report: Callable[[str], None]) -> None:
    """Fetches Cassandra's jars if they are missing, which takes minutes, after a check that the other parts are here.

    Args:
        report: called with a line before the download.
    Raises: Unavailable, with what to type.
    """
    java()
    _require_driver()
    try:
        library()
    except Unavailable:
        if os.environ.get("RMGR_CASSANDRA_LIB"):
            raise
        jars.fetch(JARS, report=report)
        library()


def require_parts() -> None:
    """Raises `Unavailable`, with what to type, if a node cannot run here or its driver is missing."""
    java()
    library()
    _require_driver()


def _require_driver() -> None:
    driver = importlib.util.find_spec("cassandra")
    if driver is None or driver.origin is None:  # a directory of that name on the path is not the driver
        raise Unavailable("Cassandra's driver for Python is missing", hint="pip install 'cassandra-driver>=3.30,<4'")


def missing_parts() -> str | None:
    """Returns what is missing to run and use a node here, in one sentence with what to type; None if nothing is."""
    try:
        require_parts()
    except Unavailable as error:
        return f"{error.message}; {error.hint}"
    return None


def library() -> Path:
    """Returns the directory of Cassandra's jars. Raises: Unavailable if there are none."""
    chosen = os.environ.get("RMGR_CASSANDRA_LIB")
    directory = Path(chosen) if chosen else default_library()
    if any(directory.glob("cassandra-all-*.jar")) and any(directory.glob("jamm-*.jar")):
        return directory
    if chosen:
        msg = f"Cassandra's jars are missing in RMGR_CASSANDRA_LIB={chosen}"
        raise Unavailable(msg, hint=f"unset it: rmgr dev --store cassandra fetches them into {default_library()}")
    msg = f"Cassandra's jars are missing in {directory}"
    raise Unavailable(msg, hint=f"type: {jars.command(JARS)}")


def default_library() -> Path:
    """Returns the directory of the jars if RMGR_CASSANDRA_LIB is not set."""
    return jars.directory(JARS)


def java() -> str:
    """Returns a Java that can run Cassandra: JAVA_HOME's, the one on PATH, or one of Debian's. Raises: Unavailable."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    if on_path := shutil.which("java"):
        candidates.append(on_path)
    candidates += sorted(str(path) for release in ("17", "21") for path in _JVM_DIRECTORY.glob(f"*-{release}-*/bin/java"))
    found: list[str] = []
    for program in candidates:
        release = _java_release(program)
        if release in JAVA_RELEASES:
            return program
        if release:
            found.append(f"{program} is Java {release}")
    raise Unavailable(f"Cassandra {RELEASE} needs Java 17 or 21: {'; '.join(found) or 'there is none here'}", hint=_HOW_JAVA)


@functools.cache
def _java_release(program: str) -> int:
    """Returns 17 for a Java 17, 0 if it does not run. Starts a JVM once (0.1 s)."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)
        if found := re.search(r'version "(\d+)(?:\.(\d+))?', shown.stderr + shown.stdout):
            return int(found[2] or 0) if found[1] == "1" else int(found[1])
    return 0


# -- one node ----------------------------------------------------------------------------------------------------------------


class CassandraNode(ServerProcess):
    """One server process on one data directory; start, stop, kill and start again as often as needed.

    Args:
        data_dir: made if absent; contains configuration, log (`cassandra.log`), data and commit log.
        address: loopback address, a different one for each node of a ring.
        port: of CQL, None: a free one, kept over restarts. storage_port: between nodes, likewise.
        seeds: "address:storage_port" of the nodes to meet, itself included; default: itself alone.
        heap_mb: the whole process takes about twice that.
        settings: lines of cassandra.yaml that replace or extend the defaults here (authenticator, client_encryption_options, ...);
            values may be nested: they are written as JSON, a subset of YAML.
        die_with_parent: see `ServerProcess`.
    """

    NAME: ClassVar[str] = "Cassandra"
    START_S: ClassVar[float] = 60.0
    STOP_S: ClassVar[float] = 20.0
    POLL_S: ClassVar[float] = _POLL_S

    def __init__(
        self,
        data_dir: Path | str,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        storage_port: int | None = None,
        seeds: Sequence[str] = (),
        heap_mb: int = 400,
        settings: Mapping[str, object] | None = None,
        die_with_parent: bool = False,
    ) -> None:
        super().__init__(data_dir, log_name="cassandra.log", die_with_parent=die_with_parent)
        self.address = address
        self.port = port or free_port(address)
        self.storage_port = storage_port or free_port(address)
        self._seeds = tuple(seeds) or (f"{address}:{self.storage_port}",)
        self._heap_mb = heap_mb
        self._settings = dict(settings or {})

    # -- implements `ServerProcess`

    @property
    def place(self) -> str:
        """See `ServerProcess`."""
        return f"on {self.contact}"

    def command(self) -> list[str]:
        """See `ServerProcess`."""
        program, jars = java(), library()
        config = self._write_config()
        logback = self.data_dir / "logback.xml"
        logback.write_text(_LOGBACK)
        (self.data_dir / "tmp").mkdir(exist_ok=True)  # for unpacked native libraries
        return [
            program,
            f"-Xms{self._heap_mb}m",
            f"-Xmx{self._heap_mb}m",
            *_JVM,
            *_MODULES,
            *(("-Djava.security.manager=allow",) if _java_release(program) > 17 else ()),  # it sets one, which is an error since 18
            f"-javaagent:{next(iter(sorted(jars.glob('jamm-*.jar'))))}",
            f"-Dlogback.configurationFile={logback}",
            f"-Dcassandra.config={config.as_uri()}",
            f"-Dcassandra.storagedir={self.data_dir}",
            f"-Djava.io.tmpdir={self.data_dir / 'tmp'}",
            "-cp",
            f"{jars}/*",
            MAIN_CLASS,
        ]

    def is_ready(self) -> bool:
        """Whether it answers CQL, and has its first superuser if it uses passwords."""
        has_served = self.data_dir / "has_served"
        if not self.is_serving() or (self._asks_passwords and not has_served.exists() and not self.has_superuser()):
            return False
        has_served.touch()
        return True

    # -- facts

    @property
    def contact(self) -> str:
        """ "address:port" of CQL, for clients."""
        return f"{self.address}:{self.port}"

    def is_serving(self) -> bool:
        """Whether it answers CQL now. With TLS: whether it listens, which it does only once it serves."""
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), _ANSWER_S) as link:
            if self._speaks_tls:
                return True
            link.settimeout(_ANSWER_S)
            link.sendall(_CQL_OPTIONS)
            header = link.recv(9)
            return len(header) == 9 and header[4] == _CQL_SUPPORTED
        return False

    def has_superuser(self) -> bool:
        """Whether `cassandra`, password `cassandra`, is accepted: the user is made after the port opens. With TLS: True, unchecked."""
        if self._speaks_tls:
            return True
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), _ANSWER_S) as link:
            link.settimeout(_ANSWER_S)
            link.sendall(_CQL_STARTUP)
            asked = link.recv(512)
            if len(asked) < 9 or asked[4] != _CQL_AUTHENTICATE:
                return False
            link.sendall(_CQL_SUPERUSER)
            answer = link.recv(9)
            return len(answer) == 9 and answer[4] == _CQL_AUTH_SUCCESS
        return False

    # -- inside

    @property
    def _asks_passwords(self) -> bool:
        return "PasswordAuthenticator" in json.dumps(self._settings.get("authenticator", ""))

    @property
    def _speaks_tls(self) -> bool:
        options = self._settings.get("client_encryption_options")
        return isinstance(options, Mapping) and bool(options.get("enabled")) and not options.get("optional")

    def _write_config(self) -> Path:
        self.data_dir = self.data_dir.resolve()
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings: dict[str, object] = {
            "cluster_name": "rmgr",
            "num_tokens": 4,
            "partitioner": "Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            # With periodic sync, the default, a killed node forgets what it acknowledged in the last 0.1 s, and it may be the only node.
            # "batch" syncs as soon as the disk is free, for all that wait by then. "group" first waits 5 ms: a put takes 10 ms
            # instead of 3, a put of a new key 20 instead of 6, and a stream of puts is no faster (rmgr/docs/decisions/store.md).
            # "auto" opens the log with O_DIRECT and O_DSYNC if the file system supports it: with a mapped sparse file, the default,
            # syncing a page costs more than the page.
            "commitlog_sync": "batch",
            "commitlog_sync_period": "0ms",
            "commitlog_disk_access_mode": "auto",
            "data_file_directories": [str(self.data_dir / "data")],
            "commitlog_directory": str(self.data_dir / "commitlog"),
            "hints_directory": str(self.data_dir / "hints"),
            "saved_caches_directory": str(self.data_dir / "saved_caches"),
            "listen_address": self.address,
            "rpc_address": self.address,
            "native_transport_port": self.port,
            "storage_port": self.storage_port,
            "auto_bootstrap": False,
            "auto_snapshot": False,
            "seed_provider": [
                {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": ",".join(self._seeds)}]}
            ],
            **self._settings,
        }
        path = self.data_dir / "cassandra.yaml"
        path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
        return path
