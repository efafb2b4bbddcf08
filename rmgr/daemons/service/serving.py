"""What every daemon works with: ZooKeeper, the data store, its own gRPC server and whom that serves; and how a daemon looks at itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rmgr.adapters.access.auth import Caller, Refused
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.identity.trust import Trust
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.config import Config
from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import CoordinationUnavailable, InvalidRecord, PermissionDenied, Unavailable
from rmgr.log import audit
from rmgr.model.base.units import format_duration
from rmgr.model.cluster.identity import Identity
from rmgr.runtime import machine
from rmgr.runtime.machine import Log
from rmgr.runtime.secured import open_zookeeper
from rmgr.runtime.store_watch import WatchedStore, meet_store
from rmgr.runtime.supervision import StallGuard

#: How often the server is asked, how long an answer may take, and after how long without any it is mute. A flood costs some seconds.
_ASK_S, _ANSWER_S, MUTE_S = 15.0, 10.0, 60.0
#: How long a daemon's own server may take to let it in at the start, and how long it is not asked again.
_GREET_S, _AGAIN_S = 30.0, 0.2
_NO_CALL = "it answers no call"
#: A loop comes round at least every 2.5 s.
_STALLED_S = 5.0
#: As `Lease`: after this part of the session timeout without an answer nothing is acted upon.
_LEASE_SHARE = 2 / 3


def open_server(
    listen: str, credentials: Credentials | None, trust: Trust | None, log: Log, *, threads: int = 96, bounds: Bounds | None = None
) -> RpcServer:
    """The gRPC server of a daemon: in a secured cluster everybody is asked who they are, and a revoked key is refused."""
    if credentials is None:
        return RpcServer(listen, threads=threads, bounds=bounds)
    is_revoked = trust.is_revoked if trust is not None else lambda _: False
    return RpcServer(listen, threads=threads, credentials=credentials, is_revoked=is_revoked, refused=refused_calls(log), bounds=bounds)


def refused_calls(log: Log) -> Refused:
    """Writes every gRPC call that was turned away to the audit."""

    def refused(method: str, who: Identity | None, why: str) -> None:
        audit(log, who=who.name if who else "", role=who.role.value if who else "", what=method, allowed=False, why=why)

    return refused


@contextmanager
def opened(
    config: Config, credentials: Credentials | None, log: Log, *, insecure: bool, create: bool = True
) -> Iterator[tuple[ZkCoordinator, WatchedStore, str | None]]:
    """Yields a session that is connected, the store, and the cluster id that the store remembers (None: none, or it is away).

    Args: insecure: see `runtime.secured.check_exposure`. create: a store that is a file is made.
    Raises: NotConnected after `connect_timeout_s`; ConfigError, StoreUnavailable as `meet_store`.
    """
    coordinator = open_zookeeper(config, credentials, insecure=insecure)
    try:
        wait_s = config.cluster.connect_timeout_s
        coordinator.require_connected(wait_s)
        store, known = meet_store(config.cluster.store, log=log, patience_s=wait_s, create=create)
        try:
            yield coordinator, store, known
        finally:
            store.close()
    finally:
        coordinator.close(timeout_s=2.0)


def person_of(caller: Caller | None, operators: Iterable[str] = ()) -> Person:
    """operators: names of `[security] operators`. caller None: this process itself."""
    if caller is None or caller.is_open:
        return ANYBODY if caller is None or not caller.user else Person(name=caller.user, is_open=True)
    who = caller.who
    return Person(name=caller.user, role=str(who.role) if who is not None else "", is_operator=caller.is_operator(operators))


@contextmanager
def audited(log: Log | None, person: Person, what: str, target: str) -> Iterator[None]:
    """A refusal within it is written to the audit, and goes on. log: None = there is none."""
    try:
        yield
    except (PermissionDenied, InvalidRecord) as error:
        if log is not None:
            audit(log, who=person.name, role=person.role, what=what, target=target, allowed=False, why=error.message)
        raise


# -- a daemon looks at itself ----------------------------------------------------------------------------------------------
# At its start whether its key counts and its own server lets it in, later whether that answers anybody. The stall guard looks at the main
# loop, and ZooKeeper at its session; both can be well while nobody believes what the daemon signs, or nobody reaches it. A gateway or a
# WatchDog that answers nobody ends, so that another one takes its place; a Starter says so and goes on, for its work needs no server. What
# it stands on besides, its `/healthz` tells (`Working`).


def check_key(trust: Trust | None, credentials: Credentials | None, log: Log) -> None:
    """The key of this daemon is one that others believe. At its start, after its certificate was published.

    Raises: PermissionDenied when it was revoked, or its certificate is not believed; when that cannot be read now it is taken for good.
    """
    if trust is None or credentials is None:
        return
    who = credentials.identity
    try:
        found = trust.find(who.key_id, at_s=machine.wall_us() / 1e6)
    except CoordinationUnavailable as error:
        log.warning("own_key_not_looked_up", error=error.message)
        return
    if isinstance(found, str):
        raise PermissionDenied(
            f"nobody in this cluster would believe what {who.role} {who.name} signs: {found}",
            hint=f"is the clock right? {_fresh(credentials)}",
        )


def check_voice(server: RpcServer, credentials: Credentials | None, log: Log, *, patience_s: float = _GREET_S) -> None:
    """The server, which was started, answers this daemon's own call.

    Raises: PermissionDenied when it turns it away; Unavailable when no connection comes about within `patience_s`. A server
        that is only late is taken for good, and told.
    """
    end_s = machine.monotonic() + patience_s
    pause = threading.Event()
    while True:
        try:
            server.greet(max(0.1, end_s - machine.monotonic()))
        except TimeoutError:
            log.warning("own_server_is_late", endpoint=server.endpoint, waited_s=patience_s)
        except PermissionDenied as error:
            words = f"this daemon and its own server do not take each other: {error.message}"
            raise PermissionDenied(words, hint=_fresh(credentials)) from None
        except Unavailable as error:
            if machine.monotonic() < end_s:
                pause.wait(_AGAIN_S)
                continue
            raise Unavailable(
                f"this daemon's own server at {server.endpoint} does not take its connection, so nobody's: {error.message}",
                hint=f"is the port open on this machine? {_fresh(credentials)}",
            ) from None
        return


def _fresh(credentials: Credentials | None) -> str:
    """What to do about a bundle that does not work."""
    if credentials is None:
        return "rmgr doctor"
    who = credentials.identity
    return f"take another bundle than {credentials.directory}: rmgr admin add-node {who.name} --role {who.role} --renew; rmgr doctor"


def ending(whose: str) -> StallGuard:
    """Ends the process, with all stacks, when its server is mute. whose: "the gateway's"."""
    return StallGuard(MUTE_S, name=f"{whose} server: {_NO_CALL}")


def telling(whose: str, log: Log) -> StallGuard:
    """Writes it to the log again and again, and no more."""

    def tell(why: str) -> None:
        log.error("server_is_mute", error=why)

    return StallGuard(MUTE_S, name=f"{whose} server: {_NO_CALL}", on_stall=tell)


class VoiceCheck:
    """Asks the server of this process again and again whether it answers.

    Args:
        is_mute: `RpcServer.is_mute`. guard: what becomes of a mute daemon: `ending`, `telling`. pause_s, answer_s: for tests.
    """

    def __init__(
        self,
        is_mute: Callable[[float], bool],
        guard: StallGuard,
        *,
        pause_s: float = _ASK_S,
        answer_s: float = _ANSWER_S,
    ) -> None:
        self._is_mute = is_mute
        self._guard = guard
        self._pause_s = pause_s
        self._answer_s = answer_s
        self._stopped = threading.Event()

    @property
    def trouble(self) -> str:
        """Why nobody reaches this daemon, "" while it answers. From any thread."""
        silent_s = self._guard.silent_s
        return f"its server has answered no call for {format_duration(silent_s)}" if silent_s > self._pause_s + 2 * self._answer_s else ""

    def start(self) -> VoiceCheck:
        """Begins to ask."""
        self._guard.start()
        machine.Thread(target=self._run, name="own-voice", daemon=True).start()
        return self

    def stop(self) -> None:
        """Idempotent."""
        self._guard.stop()
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            if not self._is_mute(self._answer_s):
                self._guard.progress()


class Working:
    """Looks at what a daemon stands on. Thread-safe.

    Args: unable: what else is asked why it cannot work; each answers "" while it can.
    """

    def __init__(self, coordinator: Coordinator, store: WatchedStore, guard: StallGuard, *unable: Callable[[], str]) -> None:
        self._coordinator = coordinator
        self._store = store
        self._guard = guard
        self._unable = unable

    def trouble(self) -> str:
        """Every reason why the daemon cannot work now, "" while it can. Never waits."""
        return "; ".join(dict.fromkeys(why for why in self._reasons() if why))

    def _reasons(self) -> tuple[str, ...]:
        silent_s, unanswered_s = self._guard.silent_s, machine.monotonic() - self._coordinator.last_answer_s()
        is_over = unanswered_s > self._coordinator.session_timeout_s * _LEASE_SHARE
        return (
            f"its loop has not come round for {format_duration(silent_s)}" if silent_s > _STALLED_S else "",
            "the lease is over: ZooKeeper does not answer" if is_over else "",
            f"data store: {self._store.trouble}" if self._store.trouble else "",
            *(ask() for ask in self._unable),
        )
