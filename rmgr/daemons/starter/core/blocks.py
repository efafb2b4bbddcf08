"""A claimed block on its node: which tasks wait, run, have ended and are committed, and what its next commit carries. Pure.

    ready --hand_out--> live --outcome / failed_attempt--> arrived --take_part--> in a COMPLETE --committed--> done
      ^------put_back------'                                   ^------------refused-------'
    ready (a tail) --give_back--> in a SPLIT or RETURN --committed--> no longer this node's

One multi of a block is in flight at a time; tasks that end meanwhile go with the next one.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.multi import Multi
from rmgr.coord.protocol.records import brief, encode_block, encode_failed, encode_outcomes
from rmgr.coord.seal import narrowed
from rmgr.daemons.starter.core.fetch import ArgumentsPiece
from rmgr.model.base import Needs
from rmgr.model.block import MAX_INLINE_OUTCOMES, BlockData, BlockKey, FailedRange, Fragment, Outcome, Seal, has_begun, runs
from rmgr.model.line import ClaimStage
from rmgr.model.states import Reason, State

#: Most failed attempts of one COMPLETE, and bytes of their records: with the rest they stay below the caps of a multi.
MAX_FAILED = 100
MAX_FAILED_BYTES = 160 * 1024
#: Outcomes of up to this many fragments go inline, one COMPLETE after another; more go to a store row.
INLINE_FRAGMENTS = 3
#: How long outcomes wait for the rest of a block if it is going to end within that time.
GATHER_S = 0.03
#: How long outcomes of tasks shorter than `SHORT_S` wait for others if the block goes on.
FEW_S, SHORT_S = 0.05, 0.01
#: Pause before a block whose return was barred tries again.
_BARRED_S = 1.0
#: Fields that do not change while a block runs, whatever its znode says when it is read again.
_KEPT = ("function", "resubmit", "retries", "row", "keyed", "serial", "stopping", "story", "awaits")


class BlockVerdict(StrEnum):
    """Whether a block may run on this node, and otherwise what becomes of its tasks that have not begun."""

    MAY_RUN = "may-run"
    BARRED = "barred"  #: its signing key was revoked: it goes back to its queue, where the leader decides its fate
    TURNED_AWAY = "turned-away"  #: its queue or this node does not take it: it goes back; if it cannot, it is refused
    REVOKED = "revoked"  #: its start has failed, or its user cannot be served here: it goes back
    REFUSED = "refused"  #: it must not run, whoever signed it: it ends


#: Verdict -> possible next verdicts. Any other change is ignored, since an earlier decision stands.
VERDICT_CHANGES: dict[BlockVerdict, frozenset[BlockVerdict]] = {
    BlockVerdict.MAY_RUN: frozenset(BlockVerdict) - {BlockVerdict.MAY_RUN},
    BlockVerdict.BARRED: frozenset({BlockVerdict.TURNED_AWAY}),
    BlockVerdict.TURNED_AWAY: frozenset({BlockVerdict.REFUSED}),
    BlockVerdict.REVOKED: frozenset(),
    BlockVerdict.REFUSED: frozenset(),
}
_GO_BACK = frozenset({BlockVerdict.BARRED, BlockVerdict.TURNED_AWAY, BlockVerdict.REVOKED})


@dataclass(slots=True, kw_only=True)
class CompletePart:
    """Content of one COMPLETE, kept until its fate is known."""

    outcomes: tuple[Outcome, ...]
    failed: tuple[tuple[int, FailedRange], ...]
    data: BlockData  #: of the running znode afterwards
    written: Any = ()  #: `outcomes` in encoded form
    row: str = ""  #: store key of the outcomes
    row_bytes: bytes = b""
    orders: tuple[str, ...] = ()
    go_idle: bool = False

    @property
    def indices(self) -> list[int]:
        """Tasks that this COMPLETE settles."""
        return [outcome.index for outcome in self.outcomes] + [index for index, _ in self.failed]


@dataclass(slots=True, kw_only=True)
class Return:
    """A tail of a block on its way back to the queue."""

    first: int
    end: int
    data: BlockData


@dataclass(slots=True, kw_only=True)
class PendingNote:
    """A NOTE or a STOP in flight: meanwhile nothing else of the block may be committed."""

    data: BlockData


@dataclass(slots=True, kw_only=True, eq=False)
class ClaimedBlock:
    """A block that a node has claimed. `data` and `version` are those of its running znode as last committed.

    live: tasks handed to slots. writing: ended tasks whose values are on the way to the store. payloads: arguments of all its tasks
    from `base` on, None while they are fetched from the store. base_us: start of the clock for times in its outcomes.
    """

    node: str
    queue: str
    key: BlockKey
    data: BlockData
    version: int
    base_us: int
    payloads: Sequence[bytes | ArgumentsPiece] | None = ()
    base: int = 0
    ready: deque[int] = field(default_factory=deque)
    live: int = 0
    writing: int = 0
    arrived: list[Outcome] = field(default_factory=list)
    failed: list[tuple[int, FailedRange]] = field(default_factory=list)
    arrived_s: float = -math.inf  #: when the oldest of them arrived
    sending: CompletePart | Return | PendingNote | None = None
    info: Any = None  #: what the Starter knows of its submission
    seal: Seal | None = None  #: of `payloads`, as claimed
    verdict: BlockVerdict = BlockVerdict.MAY_RUN  #: changed by `judge` alone
    why: str = ""  #: why it was turned away or refused
    is_verified: bool = False  #: its user's signature was verified (secured clusters)
    return_after_s: float = -math.inf  #: no return before this time (monotonic): its way back was barred a moment ago
    is_dropped: bool = False  #: over, or no longer the node's; late ends of its tasks are ignored
    cancel_all: str | None = None  #: the user's words: every unfinished task is cancelled
    cancelled: dict[int, str] = field(default_factory=dict)  #: the same for single tasks
    cancel_reasons: dict[int | None, Reason] = field(default_factory=dict)  #: the reason of each cancel; None: of all tasks
    over_limit: dict[int, str] = field(default_factory=dict)  #: why tasks of it are ended with DISK_LIMIT
    seat: Any = None  #: the lane that a job of several nodes holds until all of them are ready
    line: Any = None  #: of the client that announced it and is told early what is committed
    claims: ClaimStage = ClaimStage.HERE  #: of output keys whose claims its Submitter has left to this node
    in_vain: int = 0  #: workers and slots lost in a row with tasks of it before any began
    limit_us: int = -1  #: of a job whose terms changed while it ran (0 = none); -1: the limit of its record holds

    def cancel_words(self, index: int) -> str | None:
        """Returns the user's words if the task is to be cancelled, else None."""
        return self.cancelled.get(index, self.cancel_all)

    def cancel_reason(self, index: int) -> Reason:
        """Returns the reason for which a task is to be cancelled."""
        return self.cancel_reasons.get(index, self.cancel_reasons.get(None, Reason.USER_CANCEL))

    @classmethod
    def claimed(cls, node: str, queue: str, key: BlockKey, data: BlockData, version: int = 0) -> ClaimedBlock:
        """Builds a block from what a CLAIM created, or from what was read back (tasks with a set bit are not its own)."""
        ready = deque(index for index in range(key.first, key.end) if not data.done >> (index - key.first) & 1)
        return cls(
            node=node,
            queue=queue,
            key=key,
            data=data,
            version=version,
            base_us=data.claimed_us,
            payloads=None if data.row else data.payloads,
            base=data.base,
            seal=data.seal,
            ready=ready,
        )

    # -- tasks -----------------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str | int:
        """What its tasks share with others of similar run time: the function, else the command."""
        return self.data.function or (self.info.kind if self.info is not None else self.key.submission)

    @property
    def size(self) -> tuple[int, int, Needs]:
        """Cores, MiB and other resources of one task; of a placed one, of its processes on this node."""
        needs: Needs = self.info.needs if self.info is not None else ()
        if needs and self.data.allocation is not None:
            needs = tuple((name, count * self.data.allocation.shares[0][1]) for name, count in needs)
        return self.key.cores, self.key.memory_mib, needs

    def judge(self, verdict: BlockVerdict, why: str = "") -> bool:
        """Changes the verdict; False if an earlier decision stands (`VERDICT_CHANGES`)."""
        if verdict not in VERDICT_CHANGES[self.verdict]:
            return False
        self.verdict, self.why = verdict, why
        return True

    @property
    def goes_back(self) -> bool:
        """Whether tasks that have not begun go back to the queue."""
        return self.verdict in _GO_BACK

    @property
    def waits(self) -> bool:
        """Whether tasks of it wait, and no lane is held for them."""
        return bool(self.ready) and self.seat is None

    @property
    def is_placed(self) -> bool:
        """Whether the leader has placed it here."""
        return self.data.allocation is not None

    @property
    def unfinished(self) -> int:
        """Tasks without an outcome."""
        return len(self.ready) + self.live + self.writing

    @property
    def is_over(self) -> bool:
        """Whether every task is committed or given back."""
        return self.data.done == (1 << self.key.count) - 1

    def payload(self, index: int) -> bytes | ArgumentsPiece:
        """Returns the arguments of a task, which must be here."""
        assert self.payloads is not None
        return self.payloads[index - self.base] if self.payloads else b""

    def hand_out(self, count: int) -> list[int]:
        """Takes the next `count` waiting tasks, which count as live."""
        taken = [self.ready.popleft() for _ in range(min(count, len(self.ready)))]
        self.live += len(taken)
        return taken

    def put_back(self, indices: Iterable[int]) -> None:
        """Puts back live tasks that did not start after all: they wait again, in their order."""
        back = sorted(indices, reverse=True)
        self.live -= len(back)
        if back and self.ready and back[0] > self.ready[0]:
            self.ready = deque(sorted([*self.ready, *back]))
        else:
            self.ready.extendleft(back)

    def take_ready(self, indices: Iterable[int] | None = None) -> list[int]:
        """Removes waiting tasks (None: all), e.g. cancelled ones; returns which."""
        wanted = list(self.ready) if indices is None else [index for index in indices if index in self.ready]
        gone = frozenset(wanted)
        self.ready = deque(index for index in self.ready if index not in gone)
        return wanted

    def settle(self, outcomes: Iterable[Outcome], now_s: float) -> None:
        """Adds final outcomes of tasks (no longer counted in ready, live or writing)."""
        if not self.arrived and not self.failed:
            self.arrived_s = now_s
        allocation = self.data.allocation
        if allocation is not None and allocation.helpers:
            helpers = tuple(name for name, _ in allocation.helpers)
            outcomes = [msgspec.structs.replace(outcome, helpers=helpers) for outcome in outcomes]
        if self.data.story:
            outcomes = [msgspec.structs.replace(outcome, story=self.data.story) for outcome in outcomes]
        self.arrived.extend(outcomes)

    def settle_failed(self, index: int, record: FailedRange, now_s: float) -> None:
        """Adds an attempt that FAILED and may run again."""
        if not self.arrived and not self.failed:
            self.arrived_s = now_s
        self.failed.append((index, record))

    # -- commits ----------------------------------------------------------------------------------------------------------

    def due_s(self, *, task_s: float | None, slots: int) -> float | None:
        """Returns when its next COMPLETE is due (monotonic; -inf = now), None if there is nothing to commit or one is in flight.

        It is due at once, with two exceptions: if the rest of the block ends within `GATHER_S` anyway, one commit carries all; and if
        its tasks are short, a commit for every few of them would cost ZooKeeper and all followers more than the tasks.
        """
        if self.sending is not None or not (self.arrived or self.failed):
            return None
        left = self.unfinished
        if left == 0 or task_s is None:
            return -math.inf
        if left * task_s > GATHER_S * slots:
            return -math.inf if task_s > SHORT_S else self.arrived_s + FEW_S
        return self.arrived_s + GATHER_S

    def take_part(self) -> CompletePart:
        """Returns what the next COMPLETE carries; outcomes that do not fit go to a store row named by their content."""
        outcomes, rest = tuple(self.arrived), []
        written = brief(outcomes)
        encoded = encode_outcomes(written)
        needs_row = len(encoded) > MAX_INLINE_OUTCOMES
        if MAX_INLINE_OUTCOMES < len(encoded) <= INLINE_FRAGMENTS * MAX_INLINE_OUTCOMES:
            few = len(outcomes) * MAX_INLINE_OUTCOMES * 9 // 10 // len(encoded)
            if few and len(first := encode_outcomes(written[:few])) <= MAX_INLINE_OUTCOMES:
                outcomes, encoded, rest, needs_row = outcomes[:few], first, list(outcomes[few:]), False
        failed: list[tuple[int, FailedRange]] = []
        left: list[tuple[int, FailedRange]] = []
        size = 0
        for index, record in self.failed:
            size += len(record.block) + len(record.log[0]) + len(record.log[1]) + 512
            (failed if len(failed) < MAX_FAILED and size < MAX_FAILED_BYTES else left).append((index, record))
        self.arrived, self.failed = rest, left
        part = CompletePart(
            outcomes=outcomes,
            failed=tuple(failed),
            written=msgspec.Raw(encoded),  # encoded once for its size, its signature and its commit
            data=self._data_after([outcome.index for outcome in outcomes] + [index for index, _ in failed]),
            row=keys.fragment(self.key.submission, hashlib.sha256(encoded).hexdigest()) if needs_row else "",
            row_bytes=encoded if needs_row else b"",
        )
        self.sending = part
        return part

    def take_whole(self) -> CompletePart:
        """Returns what a commit of the whole block carries, once all its tasks have arrived and the outcomes are few: its znode goes."""
        outcomes, self.arrived = tuple(self.arrived), []
        part = self.sending = CompletePart(
            outcomes=outcomes, failed=(), data=msgspec.structs.replace(self.data, done=(1 << self.key.count) - 1)
        )
        return part

    def complete(
        self, part: CompletePart, node_version: int, stamp: str, *, sign: Callable[[int, Fragment], Fragment] | None = None
    ) -> Multi:
        """Builds the multi of `part`. stamp: fresh random text, so that the bytes prove the commit. sign: seals a fragment of a
        submission."""
        part.data = msgspec.structs.replace(part.data, stamp=stamp)
        fragment = None
        if part.outcomes:
            ranges: tuple[tuple[State, int, int], ...] = ()
            if part.row:
                states = sorted((outcome.index, outcome.state) for outcome in part.outcomes)
                ranges = tuple(
                    (state, first, count)
                    for state in (State.COMPLETED, State.FAILED, State.CANCELLED)
                    for first, count in runs([index for index, other in states if other is state])
                )
            fragment = Fragment(
                node=self.node,
                attempt=self.key.attempt,
                base_us=self.base_us if any(map(has_begun, part.outcomes)) else 0,
                outcomes=() if part.row else part.written,
                row=part.row,
                ranges=ranges,
            )
            if sign is not None:
                fragment = sign(self.key.submission, fragment)
        return ops.complete(
            self.node,
            node_version,
            self.key,
            part.data,
            self.version,
            fragment=fragment,
            failed=[(index, 1, record) for index, record in part.failed],
            orders=part.orders,
            go_idle=part.go_idle,
        )

    def tail(self, most: int) -> int:
        """Returns how many tasks could be given back at once: the last run of waiting ones, at most `most`."""
        count, expected = 0, None
        for index in reversed(self.ready):
            if count == most or (expected is not None and index != expected):
                break
            count, expected = count + 1, index - 1
        return count

    def give_back(self, count: int, node_version: int, stamp: str, *, name: str = "SPLIT", held: bool = False) -> Multi:
        """Builds the SPLIT or RETURN of the last `count` waiting tasks (see `tail`)."""
        end = self.ready[-1] + 1
        first = end - count
        for _ in range(count):
            self.ready.pop()
        data = msgspec.structs.replace(self._data_after(()), stamp=stamp)
        multi, _ = ops.give_back(
            self.node, node_version, self.queue, self.key, data, self.version, first=first, end=end, name=name, held=held
        )
        mask = ((1 << count) - 1) << (first - self.key.first)
        self.sending = Return(first=first, end=end, data=msgspec.structs.replace(data, done=data.done | mask))
        return multi

    def committed(self) -> CompletePart | Return | PendingNote:
        """Notes that the multi in flight was committed, and returns what it carried."""
        sent = self.sending
        assert sent is not None
        self.sending = None
        kept = {name: getattr(self.data, name) for name in ("stopping", "story", "awaits", "saving", "answered")} if self.is_placed else {}
        self.data = msgspec.structs.replace(sent.data, **kept) if kept else sent.data
        self.version += 1
        return sent

    def refused(self, now_s: float) -> None:
        """Notes that the multi in flight was not committed: what it carried waits for the next one."""
        sent, self.sending = self.sending, None
        if isinstance(sent, CompletePart):
            if not self.arrived and not self.failed:
                self.arrived_s = now_s
            self.arrived[:0] = sent.outcomes
            self.failed[:0] = sent.failed
        elif isinstance(sent, Return):
            self.ready = deque(sorted([*self.ready, *range(sent.first, sent.end)]))

    def mend(self, why: str, now_s: float) -> bool:
        """Ends with FAILED what cannot be encoded, after a COMPLETE could not be built. Returns: whether there was such an end."""
        self.refused(now_s)
        bad = {outcome.index for outcome in self.arrived if not _can(encode_outcomes, brief((outcome,)))}
        bad |= {index for index, record in self.failed if not _can(encode_failed, record)}
        self.arrived = [outcome for outcome in self.arrived if outcome.index not in bad]
        self.failed = [(index, record) for index, record in self.failed if index not in bad]
        self.arrived += [Outcome(index=index, state=State.FAILED, reason=Reason.BAD_OUTPUT, error=why) for index in sorted(bad)]
        return bool(bad)

    def may_return(self, now_s: float) -> bool:
        """Whether waiting tasks could go back now."""
        return bool(self.ready) and self.sending is None and now_s >= self.return_after_s

    def way_back_barred(self, now_s: float) -> None:
        """Notes that a multi met an unexpected znode. A block that must not run here and cannot go back either ends."""
        if isinstance(self.sending, Return):
            self.return_after_s = now_s + _BARRED_S
            if self.verdict is BlockVerdict.TURNED_AWAY:
                self.judge(BlockVerdict.REFUSED, self.why)

    def reread(self, data: BlockData, version: int, now_s: float) -> None:
        """Takes what the running znode really holds, after a commit of unknown fate or a new registration.

        Only this node changes it, so a mask that covers the multi in flight means that it was committed.
        """
        sent = self.sending
        if sent is not None and sent.data.done & ~data.done == 0:
            self.sending = None
        else:
            self.refused(now_s)
        kept = {name: getattr(self.data, name) for name in _KEPT}
        self.data, self.version = msgspec.structs.replace(data, **kept), version

    def _data_after(self, indices: Iterable[int]) -> BlockData:
        """Returns the data of the running znode once `indices` are done, without arguments that are no longer needed."""
        first = self.key.first
        done = self.data.done
        for index in indices:
            done |= 1 << (index - first)
        lead = (~done & (done + 1)).bit_length() - 1  # trailing ones: tasks done from the front on
        data, start = self.data, first + lead
        payloads, base, seal = data.payloads, data.base, data.seal
        if payloads and start > base:
            seal = narrowed(seal, payloads, base, start, base + len(payloads) - start)
            payloads, base = payloads[start - base :], start
        ahead = self.ready[0] if self.ready else self.key.end
        return msgspec.structs.replace(data, done=done, payloads=payloads, base=base, seal=seal, started=max(data.started, ahead - first))


def _can(encode: Callable[[Any], bytes], what: object) -> bool:
    try:
        encode(what)
    except Exception:  # noqa: BLE001 - whatever it is, it will be so again
        return False
    return True


def split_share(ready: int, hungry: int) -> int:
    """Returns how many of `ready` waiting tasks to give to one of `hungry` nodes: half, never all, never below one."""
    return 0 if ready < 1 or hungry < 1 else max(1, ready // 2)


def failed_record(block: ClaimedBlock, index: int, **end: object) -> FailedRange:
    """Builds the record of a FAILED attempt that may run again. end: reason, node, exit_code, error, times, log, ..."""
    data = block.data
    if not data.row:
        data = msgspec.structs.replace(data, payloads=tuple(block.payloads or ()), base=block.base, seal=block.seal)
    part = msgspec.structs.replace(ops.cut(data, block.key.first, index, 1), done=0, incarnation=0, started=0, stamp="")
    key = block.key
    return FailedRange(
        queue=block.queue,
        seq=key.seq,
        priority=key.priority,
        cores=key.cores,
        memory_mib=key.memory_mib,
        block=encode_block(part),
        alone=key.count == 1,
        **end,  # type: ignore[arg-type]
    )
