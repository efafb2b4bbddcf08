"""Serves the streams of clients (`submitter/messages.py`): each client that submits or follows has a `DirectWork` on the one Submitter.

What may block (orders, questions, reads before a submission is kept) runs on a few threads, users taking turns; everything else runs on
the Submitter's thread, which never blocks. Questions are answered with the rights of the asking client (`Asking`). Nothing here matters
when the gateway dies: clients repeat everything to another one.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.turns import Had, UserTurns
from rmgr.adapters.gateway.talk import Stream
from rmgr.adapters.identity.pki import signing_certificate
from rmgr.coord.decisions.rights import Person, check
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Multi, Outcome
from rmgr.coord.protocol.ports import Coordinator, SessionState
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.gateway.door import ClusterUse, check_growth, check_order
from rmgr.daemons.gateway.values import GatewayContext
from rmgr.daemons.service.serving import audited
from rmgr.errors import DaemonFailed, InvalidRecord, LimitReached, PermissionDenied, RmgrError, Throttled, Unavailable, VersionMismatch
from rmgr.log import audit
from rmgr.model.line import ClaimStage
from rmgr.model.node import SubmitterEntry
from rmgr.model.submission import Phase, Submission, Tail
from rmgr.procedures.admission import check_admitted
from rmgr.procedures.output_keys import Fates
from rmgr.runtime import machine
from rmgr.runtime.mailbox import fulfil
from rmgr.runtime.story import Pause, Stories, Story
from rmgr.submitter import messages
from rmgr.submitter.answers import Answers
from rmgr.submitter.direct import DirectWork, Submitter
from rmgr.submitter.port import Grown, Growth, Read, Stored, Submitted
from rmgr.submitter.questions import ORDERS, RIGHTS, Question, Right, decode_question, encode_answer, target_of
from rmgr.submitter.upkeep import Upkeep

T = TypeVar("T")
#: Threads for orders, which wait for commits, and most of them for one user; the same for reads. Reads get few threads, because they
#: compute, and the gateway's other threads need the interpreter in between.
_ORDERS_AT_ONCE, _ORDERS_OF_ONE = 16, 8
_READS_AT_ONCE, _READS_OF_ONE = 3, 2
#: Jobs of one user that may wait for a thread; beyond that, nothing more is read from the user.
_MOST_WAITING = 128
#: Time limit of reading a record; longest timeouts that clients may ask for orders, and for answers.
_READ_S, _LONGEST_S, _LONGEST_ANSWER_S = 10.0, 120.0, 60.0
#: Pause before an unreadable record is read again (s).
_AGAIN_S = 0.5
#: Most messages about a submission that wait until its record was read; rmgr's own client has sent three by then.
_MOST_EARLY = 64
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


@dataclass(slots=True, eq=False)
class _Job:
    user: str
    call: Callable[[], None]
    is_operator: bool


class TurnsPool:
    """Runs jobs on a few threads: jobs of operators first, then those of the users who have had least time. Thread-safe.

    Args: threads: in all; of_one: most for one user.
    """

    def __init__(self, had: Had, threads: int, of_one: int) -> None:
        self._had = had
        self._turns: UserTurns[_Job] = UserTurns(
            of_one,
            lambda job: -1.0 if job.is_operator else had.of(job.user),
            rests=lambda job: not job.is_operator and had.must_rest(job.user),
        )
        self._waiting: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room: dict[str, threading.Condition] = {}  #: by user: waits until fewer of the user's jobs wait
        self._closed = False
        had.on_breath(self._look_again)
        for at in range(threads):
            machine.Thread(target=self._run, name=f"gateway-work-{at}", daemon=True).start()

    def run(self, user: str, call: Callable[[], None], *, is_operator: bool = False) -> None:
        """Runs a job; blocks while too many jobs of the user wait already."""
        self.wait_for_room(user)
        self._append(user, call, is_operator)

    def wait_for_room(self, user: str) -> None:
        """Blocks while too many jobs of the user wait."""
        user = user or "nobody"
        with self._lock:
            if self._waiting[user] >= _MOST_WAITING:
                room = self._room.setdefault(user, threading.Condition(self._lock))
                room.wait_for(lambda: self._closed or self._waiting[user] < _MOST_WAITING)

    def answer(self, user: str, call: Callable[[], T], *, is_operator: bool = False) -> Future[T]:
        """Runs a job for a story; does not block."""
        answer: Future[T] = Future()
        self._append(user, lambda: fulfil(answer, call), is_operator)
        return answer

    def _append(self, user: str, call: Callable[[], None], is_operator: bool) -> None:
        user = user or "nobody"  # "" would go before all others
        self._had.wait(user, 1)
        with self._lock:
            self._waiting[user] += 1
            self._turns.append(user, _Job(user, call, is_operator))
            self._work.notify()

    def close(self) -> None:
        """Drops waiting jobs."""
        with self._lock:
            self._closed = True
            self._turns.clear()
            for changed in (self._work, *self._room.values()):
                changed.notify_all()

    def _look_again(self) -> None:
        with self._lock:
            self._work.notify_all()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            began_s = machine.monotonic()
            try:
                job.call()
            finally:
                self._had.add(job.user, machine.monotonic() - began_s)
                self._had.wait(job.user, -1)
                with self._lock:
                    _decrement(self._under_way, job.user)  # this thread takes one of the jobs that the user may run now

    def _next(self) -> _Job | None:
        with self._lock:
            while not self._closed:
                user = self._turns.next(self._under_way)
                if user is not None:
                    _decrement(self._waiting, user)
                    self._under_way[user] += 1
                    if user in self._room and self._waiting[user] <= _MOST_WAITING // 2:
                        self._room.pop(user).notify_all()
                    return self._turns.take(user)
                self._work.wait()
            return None


def _decrement(counts: Counter[str], user: str) -> None:
    """Counts down; forgets users at 0."""
    counts[user] -= 1
    if not counts[user]:
        del counts[user]


class Desk:
    """What the streams of a gateway share.

    Args: submitter: on the gateway's session and store. answer: returns the answer to a question within some seconds, or raises.
        use: of the whole cluster by users, None = not checked.
    """

    def __init__(
        self, context: GatewayContext, submitter: Submitter, answer: Callable[[bytes, Caller, float], bytes], use: ClusterUse | None
    ) -> None:
        self.context = context
        self.submitter = submitter
        self.log, self.bounds, self.count = context.log, context.bounds, context.count
        self.answer = answer
        self.use = use
        self.orders = TurnsPool(Had(), _ORDERS_AT_ONCE, _ORDERS_OF_ONE)  # counts orders alone: a user who asks a lot may still submit
        self.reads = TurnsPool(context.bounds.had, _READS_AT_ONCE, _READS_OF_ONE)
        self._lingering: dict[str, deque[tuple[float, DirectWork]]] = {}  # user -> until when; on the Submitter's thread

    def talker(self, caller: Caller, stream: Stream) -> ClientTalk:
        """Returns the talker for one client."""
        return ClientTalk(self, caller, stream)

    def linger(self, user: str, work: DirectWork) -> None:
        """Keeps a client's ownership for a while after its stream broke: it may be on its way to another gateway.

        As many owners of one user linger as the user may have clients; beyond that the oldest ends at once, or a user who keeps
        reconnecting would fill the list.
        """
        now_s, lingers_s = machine.monotonic(), work.session_timeout_s
        his = self._lingering.setdefault(user, deque())
        his.append((now_s + lingers_s, work))
        work.end(lingers_s)
        most = self.bounds.limits.of("sessions", user)
        while his and (his[0][0] <= now_s or 0 < most < len(his)):
            his.popleft()[1].disown()
        for other in [other for other, entries in self._lingering.items() if entries[-1][0] <= now_s]:
            del self._lingering[other]

    def close(self) -> None:
        """Ends the threads, after all streams have ended."""
        self.orders.close()
        self.reads.close()


class ClientTalk:
    """Implements `adapters.gateway.talk.Talker` for one client."""

    def __init__(self, desk: Desk, caller: Caller, stream: Stream) -> None:
        self._desk = desk
        self._caller = caller
        self._person = desk.context.person_of(caller)
        self._stream = stream
        self._work: DirectWork | None = None
        self._guid = ""
        self.stories = Stories(desk.submitter)  #: on the Submitter's thread
        self._kept: dict[int, _KeptSubmission] = {}  #: on that thread
        self._fresh: Submitted | None = None  #: this stream's last submission: it need not be read to be kept
        self._is_resting = False  #: on that thread: nothing is read for the client, who has not taken what waits
        self._has_gone = False  #: its work is over
        self._is_over = False

    # -- Talker, on the reader's thread

    def heard(self, words: Sequence[bytes]) -> list[Callable[[], None]]:
        """See `Talker`. Returns once the Submitter has taken the messages in, so that they pile up before no other client's messages."""
        later: list[Callable[[], None]] = []
        is_his = False  #: meant for the Submitter; questions and orders do not concern it yet
        try:
            for word in words:
                message = messages.read_client(word)
                is_his = is_his or not isinstance(message, messages.Ask | messages.Place)
                self._handle(message, later)
        finally:
            if is_his:
                taken_in = threading.Event()
                self._desk.submitter.post(taken_in.set)
                taken_in.wait(_LONGEST_S)
        return later

    def _handle(self, message: messages.FromClient, later: list[Callable[[], None]]) -> None:
        desk, user = self._desk, self._caller.user
        post = desk.submitter.post
        match message:
            case messages.Ask():
                end_s = machine.monotonic() + min(_LONGEST_ANSWER_S, message.timeout_ms / 1000)
                is_operator = self._caller.is_certified_operator
                later.append(lambda: desk.reads.run(user, lambda: self._answer(message, end_s), is_operator=is_operator))
            case messages.Hello():
                self._hello(message)
            case _ if self._work is None:
                raise InvalidRecord("who submits or follows says hello first", hint="rmgr version")
            case messages.Place():
                desk.count("asked", "submit")
                later.append(lambda: desk.orders.run(user, lambda: self._place(message)))
            case messages.Keep():
                room: Future[None] = Future()
                post(lambda: self.stories.begin(self._keep(message, room), key=("keep", message.id)))
                later.append(lambda: fulfil(room, lambda: self._wait_for_room(message.id)))
            case messages.Grow():
                desk.count("asked", "grow")
                growth = self._growth_of(message)
                self._tell_kept(message.id, lambda kept: kept.grow(growth, is_announced=message.is_announced))
            case messages.Leave():
                post(lambda: self._leave_kept(message.id))
            case messages.Claiming():
                self._tell_kept(message.id, lambda kept: kept.claimed(message.stage))
            case messages.AskTail():
                self._tell_kept(message.id, lambda kept: kept.ask_tail(message.serial))
            case messages.Bye():
                post(self._release_work)

    def taken(self) -> None:
        self._desk.submitter.post(self._resume_kept)

    def over(self) -> None:
        self._desk.submitter.post(self._end)

    # -- begin and end

    def _hello(self, hello: messages.Hello) -> None:
        if hello.version != messages.VERSION:
            raise VersionMismatch(
                f"the client speaks version {hello.version} of the gateway's protocol, this gateway version {messages.VERSION}",
                hint=f"upgrade the {'gateway' if hello.version > messages.VERSION else 'client'}: rmgr version",
            )
        if self._work is not None:
            raise InvalidRecord("a stream has one hello", hint="rmgr version")
        if self._caller.is_open:
            self._caller = replace(self._caller, claimed=hello.user)
            self._person = self._desk.context.person_of(self._caller)
        user = "" if self._caller.is_open else self._caller.user
        self._guid = hello.guid
        entry = SubmitterEntry(guid=hello.guid, host=hello.host, pid=hello.pid, since_us=hello.since_us, user=user)
        submitter = self._desk.submitter
        self._work = submitter.work(entry, self._on_state)
        self.say(messages.Welcome(messages.VERSION, round(submitter.coordinator.session_timeout_s * 1000)))
        submitter.post(lambda: self._on_state(submitter.session_state))

    def _on_state(self, state: SessionState) -> None:
        self.say(messages.State(state.value))

    def _end(self) -> None:
        self._is_over = True
        self._release_work(lingers=True)

    def _release_work(self, *, lingers: bool = False) -> None:
        for kept_id in list(self._kept):
            self._leave_kept(kept_id)
        if self._work is None or self._has_gone:
            return
        self._has_gone = True
        if lingers:
            self._desk.linger(self._caller.user, self._work)
        else:
            self._work.end(0.0)

    # -- questions and orders, on a thread that may block

    def _answer(self, ask: messages.Ask, end_s: float) -> None:
        left_s = end_s - machine.monotonic()
        if self._is_over or left_s <= 0:
            return  # no client waits for it any more
        try:
            if self._stream.is_full:
                raise Throttled("answers wait to be taken", hint="take them, or ask for less at once")
            answer = self._desk.answer(ask.question, self._caller, left_s)
        except RmgrError as error:
            self._count_refusal(error)
            self.say(messages.Answer(ask.id, b"", True, messages.Fault.of(error)))
        except Exception as error:
            self._desk.log.exception("question_failed", user=self._caller.user)
            self.say(messages.Answer(ask.id, b"", True, messages.Fault.of(_internal_error(error))))
        else:
            for piece in messages.answers_of(ask.id, answer):
                self.say(piece)

    def _place(self, place: messages.Place) -> None:
        work = self._work
        assert work is not None
        if self._is_over:
            return
        try:
            with audited(self._desk.log, self._person, "SUBMIT", ""):
                order = messages.order_of(place)
                check_order(order, self._person)
                check_admitted(order.draft, work.settings(), tasks=order.tasks)
            if self._desk.use is not None:
                self._desk.use.check_order(self._caller.user, place, order)
            made = work.submit(order, timeout_s=min(_LONGEST_S, place.timeout_ms / 1000), is_repeat=place.is_repeat)
        except RmgrError as error:
            self._refuse(place.id, error)
        except Exception as error:
            self._desk.log.exception("order_failed", user=self._caller.user)
            self._refuse(place.id, _internal_error(error))
        else:
            self._desk.count("committed", "SUBMIT")
            self._fresh = made if made.created and order.is_owned else None
            self.say(messages.placed_of(place.id, made))

    def _refuse(self, order_id: int, error: RmgrError) -> None:
        self._count_refusal(error)
        self.say(messages.Refused(order_id, messages.Fault.of(error)))

    def _count_refusal(self, error: RmgrError) -> None:
        self._desk.count("refused", type(error).__name__)

    def _growth_of(self, grow: messages.Grow) -> Growth | RmgrError:
        """Returns the growth, or why it is refused."""
        try:
            growth = messages.growth_of(grow)
            if self._desk.use is not None and not grow.is_announced:
                self._desk.use.check_growth(self._caller.user, grow, growth)
        except RmgrError as error:
            return error
        return growth

    # -- kept submissions, on the Submitter's thread

    def _keep(self, keep: messages.Keep, room: Future[None]) -> Story[None]:
        """Begins to keep a submission, once its record was read. Reads again while the store is away: a client from another gateway waits.

        room: for one more job of the user; nothing more is read from a client that keeps too many.
        """
        work = self._work
        assert work is not None
        if self._has_gone or self._is_over or keep.id in self._kept:
            return
        try:
            self._desk.bounds.take("followed", self._caller.user)
        except RmgrError as error:
            self._count_refusal(error)
            self.say(messages.Dead(keep.id, messages.Fault.of(error)))
            return
        kept = self._kept[keep.id] = _KeptSubmission(self, keep, work)
        fresh = self._fresh
        if fresh is not None and keep.is_fresh and keep.is_owned and keep.number == fresh.submission.id:
            self._fresh = None
            kept.begin(fresh)
            return
        yield room
        is_operator = self._caller.is_certified_operator
        while True:
            try:
                stored = yield self._desk.reads.answer(self._caller.user, lambda: self._read(keep, work), is_operator=is_operator)
                break
            except TimeoutError:
                pass  # this process stood still while ZooKeeper answered
            except Unavailable as error:
                kept.on_trouble(error)
            except RmgrError as error:
                self._count_refusal(error)
                kept.on_dead(error)
                return
            except Exception as error:
                self._desk.log.exception("keeping_failed", user=self._caller.user)
                kept.on_dead(_internal_error(error))
                return
            yield Pause(self._desk.submitter.jitter(_AGAIN_S))
        kept.begin(stored)

    def _wait_for_room(self, kept_id: int) -> None:
        """Blocks while too many of the user's jobs wait, on the reader's thread; not for what this stream has made, or has left."""
        kept = self._kept.get(kept_id)
        if kept is not None and kept.is_unread:
            self._desk.reads.wait_for_room(self._caller.user)

    def _read(self, keep: messages.Keep, work: DirectWork) -> Stored | None:
        """Reads a kept submission, on a thread that may block; None if it was left meanwhile. Raises: NotFound, PermissionDenied, ..."""
        if keep.id not in self._kept:
            return None
        stored = work.read(keep.number, timeout_s=_READ_S)
        self._check_owner(keep, stored.submission)
        return stored

    def _check_owner(self, keep: messages.Keep, submission: Submission) -> None:
        with audited(self._desk.log, self._person, "FOLLOW", str(keep.number)):
            check(self._person, keep.number, submission.user)
            is_own = self._person.is_open or self._person.owns(submission.user)
            if (keep.is_owned or keep.wants_ownership) and not is_own:
                raise PermissionDenied(f"submission {keep.number} belongs to {submission.user}", hint="its owner alone adds tasks")
            has_ended = submission.phase is Phase.CLOSED  # perhaps while its owner was on the way here: it has no owner any more
            if keep.is_owned and submission.owner != self._guid and not has_ended:
                raise PermissionDenied(
                    f"submission {keep.number} is looked after by another Submitter", hint="TaskQueue.attach(name) follows it"
                )

    def _tell_kept(self, kept_id: int, call: Callable[[_KeptSubmission], None]) -> None:
        """Calls `call` on the Submitter's thread, once the submission's record was read."""

        def tell() -> None:
            if (kept := self._kept.get(kept_id)) is not None:
                kept.when_ready(call)

        self._desk.submitter.post(tell)

    def _leave_kept(self, kept_id: int) -> None:
        kept = self.forget(kept_id)
        if kept is not None:
            kept.leave()

    def _resume_kept(self) -> None:
        self._is_resting = False
        for kept in self._kept.values():
            kept.rest(is_resting=False)

    # -- for kept submissions

    def say(self, message: messages.FromGateway) -> None:
        """Sends a message to the client, unless its stream is over."""
        if not self._is_over:
            self._stream.say(messages.encode(message))

    def rest_if_full(self) -> None:
        """Reads nothing more of any submission for a client for whom so much waits: or each of thousands would bring a little more."""
        if not self._is_resting and self._stream.is_full:
            self._is_resting = True
            for kept in self._kept.values():
                kept.rest(is_resting=True)

    @property
    def is_resting(self) -> bool:
        """Whether nothing is read for the client now."""
        return self._is_resting

    def forget(self, kept_id: int) -> _KeptSubmission | None:
        """Forgets a submission that was left or has died, and returns it."""
        self.stories.end(("keep", kept_id))
        kept = self._kept.pop(kept_id, None)
        if kept is not None:
            self._desk.bounds.give_back("followed", self._caller.user)
        return kept


