"""Cassandra through its driver: one connection, its policies, and the meaning of its errors. The only file that imports the driver.

What is changed from the driver's defaults, and why (facts 8 and 9, section 2 of the notes on reliability):
- a retry policy that repeats only idempotent statements, at the next node, twice at most: the default repeats anything;
- reconnection every 2 s without end: the constant policy gives up after 64 tries, the default one waits up to 10 minutes;
- a node that let a request time out goes to the end of the plan for some seconds: heartbeats notice it only later;
- nodes that do not answer at all are not its first contacts, and its threads do not delay the end of the process;
- heartbeats every 3 s instead of 30, so that a frozen node soon counts as dead;
- speculative execution for reads, never for writes; LOCAL_QUORUM instead of LOCAL_ONE; a fixed protocol version.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from rmgr.adapters.cassandra.link import Lost, awake, use_daemons
from rmgr.adapters.cassandra.schema import STATEMENTS, VERSION_NAME, StatementRequest, ask, no_datacenter, no_keyspace, version_problem
from rmgr.adapters.cassandra.url import CassandraTarget
from rmgr.errors import ConfigError, PermissionDenied, RmgrError, StoreUnavailable
from rmgr.model.units import counted, format_duration

try:
    import cassandra as driver
    from cassandra import ConsistencyLevel, ProtocolVersion
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
    from cassandra.connection import ConnectionException, ProtocolError
    from cassandra.policies import (
        ConstantReconnectionPolicy,
        ConstantSpeculativeExecutionPolicy,
        DCAwareRoundRobinPolicy,
        RetryPolicy,
        TokenAwarePolicy,
    )
    from cassandra.query import BatchStatement, BatchType, SimpleStatement, tuple_factory
except ImportError as error:
    raise ConfigError(
        f"the Cassandra driver cannot be imported: {error}",
        hint="install it: pip install 'cassandra-driver>=3.30,<4', or use --store sqlite:PATH",
    ) from error
except Exception as error:
    # DependencyException: no event loop of the driver works with this Python (asyncore is gone from 3.12 on).
    raise ConfigError(
        f"the Cassandra driver does not work with this Python: {error}",
        hint="it needs a wheel with its own event loop: pip install --only-binary cassandra-driver --upgrade 'cassandra-driver>=3.30'",
    ) from error

DRIVER_VERSION = driver.__version__
_LOG = logging.getLogger("rmgr.store")
_READS = "reads"
_HEARTBEAT_S = 3.0
_SPECULATE_S = 0.5
_WARY_S = 10.0
_RECONNECT_S = 2.0
_PROBE_TTL_S = 60
_CLOSE_S = 0.5
#: Threads in which the driver connects: more than may hang on nodes at once, so that other connections need not wait.
_CONNECTORS = 8


class WideConnection(Cluster.connection_class):
    """The driver's connection with larger buffers: its own sends and receives 4 KiB per system call (3.30).

    A chunk of 512 KiB would be 128 of those, each with its share of Python.
    """

    in_buffer_size = 64 * 1024
    out_buffer_size = 256 * 1024


# -- policies ---------------------------------------------------------------------------------------------------------------


class IdempotentRetry(RetryPolicy):
    """Repeats idempotent statements at the next node, twice at most; leaves everything else to the caller."""

    def on_read_timeout(self, query: Any, *_: Any, retry_num: int = 0, **__: Any) -> tuple[int, None]:
        again = getattr(query, "is_idempotent", False) is True and retry_num < 2
        return (self.RETRY_NEXT_HOST if again else self.RETHROW), None

    on_write_timeout = on_unavailable = on_request_error = on_read_timeout


class WaryPlan(TokenAwarePolicy):
    """Replicas of the local data centre first; nodes that let a request time out go last for 10 s."""

    def __init__(self, local_dc: str) -> None:
        super().__init__(DCAwareRoundRobinPolicy(local_dc))
        self._slow_until: dict[Any, float] = {}

    def doubt(self, host: Any) -> None:
        """Notes that `host` let a request time out."""
        self._slow_until[host] = time.monotonic() + _WARY_S

    def make_query_plan(self, working_keyspace: Any = None, query: Any = None) -> Iterator[Any]:
        now_s = time.monotonic()
        last = []
        for host in super().make_query_plan(working_keyspace, query):
            if self._slow_until.get(host, -math.inf) > now_s:
                last.append(host)
            else:
                yield host
        yield from last


# -- one connection ----------------------------------------------------------------------------------------------------------


class DriverConnection:
    """A driver's Cluster and Session. `dial` makes them for stores, where `CassandraLink` keeps them; `enter` makes them for the schema.

    Futures fail with `Lost`, or with an `RmgrError` if waiting does not help.
    """

    def __init__(self, target: CassandraTarget, cluster: Cluster, session: Session, plan: WaryPlan) -> None:
        self._target = target
        self._cluster = cluster
        self._session = session
        self._plan = plan
        self._prepared: dict[str, Any] = {}
        self._probe_name = f"probe/{socket.gethostname()}/{os.getpid() % 64}"

    def prepare(self) -> None:
        """Prepares all statements; the driver prepares them again on nodes that come back."""
        for name, statement in STATEMENTS.items():
            prepared = self._session.prepare(statement.cql.format(ks=self._target.keyspace))
            prepared.is_idempotent = True
            self._prepared[name] = prepared

    def send(self, request: StatementRequest, timeout_s: float, *, host: Any = None) -> Future[list[Any]]:
        """Sends one request; returns the future of its rows."""
        future: Future[list[Any]] = Future()
        if len(request.rows) == 1 and request.beside is None:
            bound = self._prepared[request.name].bind(request.rows[0])
        else:
            bound = BatchStatement(batch_type=BatchType.UNLOGGED)
            bound.is_idempotent = True
            for part in filter(None, (request, request.beside)):
                for row in part.rows:
                    bound.add(self._prepared[part.name], row)
        profile = EXEC_PROFILE_DEFAULT if request.is_write else _READS
        try:
            answer = self._session.execute_async(bound, timeout=timeout_s, execution_profile=profile, host=host)
        except Exception as error:  # noqa: BLE001 - whatever the driver objects to is the request's failure
            future.set_exception(self._meaning(error))
            return future

        # The answer and its callbacks hold each other, as do the answer and its timer, and the driver keeps a timer for 2 s after
        # its request has ended: without letting go, chunks of 512 KiB pile up until the garbage collector comes (hundreds of MiB at
        # 30 MB/s, driver 3.30; test_what_was_written_and_read_is_let_go_without_the_garbage_collector).
        def let_go() -> None:
            answer.clear_callbacks()
            answer._final_result = answer._timer = None  # noqa: SLF001 - as above
            if request.is_write:  # no other node was asked
                answer.message = answer.query = None
                answer.query_plan = iter(())

        def answered(rows: list[Any] | None) -> None:
            if not future.done():  # if two coordinators were asked, both may answer
                future.set_result(rows or [])
            let_go()

        def failed(error: Exception) -> None:
            if not future.done():
                future.set_exception(self._meaning(error))
            answer.clear_callbacks()

        answer.add_callbacks(answered, failed)
        if future.done():  # the answer came before the callbacks were added
            let_go()
        return future

    def send_to_others(self, request: StatementRequest, timeout_s: float) -> list[Future[list[Any]]]:
        """Sends a read to several coordinators: to three nodes at most; to a single node, that one again."""
        hosts = self._local_hosts()
        return [self.send(request, timeout_s, host=host) for host in random.sample(hosts, min(3, len(hosts)))]

    def nodes_up(self) -> int:
        """Returns the number of nodes in the local data centre that the driver considers usable."""
        return len(self._local_hosts())

    def datacenters(self) -> tuple[str, ...]:
        """Returns the cluster's data centres."""
        return tuple(sorted({host.datacenter for host in self._cluster.metadata.all_hosts() if host.datacenter}))

    def probe(self, timeout_s: float, *, write: bool) -> None:
        """Reads, or writes, a row of this connection's own. Raises: `Lost`, `RmgrError`."""
        if write:
            request = ask("set_info", self._probe_name, str(time.time_ns()), time.time_ns() // 1000, _PROBE_TTL_S)
        else:
            request = ask("info", VERSION_NAME)
        try:
            self.send(request, timeout_s).result(timeout_s + 1.0)
        except TimeoutError:
            raise Lost("no answer, not even of the driver", is_outage=True) from None

    def node_names(self) -> tuple[str, ...]:
        """Returns the nodes in the local data centre that the driver considers usable, for `run` and `ask_each`."""
        return tuple(sorted(str(host.endpoint) for host in self._local_hosts()))

    def nodes_expected(self) -> int:
        """Returns the number of nodes in the local data centre that the driver does not consider dead, connected or not."""
        return len([host for host in self._cluster.metadata.all_hosts() if host.datacenter == self._target.local_dc and host.is_up])

    def ask_each(self, cql: str, values: tuple[Any, ...] = (), *, timeout_s: float) -> dict[str, list[Any] | None]:
        """Returns each node's own answer (system tables are local to a node); None for a node without one in time."""
        asked = {
            str(host.endpoint): self._session.execute_async(SimpleStatement(cql), values or None, timeout=timeout_s, host=host)
            for host in self._local_hosts()
        }
        answers: dict[str, list[Any] | None] = {}
        for name, future in asked.items():
            try:
                answers[name] = future.result().all()
            except Exception as error:
                found = meaning(error, self._target)
                if not isinstance(found, Lost):
                    raise found from error
                answers[name] = None
        return answers

    def run(self, cql: str, values: tuple[Any, ...] = (), *, timeout_s: float = 15.0, node: str = "", is_read: bool = False) -> list[Any]:
        """Carries out one statement for the administrator, if need be a change of the schema, on which all nodes then agree.

        Args:
            node: the coordinator, one of `node_names`; "": any.
            is_read: it changes nothing, so another node may be asked in parallel.
        Raises: `Lost`, `RmgrError`.
        """
        try:
            host = self._host(node) if node else None
            profile = _READS if is_read else EXEC_PROFILE_DEFAULT
            statement = SimpleStatement(cql, is_idempotent=is_read)
            future = self._session.execute_async(statement, values or None, timeout=timeout_s, host=host, execution_profile=profile)
            rows: list[Any] = future.result().all()
        except Exception as error:
            raise self._meaning(error) from error
        if not future.is_schema_agreed:
            raise StoreUnavailable(
                "the nodes of Cassandra do not agree on the schema", hint="nodetool describecluster; then type the command again"
            )
        return rows

    def close(self) -> None:
        """Closes the connection."""
        _end_driver(self._cluster)

    def _local_hosts(self) -> list[Any]:
        return [host for host, state in self._session.get_pool_state().items() if state["open_count"] and not state["shutdown"]]

    def _host(self, name: str) -> Any:
        for host in self._local_hosts():
            if str(host.endpoint) == name:
                return host
        raise Lost(f"{name} is away", is_outage=True)

    def _meaning(self, error: Exception) -> Exception:
        if isinstance(error, driver.OperationTimedOut) and error.last_host is not None:
            self._plan.doubt(error.last_host)
        return meaning(error, self._target)


def dial(target: CassandraTarget) -> DriverConnection:
    """Connects, verifies the schema and prepares all statements. Raises: `Lost` (retry), `RmgrError` (retrying does not help)."""
    connection = enter(target)
    try:
        try:
            rows = connection.run(
                f"SELECT value FROM {target.keyspace}.info WHERE name = %s",  # noqa: S608 - the URL's grammar has checked it
                (VERSION_NAME,),
                timeout_s=target.request_timeout_s * 1.25,
                is_read=True,
            )
        except ConfigError:
            if not connection.run("SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s", (target.keyspace,)):
                raise no_keyspace(target.keyspace) from None
            rows = []
        problem = version_problem(target.keyspace, int(rows[0][0]) if rows else 0)
        if problem is not None:
            raise problem
        try:
            connection.prepare()
        except Exception as error:
            raise meaning(error, target) from error
    except BaseException:
        connection.close()
        raise
    return connection


def enter(target: CassandraTarget, *, agreement_s: float = 10.0) -> DriverConnection:
    """Connects, and verifies only the data centre.

    Args:
        agreement_s: how long the driver waits after a change of the schema until all nodes have it; 0: the caller waits.
    Raises: `Lost` (within half the connect timeout if no node answers at all), `RmgrError`.
    """
    _tame_driver_log()
    tls = _tls(target) if target.tls else None
    contacts = awake(target.hosts, target.port, tls=tls, timeout_s=target.connect_timeout_s / 2)
    plan = WaryPlan(target.local_dc)
    shared = {
        "load_balancing_policy": plan,
        "retry_policy": IdempotentRetry(),
        "consistency_level": ConsistencyLevel.name_to_value[target.consistency],
        "request_timeout": target.request_timeout_s,
        "row_factory": tuple_factory,
    }
    speculative = ConstantSpeculativeExecutionPolicy(_SPECULATE_S, 1)
    cluster = Cluster(
        list(contacts),
        port=target.port,
        protocol_version=ProtocolVersion.V5,
        connection_class=WideConnection,
        auth_provider=PlainTextAuthProvider(target.user, target.password()) if target.user else None,
        ssl_context=tls,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(**shared),
            _READS: ExecutionProfile(**shared, speculative_execution_policy=speculative),
        },
        reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_S, max_attempts=None),
        connect_timeout=target.connect_timeout_s,
        control_connection_timeout=target.connect_timeout_s,
        idle_heartbeat_interval=_HEARTBEAT_S,
        idle_heartbeat_timeout=_HEARTBEAT_S,
        max_schema_agreement_wait=agreement_s,
        monitor_reporting_enabled=False,
        application_name="rmgr",
    )
    use_daemons(cluster, most=_CONNECTORS)
    try:
        session = cluster.connect()
        connection = DriverConnection(target, cluster, session, plan)
    except Exception as error:
        known = tuple(sorted({host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}))
        _end_driver(cluster)
        if known and target.local_dc not in known:
            raise no_datacenter(target.local_dc, known) from error
        raise meaning(error, target) from error
    if target.local_dc not in connection.datacenters():
        connection.close()
        raise no_datacenter(target.local_dc, connection.datacenters())
    return connection


