"""The lives of servers, and the ids that one life has met: it executes each id at most once, and keeps answers until clients have them.

An id is (user, guid of the client, number). Because gateways die, offers come late, twice and in any order. Four marks make that safe:

- an entry: the fate of an id in this life. An offer of a known id joins its entry, so nothing starts twice;
- `attempt`: the client numbers its tries of one id. A refusal holds for its attempt and all earlier ones, for ever; a later attempt
  is a new offer. So a client that has seen the refusal may go elsewhere, and may come back;
- `lowest`: every request names the client's lowest open number. Nothing below it is kept, and everything below it is refused;
- `refused_below`: if a client has more open ids than are remembered singly, unknown ids below this are refused.

Marks of a client that was quiet for a day are forgotten: no copy is that late, because a stream ends after 10 s of silence.

A life is over when it says so, when its successor says hello, or when no gateway has heard it for 60 s. It stays over: a gateway that hears
it again tells it to begin another life. Times are microseconds of one monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from rmgr.model.units import format_duration

#: Time without its client after which a call is killed.
ABSENT_US = 30_000_000
#: How long an answer is kept, and the most bytes of all answers, beyond which the oldest of the user with most bytes go, except the last.
KEPT_US, KEPT_BYTES = 600_000_000, 1 << 30
#: Time after which a quiet client is forgotten.
FORGOTTEN_US = 86_400_000_000
#: Ids of one client that are remembered singly, and clients of one user: a hostile client loses only its own.
MOST_IDS = MOST_CLIENTS = 10_000


class CallId(NamedTuple):
    """Names a call for ever. user: as the gateway knows it. guid: of the client's process. number: 1, 2, ... in that process."""

    user: str
    guid: str
    number: int

    def __str__(self) -> str:
        return f"{self.user}/{self.guid}/{self.number}"


class Life(NamedTuple):
    """One process of a server, until gateways give it up. number: drawn at its start."""

    server: str
    number: int

    def __str__(self) -> str:
        return f"{self.server} (life {self.number:x})"


class Outcome(StrEnum):
    """How a call ends."""

    RESULT = "result"
    FAILED = "failed"  #: the function raised, or ended its process
    TIMEOUT = "timeout"  #: never ran, or was killed at its deadline
    CANCELLED = "cancelled"
    LOST = "lost"  #: may have run, and its answer is gone
    NO_SERVER = "no server"  #: never sent: no server offers the function
    DENIED = "denied"  #: never sent: refused by a gateway


class Ending(NamedTuple):
    """End of a call. why: for people; for FAILED the remote traceback."""

    outcome: Outcome
    why: str = ""


class Fetch(NamedTuple):
    """Take the arguments of this attempt, then call `fetched` or `fetch_failed`."""


class Joined(NamedTuple):
    """The id is known already: its answer comes when it ends."""


class Refused(NamedTuple):
    """On record: this attempt and all earlier ones will not run in this life. again: a later attempt may be taken."""

    why: str
    again: bool = True


#: Result of an offer; an Ending is the answer, which is known already.
Verdict: TypeAlias = Fetch | Joined | Refused | Ending


class Kill(NamedTuple):
    """End a running call, then call `ended`."""

    call: CallId


class Drop(NamedTuple):
    """Remove the files of this call."""

    call: CallId


Order: TypeAlias = Kill | Drop


class Stage(StrEnum):
    """Stage of an id in one life."""

    FETCHING = "fetching"  #: its arguments are under way
    WAITING = "waiting"  #: for a slot
    RUNNING = "running"
    ANSWERED = "answered"
    REFUSED = "refused"  #: up to its attempt
    CLOSED = "closed"  #: its client wants nothing more


@dataclass(slots=True)
class _Entry:
    stage: Stage
    attempt: int
    heard_us: int = 0
    deadline_us: int = 0
    killed: Ending | None = None  #: the reason, once `Kill` was ordered
    ending: Ending | None = None
    ended_us: int = 0


@dataclass(slots=True)
class _Client:
    heard_us: int
    lowest: int = 0
    refused_below: int = 0
    entries: dict[int, _Entry] = field(default_factory=dict)