def _internal_error(error: Exception) -> RmgrError:
    return DaemonFailed(f"the gateway failed: {error!r}"[:500], hint="its log says more")


class _KeptSubmission:
    """Implements `port.KeptListener` for one submission of one client. Messages about it wait until its record was read."""

    def __init__(self, talk: ClientTalk, keep: messages.Keep, work: DirectWork) -> None:
        self.keep = keep
        self._talk = talk
        self._work = work
        self._upkeep: Upkeep | None = None
        self._waiting: list[Callable[[_KeptSubmission], None]] = []
        self._most_left = 0

    @property
    def is_unread(self) -> bool:
        """Whether its record must still be read."""
        return self._upkeep is None

    def begin(self, stored: Stored) -> None:
        """Starts keeping, after the record was read."""
        keep = self.keep
        self._upkeep = self._work.keep(
            stored,
            self,
            is_owned=keep.is_owned,
            wants_ownership=keep.wants_ownership,
            is_fresh=keep.is_fresh,
            fragment=keep.fragment,
            is_resting=self._talk.is_resting,
        )
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(self)

    def when_ready(self, call: Callable[[_KeptSubmission], None]) -> None:
        """Calls `call` once the record was read."""
        if self._upkeep is not None:
            call(self)
        elif len(self._waiting) < _MOST_EARLY:
            self._waiting.append(call)
        else:
            self.on_dead(LimitReached(f"{_MOST_EARLY} words about submission {self.keep.number} wait already", hint="wait for the answers"))

    def leave(self) -> None:
        """Stops keeping."""
        if self._upkeep is not None:
            self._upkeep.leave()

    def rest(self, *, is_resting: bool) -> None:
        """Pauses or resumes reading, as the client takes messages."""
        if self._upkeep is not None:
            self._upkeep.rest(is_resting=is_resting)

    # -- from the client

    def grow(self, growth: Growth | RmgrError, *, is_announced: bool) -> None:
        """Carries a growth out, or announces it; a refused one ends the submission for this client."""
        upkeep = self._upkeep
        assert upkeep is not None
        try:
            if isinstance(growth, RmgrError):
                raise growth
            if not upkeep.is_owned:
                raise PermissionDenied(f"submission {upkeep.number} is not looked after by this client")
            check_growth(growth, upkeep.submission, upkeep.tail)
        except RmgrError as error:
            upkeep.die(error)
            return
        if is_announced:
            upkeep.announce(growth)
        else:
            self._talk.stories.begin(self._grow(upkeep, growth))

    def _grow(self, upkeep: Upkeep, growth: Growth) -> Story[None]:
        answer = yield upkeep.grow(growth)
        taken = isinstance(answer, Grown)
        self._tell_left()
        self._talk.say(messages.DidGrow(self.keep.id, growth.tail.enqueued, taken, encode_record(answer.tail) if taken else b""))

    def claimed(self, stage: ClaimStage) -> None:
        """Takes in how far keys are claimed."""
        if self._upkeep is not None and self._upkeep.is_owned:
            self._upkeep.claimed(stage)

    def ask_tail(self, serial: int) -> None:
        """Reads the tail, and sends it to the client."""
        assert self._upkeep is not None
        self._talk.stories.begin(self._send_tail(self._upkeep, serial))

    def _send_tail(self, upkeep: Upkeep, serial: int) -> Story[None]:
        try:
            tail = yield upkeep.read_tail()
        except RmgrError as error:
            self._talk.say(messages.TailIs(self.keep.id, b"", serial, messages.Fault.of(error)))
        else:
            self._talk.say(messages.TailIs(self.keep.id, encode_record(tail), serial))

    def _tell_left(self) -> None:
        most = self._upkeep.most_left if self._upkeep is not None else 0
        if most != self._most_left:
            self._most_left = most
            self._talk.say(messages.Leaves(self.keep.id, most))

    # -- port.KeptListener

    def on_fragments(self, fragments: Sequence[Read]) -> None:
        self._tell_left()
        for message in messages.fragments_of(self.keep.id, fragments):
            self._talk.say(message)
        self._talk.rest_if_full()

    def on_tail(self, tail: Tail) -> None:
        self._talk.say(messages.TailIs(self.keep.id, encode_record(tail)))

    def on_record(self, record: Submission | None, version: int) -> None:
        self._talk.say(messages.RecordIs(self.keep.id, encode_record(record) if record is not None else b"", version))

    def on_owned(self, stored: Stored) -> None:
        self._talk.say(messages.owned_of(self.keep.id, stored))

    def on_full(self, most: int) -> None:
        self._talk.say(messages.Full(self.keep.id, most))

    def on_trouble(self, error: RmgrError) -> None:
        self._talk.say(messages.Trouble(self.keep.id, messages.Fault.of(error)))

    def on_dead(self, error: RmgrError) -> None:
        self._talk.say(messages.Dead(self.keep.id, messages.Fault.of(error)))
        self._talk.forget(self.keep.id)