def _end_driver(cluster: Cluster) -> None:
    """Ends a driver, waiting half a second. The driver itself would wait for connections to hanging nodes up to their timeout."""

    def shut_down() -> None:
        with contextlib.suppress(Exception):
            cluster.shutdown()

    ending = threading.Thread(target=shut_down, name="rmgr-store-end", daemon=True)
    ending.start()
    ending.join(_CLOSE_S)


def _tls(target: CassandraTarget) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=target.ca or None)
        context.check_hostname = target.check_hostname
        if target.cert:
            context.load_cert_chain(target.cert, target.key)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(name for name in (target.ca, target.cert, target.key) if name)
        raise ConfigError(
            f"the certificates of the store ({named}) cannot be used: {error}", hint="ca=, cert= and key= name PEM files"
        ) from None
    return context


class _QuietHandler(logging.Handler):
    """Turns the driver's warnings about failed connections into debug lines: our own log has one line about the outage."""

    def emit(self, record: logging.LogRecord) -> None:
        _LOG.debug("driver: %s", record.getMessage())


def _tame_driver_log() -> None:
    log = logging.getLogger("cassandra")
    own = [handler for handler in log.handlers if type(handler).__name__ != "NullHandler"]  # the driver has a NullHandler class of its own
    if log.level == logging.NOTSET and not own:  # an application that has configured it keeps its settings
        log.addHandler(_QuietHandler())
        log.propagate = False