class Ledger:
    """The ids of one life. Not thread-safe: its owner has a lock. most_waiting, per_user: calls without a slot, of all and of one user.

    Cost: O(1) per fact; `offered` and `start` O(most_waiting), `due` O(calls that wait, run, or have an answer).
    """

    def __init__(self, *, most_waiting: int = 100, per_user: int = 50, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_waiting, self._per_user, self._kept_bytes = most_waiting, per_user, kept_bytes
        self.users: dict[str, dict[str, _Client]] = {}
        self._waiting: dict[CallId, _Entry] = {}  # FETCHING and WAITING, in order of arrival
        self._running: dict[CallId, _Entry] = {}  # CLOSED ones too, until they have ended
        self._starts = 0
        self._turns: dict[str, int] = {}  # user -> number of its last start, while the user is known
        self._answers: dict[str, dict[CallId, int]] = {}  # user -> bytes of each answer, the oldest first
        self._answer_bytes: Counter[str] = Counter()
        self._orders: list[Order] = []
        self._looked_us = 0

    @property
    def running(self) -> int:
        """Number of calls in slots."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of calls without a slot, including those whose arguments are under way."""
        return len(self._waiting)

    def orders(self) -> list[Order]:
        """Returns the orders since the last call; call it after every fact."""
        orders, self._orders = self._orders, []
        return orders

    # -- offers ---------------------------------------------------------------------------------------------------------------

    def offered(
        self, call: CallId, *, attempt: int, lowest: int, left_us: int, now_us: int, refusal: Refused | None = None
    ) -> Verdict:
        """Takes a gateway's offer of a call. left_us: until its deadline. refusal: used if the call is new."""
        client = self._client(call, now_us)
        self._close_below(call, client, lowest)
        if call.number < client.lowest:
            return Refused(f"its client has closed all calls below {client.lowest}", again=False)
        entry = client.entries.get(call.number)
        if entry is None or (entry.stage is Stage.REFUSED and attempt > entry.attempt):
            return self._new(call, client, attempt, now_us, now_us + left_us, refusal)
        if entry.stage is Stage.CLOSED:
            return Refused("its client has closed it", again=False)
        if attempt < entry.attempt or entry.stage is Stage.REFUSED:
            return Refused("an older copy of an offer")
        is_newer, entry.attempt, entry.heard_us = attempt > entry.attempt, attempt, now_us
        if entry.ending is not None:
            return entry.ending
        return Fetch() if entry.stage is Stage.FETCHING and is_newer else Joined()  # the stream of the earlier attempt is useless

    def fetched(self, call: CallId, attempt: int) -> bool:
        """Notes that all arguments of this attempt have arrived; False: they are no longer wanted."""
        entry = self._waiting.get(call)
        if entry is None or entry.stage is not Stage.FETCHING or entry.attempt != attempt:
            return False
        entry.stage = Stage.WAITING
        self._waiting[call] = self._waiting.pop(call)  # slots are taken in the order of complete arguments
        return True

    def fetch_failed(self, call: CallId, attempt: int) -> None:
        """Notes that the stream of the arguments ended early."""
        entry = self._waiting.get(call)
        if entry is not None and entry.stage is Stage.FETCHING and entry.attempt == attempt:
            self._refuse(call, entry)

    # -- execution ------------------------------------------------------------------------------------------------------------

    def start(self, now_us: int) -> CallId | None:
        """Returns the call that takes the free slot; None: no call with all its arguments waits.

        It is of the user with the fewest calls in slots, among these of who has waited longest for a turn; its calls are taken in order.
        """
        self._overdue(now_us)
        running = Counter(call.user for call in self._running)
        ready = (call for call, entry in self._waiting.items() if entry.stage is Stage.WAITING)
        call = min(ready, key=lambda call: (running[call.user], self._turns.get(call.user, 0)), default=None)
        if call is not None:
            entry = self._running[call] = self._waiting.pop(call)
            entry.stage = Stage.RUNNING
            self._starts += 1
            self._turns[call.user] = self._starts
        return call

    def ended(self, call: CallId, ending: Ending, *, now_us: int, size_bytes: int = 0) -> Ending | None:
        """Notes the end of a running call, and the size of its answer. Returns the answer to give, None if it is not wanted."""
        entry = self._running.pop(call, None)
        if entry is None:
            return None
        if entry.killed is not None and ending.outcome is not Outcome.RESULT:
            ending = entry.killed
        if entry.stage is Stage.CLOSED:
            self._orders.append(Drop(call))
            return None
        self._answer(call, entry, ending, now_us, size_bytes)
        return ending

    # -- clients --------------------------------------------------------------------------------------------------------------

    def heard(self, call: CallId, now_us: int) -> None:
        """Notes a sign of life of the call's client."""
        entry = self._entry_of(call)
        if entry is not None:
            entry.heard_us = now_us

    def acknowledged(self, call: CallId, now_us: int) -> None:
        """Notes that the client has the answer, or wants none: a waiting call never runs, a running one is killed, copies are refused."""
        client = self._client(call, now_us)
        if call.number < client.lowest:
            return
        entry = client.entries.get(call.number)
        if entry is None and len(client.entries) >= MOST_IDS:
            client.refused_below = max(client.refused_below, call.number + 1)
        elif entry is None:  # it has overtaken the offer
            client.entries[call.number] = _Entry(Stage.CLOSED, 0)
        else:
            self._close(call, entry)

    #: A client that cancels wants no answer.
    cancelled = acknowledged

    def due(self, now_us: int) -> None:
        """Ends what time has ended; call it once a second."""
        self._overdue(now_us)
        for call, entry in list(self._waiting.items()):
            if now_us - entry.heard_us >= ABSENT_US:
                self._refuse(call, entry)
        for call, entry in self._running.items():
            if now_us >= entry.deadline_us:
                self._kill(call, entry, Ending(Outcome.TIMEOUT, "it ran, and was killed at its deadline"))
            elif now_us - entry.heard_us >= ABSENT_US:
                self._kill(call, entry, Ending(Outcome.LOST, f"it was killed: its client was away for {format_duration(ABSENT_US / 1e6)}"))
        for mine in list(self._answers.values()):
            for call in list(mine):
                answered = self._entry_of(call)
                if answered is not None and now_us - answered.ended_us < KEPT_US:
                    break
                self._lose(call)
        if now_us - self._looked_us >= ABSENT_US:
            self._looked_us = now_us
            for user, clients in list(self.users.items()):
                for guid in [guid for guid, client in clients.items() if _is_idle(client) and now_us - client.heard_us >= FORGOTTEN_US]:
                    del clients[guid]
                if not clients:
                    del self.users[user]
                    self._turns.pop(user, None)

    # -- parts ----------------------------------------------------------------------------------------------------------------

    def _new(
        self, call: CallId, client: _Client, attempt: int, now_us: int, deadline_us: int, refusal: Refused | None
    ) -> Verdict:
        if call.number not in client.entries and (len(client.entries) >= MOST_IDS or call.number < client.refused_below):
            client.refused_below = max(client.refused_below, call.number + 1)
            return Refused(f"its client has {MOST_IDS} open calls here", again=False)
        if refusal is None and deadline_us <= now_us:
            refusal = Refused("its time is over", again=False)
        if refusal is None and len(self._waiting) >= self._most_waiting:
            refusal = Refused(f"{self._most_waiting} calls wait here")
        if refusal is None and sum(other.user == call.user for other in self._waiting) >= self._per_user:
            refusal = Refused(f"{self._per_user} calls of {call.user} wait here")
        entry = client.entries[call.number] = _Entry(Stage.REFUSED, attempt, now_us, deadline_us)
        if refusal is not None:
            return refusal
        entry.stage = Stage.FETCHING
        self._waiting[call] = entry
        return Fetch()

    def _client(self, call: CallId, now_us: int) -> _Client:
        clients = self.users.setdefault(call.user, {})
        client = clients.get(call.guid)
        if client is None:
            if len(clients) >= MOST_CLIENTS:
                idle = [guid for guid, other in clients.items() if _is_idle(other)]
                del clients[min(idle or clients, key=lambda guid: clients[guid].heard_us)]
            client = clients[call.guid] = _Client(now_us)
        client.heard_us = now_us
        return client

    def _entry_of(self, call: CallId) -> _Entry | None:
        client = self.users.get(call.user, {}).get(call.guid)
        return None if client is None else client.entries.get(call.number)

    def _close_below(self, call: CallId, client: _Client, lowest: int) -> None:
        if lowest > client.lowest:
            client.lowest = lowest
            for number in [number for number in client.entries if number < lowest]:
                self._close(call._replace(number=number), client.entries.pop(number))

    def _close(self, call: CallId, entry: _Entry) -> None:
        if entry.stage is Stage.RUNNING:
            self._kill(call, entry, Ending(Outcome.CANCELLED))
        elif self._waiting.pop(call, None) is not None or entry.stage is Stage.ANSWERED:
            self._drop_answer(call)
        entry.stage = Stage.CLOSED

    def _kill(self, call: CallId, entry: _Entry, why: Ending) -> None:
        if entry.killed is None:
            entry.killed = why
            self._orders.append(Kill(call))

    def _refuse(self, call: CallId, entry: _Entry) -> None:
        """Refuses a call that never ran."""
        del self._waiting[call]
        entry.stage = Stage.REFUSED
        self._orders.append(Drop(call))

    def _overdue(self, now_us: int) -> None:
        for call, entry in list(self._waiting.items()):
            if now_us >= entry.deadline_us:
                del self._waiting[call]
                self._answer(call, entry, Ending(Outcome.TIMEOUT, "it never ran: no slot was free before its deadline"), now_us, 0)

    def _answer(self, call: CallId, entry: _Entry, ending: Ending, now_us: int, size_bytes: int) -> None:
        entry.stage, entry.ending, entry.ended_us = Stage.ANSWERED, ending, now_us
        self._answers.setdefault(call.user, {})[call] = size_bytes
        self._answer_bytes[call.user] += size_bytes
        while sum(self._answer_bytes.values()) > self._kept_bytes:
            mine = self._answers[max(self._answers, key=self._answer_bytes.__getitem__)]
            if len(mine) == 1:
                break
            self._lose(next(iter(mine)))

    def _lose(self, call: CallId) -> None:
        """Forgets the answer; remembers that there was one."""
        entry = self._entry_of(call)
        if entry is not None:
            entry.ending = Ending(Outcome.LOST, "it ran, and its answer was not kept longer")
        self._drop_answer(call)

    def _drop_answer(self, call: CallId) -> None:
        """Drops the files of a call, and its answer if there is one."""
        mine = self._answers.get(call.user, {})
        self._answer_bytes[call.user] -= mine.pop(call, 0)
        if not mine:
            self._answers.pop(call.user, None)
            del self._answer_bytes[call.user]
        self._orders.append(Drop(call))


def _is_idle(client: _Client) -> bool:
    """Returns whether no call of the client runs or waits."""
    return all(entry.stage in (Stage.REFUSED, Stage.CLOSED) or entry.ending is not None for entry in client.entries.values())


# -- lives that are heard, silent, or over: gateways and the leader each keep such a register ----------------------------------


SILENT_US, OVER_US = 10_000_000, 60_000_000
#: How long lives that are over are remembered, and how many of them.
REMEMBERED_US, REMEMBERED = 3_600_000_000, 10_000


class Standing(StrEnum):
    """Standing of a life."""

    HEARD = "heard"
    SILENT = "silent"  #: for 10 s: idempotent calls may go elsewhere
    OVER = "over"


class Lives:
    """A register of lives. Cost: O(1), except that `standing` of many lives that are over is O(those) now and then."""

    def __init__(self) -> None:
        self._heard: dict[Life, int] = {}
        self._current: dict[str, Life] = {}
        self._over: dict[Life, int] = {}

    def hello(self, life: Life, now_us: int) -> bool:
        """Notes a process that opens its stream; the server's earlier life is over. Returns False if this life itself is over."""
        if life in self._over:
            return False
        before = self._current.get(life.server)
        if before is not None and before != life:
            self.over(before, now_us)
        self._current[life.server] = life
        return self.heard(life, now_us)

    def heard(self, life: Life, at_us: int) -> bool:
        """Notes that this gateway, or another that reports every few seconds, heard the life at `at_us`. Returns False if it is over."""
        if life in self._over:
            return False
        self._heard[life] = max(at_us, self._heard.get(life, at_us))
        return True

    def over(self, life: Life, now_us: int) -> None:
        """Notes that a life is over, by its own word or another gateway's."""
        self._heard.pop(life, None)
        self._over.setdefault(life, now_us)
        if self._current.get(life.server) == life:
            del self._current[life.server]
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]

    def standing(self, life: Life, now_us: int) -> Standing:
        """Returns the standing. An unknown life counts as heard now, so that a new register does not declare lives over."""
        if life in self._over:
            return Standing.OVER
        silent_us = now_us - self._heard.setdefault(life, now_us)
        if silent_us >= OVER_US:
            self.over(life, now_us)
            return Standing.OVER
        return Standing.SILENT if silent_us >= SILENT_US else Standing.HEARD

    def forget(self, now_us: int) -> None:
        """Forgets lives that have been over for an hour; call it once a minute."""
        for life in [life for life, at_us in self._over.items() if now_us - at_us >= REMEMBERED_US]:
            del self._over[life]
        for life in list(self._heard):
            self.standing(life, now_us)