# -- questions -------------------------------------------------------------------------------------------------------------


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
    """Answers clients' questions to a gateway. ca_pem: of a secured cluster, None in an open one."""

    def __init__(self, context: GatewayContext, *, ca_pem: bytes | None = None) -> None:
        self._context = context
        self._loose = Loose(context.coordinator)
        self._certify = partial(signing_certificate, ca_pem=ca_pem) if ca_pem is not None else None
        self._fates = Fates(context.store, context.coordinator)

    def answer(self, data: bytes, caller: Caller, timeout_s: float) -> bytes:
        """Returns the answer to a question. Raises the reason of a refusal. May block."""
        question = decode_question(data)
        kind, name = type(question), type(question).__name__
        self._context.count("asked", name)
        person = self._context.person_of(caller)
        with audited(self._context.log, person, ORDERS.get(kind, name), target_of(question)):
            return encode_answer(self._answers(person, caller).ask(question, timeout_s=timeout_s))

    def _answers(self, person: Person, caller: Caller) -> Answers:
        coordinator, store = self._context.coordinator, self._context.store
        bounded = cast(Coordinator, _BoundedCoordinator(coordinator, self._loose, person.name))
        return Answers(
            coordinator if person.is_free else bounded,
            lambda: store,
            person,
            owner_of=self._context.owner_of,
            is_direct=person.is_open,
            own_key=caller.identity.key_id if caller.identity is not None else "",
            certify=self._certify,
            most_tasks=_MOST_TASKS,
            ordered=partial(self._audit_order, person),
            fates=self._fates,
        )

    def _audit_order(self, person: Person, question: Question[Any], others: Collection[str]) -> None:
        """Audits what operators do to others' work, and to the whole cluster."""
        if person.is_open or not (others or RIGHTS[type(question)] is Right.OPERATOR):
            return
        why = f"{person.name} is an operator" + (f", it is work of {', '.join(sorted(others))}" if others else "")
        what, target = ORDERS[type(question)], target_of(question)
        audit(self._context.log, who=person.name, role=person.role, what=what, target=target, allowed=True, why=why)