# -- the meaning of errors -----------------------------------------------------------------------------------------------------


def meaning(error: BaseException, target: CassandraTarget) -> Exception:
    """Returns `Lost` for an error that may pass, an `RmgrError` for one that waiting does not cure."""
    match error:
        case RmgrError() | Lost():
            return error
        case NoHostAvailable():
            return _decisive_error(error, target)
        case driver.OperationTimedOut():
            host = getattr(error.last_host, "address", "") or "any node"
            return Lost(f"no answer from {host} within {format_duration(target.request_timeout_s)}", is_outage=False)
        case driver.Unavailable():
            return Lost(
                f"{error.alive_replicas} of the {error.required_replicas} replicas that {target.consistency} needs are up", is_outage=True
            )
        case driver.Timeout():
            doing = "written" if isinstance(error, driver.WriteTimeout) else "read"
            return Lost(f"{error.received_responses} of {error.required_responses} replicas have {doing} in time", is_outage=False)
        case driver.CoordinationFailure():
            doing = "write" if isinstance(error, driver.WriteFailure) else "read"
            return Lost(f"{counted(error.failures, 'node')} could not {doing} (read-only, or no space left on them?)", is_outage=False)
        case driver.AuthenticationFailed():
            return _not_admitted(target)
        case driver.Unauthorized():
            hint = f"GRANT SELECT, MODIFY ON KEYSPACE {target.keyspace} TO {target.user or 'NAME'}"
            return PermissionDenied(f"user {target.user or 'anonymous'!r} may not do this in Cassandra: {_text(error)}", hint=hint)
        case driver.InvalidRequest() | driver.UnsupportedOperation() | ProtocolError():
            return _refused(error)
        case ConnectionException() | OSError():
            return _without_tls(_text(error)) or Lost(_text(error), is_outage=True)
    return Lost(f"{type(error).__name__}: {_text(error)}", is_outage=False)


