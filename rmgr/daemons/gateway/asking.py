"""Answers the questions of clients (`rmgr/submitter`), each with the rights of the asking client."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.identity.pki import signing_certificate
from rmgr.coord.decisions.rights import Person
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Multi, Outcome
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.daemons.service.serving import audited, person_of
from rmgr.errors import LimitReached
from rmgr.log import audit
from rmgr.procedures.output_keys import Fates
from rmgr.runtime import machine
from rmgr.runtime.machine import Log
from rmgr.submitter.answers import Answers
from rmgr.submitter.questions import ORDERS, RIGHTS, Question, Right, decode_question, encode_answer, target_of

#: Most tasks in one answer.
_MOST_TASKS = 20_000
#: Root -> most znodes of one user below one parent (for orders: below each node's inbox), and bytes of their data; per gateway.
MOST: Mapping[str, tuple[int, int]] = {
    paths.REQUESTS: (1000, 1 << 20),
    paths.INBOX: (500, 1 << 18),
}
_WHAT = {
    paths.REQUESTS: ("requests to the leader within a minute", "wait a minute, or ask for more tasks at once"),
    paths.INBOX: ("orders that a node has not obeyed", "wait until it has, or is known to be dead; rmgr nodes"),
}
_OPERATIONS = {"ASK", "ORDER"}
_TIMEOUT_S = 5.0
#: Longest expected duration of a commit; pause between looks for a user who has reached the bound.
_ON_ITS_WAY_S, _LOOK_S = 2.0, 0.25
#: Most pairs of user and parent that are remembered.
_KEEP = 20_000


class Loose:
    """Bounds the znodes that users leave beside their submissions: requests to the leader, orders to nodes. Thread-safe.

    They vanish soon, once they are obeyed or answered. So a gateway remembers what it made for each user, and checks what is left only when
    that is much. Cost: 2 us; at the bound, one list of children.
    """

    def __init__(self, coordinator: Coordinator, *, clock: Callable[[], float] | None = None) -> None:
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._clock = clock or machine.monotonic
        self._made: OrderedDict[tuple[str, str], list[tuple[str, int, float]]] = OrderedDict()  # (user, parent) -> (name, bytes, when)
        self._full_s: dict[tuple[str, str], float] = {}  # when the last look found too much left

    def check(self, user: str, multi: Multi) -> None:
        """Counts what `multi` creates. Raises LimitReached, CoordinationUnavailable."""
        if multi.name not in _OPERATIONS or not isinstance(op := multi.ops[0], Create):
            return
        parent, _, name = op.path.rpartition("/")
        root = f"/{parent.split('/')[1]}"
        most, most_bytes = MOST[root]
        if self._has_counted(user, parent, name, len(op.data), most, most_bytes):
            return
        if self._clock() - self._full_s.get((user, parent), -math.inf) > _LOOK_S:
            names = self._coordinator.children(parent, timeout_s=_TIMEOUT_S).result(_TIMEOUT_S + 1)
            self._settle(user, parent, names or [])
            if self._has_counted(user, parent, name, len(op.data), most, most_bytes):
                return
            self._full_s = {key: at for key, at in self._full_s.items() if self._clock() - at < _LOOK_S} | {(user, parent): self._clock()}
        what, advice = _WHAT[root]
        raise LimitReached(f"{user} has {most}, or {most_bytes} bytes, of {what}", hint=advice)

    def _has_counted(self, user: str, parent: str, name: str, size: int, most: int, most_bytes: int) -> bool:
        with self._lock:
            made = self._made.setdefault((user, parent), [])
            self._made.move_to_end((user, parent))
            if len(made) >= most or sum(size for _, size, _ in made) + size > most_bytes:
                return False
            made.append((name, size, self._clock()))
            while len(self._made) > _KEEP:
                self._made.popitem(last=False)
            return True

    def _settle(self, user: str, parent: str, names: list[str]) -> None:
        """Keeps the names that are left, and names so recent that their commit may still be in flight."""
        left = Counter(names)
        kept = []
        with self._lock:
            for name, size, at_s in self._made.get((user, parent), []):
                if left[name] > 0 or self._clock() - at_s < _ON_ITS_WAY_S:
                    left[name] -= 1
                    kept.append((name, size, at_s))
            self._made[user, parent] = kept


class _BoundedCoordinator:
    """The gateway's coordinator for orders of one user; bounds what they leave beside submissions."""

    def __init__(self, coordinator: Coordinator, loose: Loose, user: str) -> None:
        self._coordinator = coordinator
        self._loose = loose
        self._user = user

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    def commit(self, multi: Multi, *, timeout_s: float = 10.0) -> Future[Outcome]:
        """See `Coordinator`. Raises LimitReached."""
        self._loose.check(self._user, multi)
        return self._coordinator.commit(multi, timeout_s=timeout_s)


class Asking:
    """Answers clients' questions to a gateway.

    Args:
        owner_of: returns the user of a submission. loose: bounds what users leave beside their submissions.
        operators: from the gateway's configuration. ca_pem: of a secured cluster, None in an open one.
        count: see `GatewayMetrics.count`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        log: Log | None,
        *,
        owner_of: Callable[[int], str | None],
        loose: Loose,
        operators: Collection[str] = (),
        ca_pem: bytes | None = None,
        count: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._log = log
        self._owner_of = owner_of
        self._loose = loose
        self._operators = tuple(operators)
        self._certify = partial(signing_certificate, ca_pem=ca_pem) if ca_pem is not None else None
        self._count = count
        self._fates = Fates(store, coordinator)

    def answer(self, data: bytes, caller: Caller, timeout_s: float) -> bytes:
        """Returns the answer to a question. Raises the reason of a refusal. May block."""
        question = decode_question(data)
        kind, name = type(question), type(question).__name__
        self._count("asked", name)
        person = person_of(caller, self._operators)
        with audited(self._log, person, ORDERS.get(kind, name), target_of(question)):
            return encode_answer(self._answers(person, caller).ask(question, timeout_s=timeout_s))

    def _answers(self, person: Person, caller: Caller) -> Answers:
        bounded = cast(Coordinator, _BoundedCoordinator(self._coordinator, self._loose, person.name))
        return Answers(
            self._coordinator if person.is_free else bounded,
            lambda: self._store,
            person,
            owner_of=self._owner_of,
            is_direct=person.is_open,
            own_key=caller.identity.key_id if caller.identity is not None else "",
            certify=self._certify,
            most_tasks=_MOST_TASKS,
            ordered=partial(self._audit_order, person),
            fates=self._fates,
        )

    def _audit_order(self, person: Person, question: Question[Any], others: Collection[str]) -> None:
        """Audits what operators do to others' work, and to the whole cluster."""
        if self._log is None or person.is_open or not (others or RIGHTS[type(question)] is Right.OPERATOR):
            return
        why = f"{person.name} is an operator" + (f", it is work of {', '.join(sorted(others))}" if others else "")
        what = ORDERS[type(question)]
        audit(self._log, who=person.name, role=person.role, what=what, target=target_of(question), allowed=True, why=why)
