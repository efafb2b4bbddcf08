"""How a program's connection asks what users ask: in this process, or a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rmgr.errors import CoordinationUnavailable

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.config import Config
    from rmgr.coord.protocol.ports import Coordinator, Store
    from rmgr.submitter.questions import Asks, Question

A = TypeVar("A")


class ConnectionAsks:
    """A `questions.Asks` of one connection; made when it is first asked. Thread-safe: two that are made at once are as good as one."""

    def __init__(self, config: Config, coordinator: Coordinator | None, store: Store, credentials: Credentials | None) -> None:
        self._config = config
        self._coordinator = coordinator
        self._store = store
        self._credentials = credentials
        self._asks: Asks | None = None

    @property
    def endpoint(self) -> str:
        """The gateway that is asked, "" = none."""
        return str(getattr(self._made(), "endpoint", ""))

    @property
    def hosts(self) -> str:
        """See `Asks`."""
        return self._made().hosts

    @property
    def session_timeout_s(self) -> float:
        """See `Asks`."""
        return self._made().session_timeout_s

    def ask(self, question: Question[A], *, timeout_s: float) -> A:
        """See `Asks`."""
        return self._made().ask(question, timeout_s=timeout_s)

    def close(self) -> None:
        """Ends its channels, if it has any. Idempotent."""
        close = getattr(self._asks, "close", None)
        if close is not None:
            close()

    def _made(self) -> Asks:
        if self._asks is None:
            self._asks = self._through_gateway() if self._config.cluster.uses_gateway else self._here()
        return self._asks

    def _through_gateway(self) -> Asks:
        from rmgr.adapters.rpc.gateways import user_name
        from rmgr.submitter.remote import RemoteAnswers

        cluster, user = self._config.cluster, user_name() if self._credentials is None else ""
        timeout_s = cluster.session_timeout_s
        return RemoteAnswers(cluster.gateway, credentials=self._credentials, user=user, session_timeout_s=timeout_s)

    def _here(self) -> Asks:
        from rmgr.coord.decisions.rights import ANYBODY, Person
        from rmgr.model.cluster.identity import Role
        from rmgr.runtime.secured import certifier
        from rmgr.submitter.answers import Answers

        if self._coordinator is None:
            raise CoordinationUnavailable("this connection has none to ZooKeeper, nor to a gateway", hint="rmgr.connect()")
        who, certify = ANYBODY, None
        if self._credentials is not None:
            mine = self._credentials.identity
            who = Person(name=mine.name, role=str(mine.role), is_operator=mine.role in {Role.OPERATOR, Role.ADMIN})
            certify = certifier(self._credentials)
        return Answers(self._coordinator, lambda: self._store, who, certify=certify)