def _without_tls(text: str) -> ConfigError | None:
    """Finds the cause in the text of a failed handshake: the driver drops the error's class."""
    if "[SSL" not in text:
        return None
    if found := re.search(r"certificate verify failed: (.*?)\.?(?: \(_ssl|$)", text):
        hint = "ca=FILE names the authority that signed it; it must carry the node's IP address, or check_hostname=0"
        return ConfigError(f"Cassandra's certificate is not accepted: {found[1]}", hint=hint)
    found = re.search(r"\[SSL: ?([A-Z_]*)", text)
    return ConfigError(
        f"TLS with Cassandra fails: {found[1] if found else text}", hint="does this port speak TLS? ca=, cert=, key= in the store's URL"
    )


def _decisive_error(error: NoHostAvailable, target: CassandraTarget) -> Exception:
    """Returns the first of the nodes' errors that waiting does not cure, else a summary."""
    causes = dict(error.errors) if isinstance(error.errors, dict) else {}
    meanings = {getattr(host, "address", str(host)): meaning(_root(cause), target) for host, cause in causes.items()}
    for found in meanings.values():
        if isinstance(found, RmgrError):
            return found
    if len(meanings) == 1:
        return next(iter(meanings.values()))
    told = "; ".join(sorted({str(found) for found in meanings.values()}))
    return Lost(f"no node can be reached{': ' + told if told else ''}", is_outage=True)


def _root(error: Any) -> BaseException:
    cause = getattr(error, "__cause__", None) or error
    return cause if isinstance(cause, BaseException) else ConnectionException(str(cause))


def _not_admitted(target: CassandraTarget) -> PermissionDenied:
    if not target.user:
        hint = "user=NAME&password_file=FILE in the store's URL"
        return PermissionDenied("Cassandra asks for a user and a password, and the store's URL names none", hint=hint)
    hint = f"check user= in the store's URL and the file {target.password_file}"
    return PermissionDenied(f"Cassandra does not admit user {target.user!r}: wrong name or password", hint=hint)


def _refused(error: Exception) -> Exception:
    text = _text(error)
    if isinstance(error, ProtocolError | driver.UnsupportedOperation) or "protocol" in text.lower():
        return ConfigError(
            f"this server does not speak the protocol of Cassandra 4 and later: {text}", hint="rmgr needs Cassandra 4.0 or later"
        )
    lower = text.lower()
    if "does not exist" in lower or "unconfigured table" in lower or "undefined column" in lower:
        return ConfigError(f"the data store lacks a part of rmgr's schema: {text}", hint="rmgr admin init-store")
    return StoreUnavailable(f"Cassandra refuses: {text}")


def _text(error: BaseException) -> str:
    message = getattr(error, "message", "") or (error.args[-1] if error.args else "") or type(error).__name__
    return str(message).strip()[:300]
