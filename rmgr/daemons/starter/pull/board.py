"""The waiting blocks of a queue as a Starter sees them: listed now and then, kept in claim order, their data fetched ahead.

In a fair queue each user's blocks are a line of their own, and users take turns (`core/shares.py`): the first block of who had least
is next. In a queue that is `fifo` all are one line. Lines are told apart by the tag in the blocks' names; a block without one stands in its
user's line once its record was read (`belongs`). What an operator has raised is a line of its own (`paths.RAISED`), and goes first.

Shared by all virtual nodes of a Starter. A list is read again when its candidates run out, after a second, or when a
claim met a block that was gone; a watch stands only while somebody is hungry.

Many Starters on one queue would all meet at its head, and each change would make all of them read. Whoever comes too
late therefore (1) chooses among more of the first candidates, by its own hash and the same one again while there is a
rest of it, and (2) reads again after a pause of its own, twice as long at most after each time; whoever wins reads at once.
"""

from __future__ import annotations

import math
import zlib
from bisect import insort
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain, groupby

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.validity import check_block, decode
from rmgr.daemons.starter.core.shares import Turns
from rmgr.errors import RmgrError
from rmgr.model.cluster.queue import QueueSpec
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.runtime import machine

#: A list older than this is read again before it is used.
_FRESH_S = 1.0
#: Pause between two readings, and after a failed one.
_PAUSE_S, _FAILED_PAUSE_S = 0.004, 0.2
#: A list without candidates is read again after this, by those who want work ahead but are not hungry.
_EXHAUSTED_S = 0.05
#: Starters that meet each other spread over up to this many first candidates; fewer that are known make the list stale,
#: and so do this many that were gone.
_SPREAD, _ENOUGH, _GONE = 256, 8, 3
#: Whoever came too late n times waits up to 2**n times this before it reads again, n at most this many: 0.26 s.
_YIELD_S, _YIELDS = 0.002, 7
#: The longest time for which blocks that cannot be claimed are left alone.
_MOST_PAUSE_S = 60.0
#: Candidates looked past for those whose claim is under way.
_CLAIMS = 64


class CandidateStage(StrEnum):
    """What is known of a block that was listed."""

    WAITS = "waits"
    TAKEN = "taken"  #: a claim of it is under way
    UNSUITABLE = "unsuitable"  #: the node could never run it
    GONE = "gone"  #: it was claimed, here or elsewhere


_STANDING = frozenset({CandidateStage.WAITS, CandidateStage.TAKEN})


@dataclass(slots=True, eq=False)
class BlockCandidate:
    """A waiting block. data: None while it is fetched.

    refusal: why nothing of it may run, whatever its data say ("" = it may): it is claimed whole, and ends.
    """

    name: str
    key: BlockKey
    data: BlockData | None = None
    version: int = 0
    is_coming: bool = False
    stage: CandidateStage = CandidateStage.WAITS
    gone_at: int = 0  #: how many readings of the list were begun when it was found gone
    refusal: str = ""
    pauses: int = 0
    is_own: bool = False  #: what a claim of ours has left: nobody else knows it before reading the list


@dataclass(slots=True, eq=False)
class _Line:
    """Blocks that are taken in the order of their names. at: those before it are gone."""

    names: list[str] = field(default_factory=list)
    at: int = 0


class PendingQueue:
    """One queue.

    Args:
        turns: what users had of this Starter in it.
        post: puts a call into the owner's mailbox.
        salt: makes the choice among the first candidates this Starter's own.
    """

    def __init__(
        self,
        spec: QueueSpec,
        coordinator: Coordinator,
        *,
        post: Callable[[Callable[[], None]], None],
        salt: str,
        turns: Turns | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.spec = spec
        self.since = 0  #: transaction that changed the settings last, 0 = not known
        self._coordinator = coordinator
        self._post = post
        self._salt = salt.encode()
        self._clock = clock or machine.monotonic
        self.turns = turns if turns is not None else Turns()
        self._lines: dict[str, _Line] = {}
        self._is_fair = spec.is_fair
        self._users: dict[int, str] = {}  #: of submissions whose blocks' names do not say it: tags
        self._here: set[str] = set()  #: users who have a line, and have taken their place among the others
        self._candidates: dict[str, BlockCandidate] = {}
        self._strange: set[str] = set()  #: names in the list that are no block's
        self._paused_s: dict[int, float] = {}
        self._pausing: dict[int, str] = {}  #: the block for whose sake
        self._read_s = self._next_read_s = -math.inf
        self._reading = False
        self._watched = False
        self._watches = 0
        self._stale = True
        self._reads = 0
        self._spread = 1
        self._gone = 0  #: candidates of the list that were gone
        self._late = 0  #: times that others were quicker, since the last claim that was made
        self._has_won = self._was_called = False  #: since the list was read: claimed something, told of a change
        self._generation = 0

    @property
    def is_current(self) -> bool:
        """The list is what a watch stands on: when nothing in it can be claimed, there is nothing."""
        return self._watched and not self._stale and not self._reading

    @property
    def is_bare(self) -> bool:
        """Nothing waits there, as far as a watch can tell: there is neither a block to look at, nor a pause to come back from."""
        return self.is_current and not self._lines and not self._paused_s

    @property
    def is_shared(self) -> bool:
        """Several users wait, and take turns."""
        return self._is_fair and len(self._lines) > 1

    @property
    def is_reading(self) -> bool:
        """The list is on its way."""
        return self._reading

    def reset(self) -> None:
        """A new session: watches and answers of the old one mean nothing."""
        self._generation += 1
        self._lines, self._candidates = {}, {}
        self._reading = self._watched = False
        self._stale = True

    # -- choosing --------------------------------------------------------------------------------------------------------

    def pick(
        self,
        now_s: float,
        passed: frozenset[str] | set[str] = frozenset(),
        without: frozenset[int] | set[int] = frozenset(),
        barred: frozenset[str] | set[str] = frozenset(),
    ) -> BlockCandidate | None:
        """The block to claim next: of who is next the first one, or one of the first few of its priority while others compete for them.

        passed, without, barred: none of these blocks, none of these submissions, none of these users (tags).
        None: there is none, or the list has to be read first (`look`). Cost: as `Turns.order`, and of who is next what is passed over.
        """
        if not self._watched and now_s - self._read_s > _FRESH_S:
            self._stale = True
        if self._stale or self._reading:
            return None
        for user in self._in_turn(now_s):
            if user and user in barred:
                continue
            few = self._first_few(self._lines[user], now_s, passed, without, barred)
            if few:
                return few[0] if len(few) == 1 else min(few, key=self._taste)
        return None

    def _in_turn(self, now_s: float) -> Iterator[str]:
        """Users who have a line, in turn; before them what an operator has raised."""
        if not self.is_shared:
            self._here = set(self._lines)
            return iter(self._lines)
        users: AbstractSet[str] = self._lines.keys()
        first: tuple[str, ...] = ()
        if paths.RAISED in self._lines:
            users, first = self._lines.keys() - {paths.RAISED}, (paths.RAISED,)
        if self._here != users:
            self.turns.enter(users - self._here, self._here & users, now_s)
            self._here = set(users)
        return chain(first, self.turns.order(users, now_s))

    def _first_few(
        self,
        line: _Line,
        now_s: float,
        passed: frozenset[str] | set[str],
        without: frozenset[int] | set[int],
        barred: frozenset[str] | set[str],
    ) -> list[BlockCandidate]:
        self._trim(line)
        few: list[BlockCandidate] = []
        for at in range(line.at, len(line.names)):
            candidate = self._candidate(line.names[at])
            if (
                candidate is None
                or candidate.stage is not CandidateStage.WAITS
                or candidate.name in passed
                or candidate.key.submission in without
                or (barred and candidate.key.user in barred)
            ):
                continue
            if self._paused_s.get(candidate.key.submission, -math.inf) > now_s:
                continue
            if few and candidate.key.priority != few[0].key.priority:
                break
            few.append(candidate)
            if len(few) >= self._spread:
                break
        return few

    def _taste(self, candidate: BlockCandidate) -> tuple[bool, float]:
        """Under competition: first what is left of a block of ours, then one at random, large ones (nobody eats of them yet) likelier."""
        mixed = zlib.crc32(self._salt + candidate.name.encode()) * 0x9E3779B1 & 0xFFFFFFFF  # a checksum alone orders all salts alike
        share = (mixed + 1) / (1 << 32)
        return not candidate.is_own, -math.log(share) / candidate.key.count**2

    def fetch(self, candidate: BlockCandidate) -> None:
        """Sees to it that the data of a candidate come."""
        if candidate.data is None and not candidate.is_coming and candidate.stage is not CandidateStage.GONE:
            candidate.is_coming = True
            future = self._coordinator.get(paths.pending_block(self.spec.name, candidate.key))
            future.add_done_callback(lambda done: self._post(partial(self._fetched, candidate, done)))

    def fetch_ahead(self, count: int) -> list[BlockCandidate]:
        """The same for the first few candidates of each who waits, `count` in all, and which they are; not while others compete for them.

        Cost: O(count + claims under way), and as `pick`.
        """
        few: list[BlockCandidate] = []
        if self._spread > 1:
            return few
        each = -(-count // max(1, len(self._lines)))
        for user in self._in_turn(self._clock()):
            found, line = 0, self._lines[user]
            for at in range(line.at, min(len(line.names), line.at + each + _CLAIMS)):
                candidate = self._candidate(line.names[at])
                if candidate is None or candidate.stage is not CandidateStage.WAITS:
                    continue
                self.fetch(candidate)
                few.append(candidate)
                found += 1
                if found == each or len(few) == count:
                    break
            if len(few) == count:
                break
        return few

    def belongs(self, candidate: BlockCandidate, user: str, now_s: float) -> bool:
        """Of a block whose record was read. user: its tag. True: it stands in another line now, for its name did not say whose it is."""
        key = candidate.key
        if not self._is_fair or key.user or key.submission in self._users:
            return False
        self._users[key.submission] = user
        names = sorted([name for line in self._lines.values() for name in line.names[line.at :]], key=paths.claim_order)
        self._line_up(names)
        if user not in self._here:
            self.turns.enter([user], self._here, now_s)
            self._here.add(user)
        return True

    def _line_up(self, names: list[str]) -> None:
        """names: in claim order. While others compete, those of the same turn stand in an order of this Starter's own."""
        lines: dict[str, _Line] = {}
        for user, together in groupby(names, key=paths.tag_in if self._is_fair and not self._users else self._user_of):
            line = lines.get(user)
            if line is None:
                line = lines[user] = _Line()
            line.names.extend(together)
        if self._spread > 1 and len(lines) > 1:
            lines = dict(sorted(lines.items(), key=lambda item: zlib.crc32(self._salt + item[0].encode())))
        self._lines = lines

    def _user_of(self, name: str) -> str:
        if not self._is_fair:
            return ""
        tag = paths.tag_in(name)
        return tag if tag or not self._users else self._users.get(paths.submission_in(name), "")

    # -- what became of it -------------------------------------------------------------------------------------------------

    def take(self, candidate: BlockCandidate, rest: tuple[BlockKey, BlockData] | None) -> BlockCandidate | None:
        """A claim of `candidate` is under way; what it leaves behind is known already and can be claimed at once."""
        candidate.stage = CandidateStage.TAKEN
        if rest is None:
            return None
        key, data = rest
        left = BlockCandidate(paths.block_name(key), key, data, is_own=True)
        self._candidates[left.name] = left
        line = self._lines.setdefault(self._user_of(left.name), _Line())
        insort(line.names, left.name, lo=line.at, key=paths.claim_order)
        return left

    def taken(self, candidate: BlockCandidate) -> None:
        """The claim was committed."""
        self._lose(candidate)
        self._spread -= -(-self._spread // 8) if self._spread > 1 else 0
        self._late, self._has_won = self._late // 2, True

    def missed(self, candidate: BlockCandidate, rest: BlockCandidate | None) -> None:
        """Somebody else was quicker: look again soon, and less at the very first ones."""
        self._lose(candidate)
        if rest is not None:
            self._lose(rest)
        self._too_late(candidate)

    def _too_late(self, candidate: BlockCandidate) -> None:
        self._spread = min(_SPREAD, self._spread * 2)
        self._late = min(_YIELDS, self._late + 1)
        self._gone += 1
        # What others left of the block may be more urgent than all of another priority.
        line = self._lines.get(self._user_of(candidate.name))
        left = self._left_of(line, candidate.key.priority) if line is not None else 0
        self._stale = self._stale or self._gone >= _GONE or left < _ENOUGH

    def _left(self) -> int:
        """Candidates that are left; of many, `_ENOUGH` at least. Cost: as `fetch_ahead`."""
        left = 0
        for line in self._lines.values():
            left += self._left_of(line)
            if left >= _ENOUGH:
                break
        return left

    def _left_of(self, line: _Line, priority: int | None = None) -> int:
        """The same of one line (of a priority, if they come first), counted up to `_ENOUGH`."""
        left = 0
        for at in range(line.at, len(line.names)):
            candidate = self._candidate(line.names[at])
            if candidate is None or candidate.stage is not CandidateStage.WAITS:
                continue
            if left == _ENOUGH or (priority is not None and candidate.key.priority != priority):
                break
            left += 1
        return left

    def put_back(self, candidate: BlockCandidate, rest: BlockCandidate | None) -> None:
        """The claim was not made for another reason: the block is still there."""
        if candidate.stage is CandidateStage.TAKEN:
            candidate.stage = CandidateStage.WAITS
        if rest is not None:
            self._lose(rest)

    def pause(self, candidate: BlockCandidate, now_s: float, for_s: float, *, grows: bool = True) -> None:
        """Leaves the blocks of its submission alone for a while; twice as long each time (`grows`), as long as the block stands there."""
        if grows:
            for_s = min(_MOST_PAUSE_S, for_s * 2**candidate.pauses)
            candidate.pauses += 1
        self._paused_s[candidate.key.submission] = now_s + for_s
        self._pausing[candidate.key.submission] = candidate.name

    def next_pause_s(self, now_s: float) -> float | None:
        """When the first submission that is left alone comes up again."""
        later = [until for until in self._paused_s.values() if until > now_s]
        return min(later, default=None)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def look(self, now_s: float, *, hungry: bool) -> None:
        """Nothing could be picked: reads the list if that can tell something new, with a watch for the hungry."""
        if self._reading or self.is_current or now_s < self._next_read_s:
            return
        if self._stale or hungry or now_s - self._read_s > _EXHAUSTED_S:
            self._read(now_s, watch=hungry)

    def look_behind(self, now_s: float) -> None:
        """A claim of the last candidate was just sent, and the node will be hungry: the list is read behind that claim.

        Its watch is a new one: the claim itself fires the one that stands. So the node knows before the task ends that there is
        nothing else, and its COMPLETE can tell so.
        """
        if not self._reading and not self._left():
            self._watched = False
            self._read(now_s, watch=True)

    def next_look_s(self) -> float:
        """When reading the list can tell something again."""
        return self._next_read_s if self._stale else max(self._next_read_s, self._read_s + _EXHAUSTED_S)

    def _read(self, now_s: float, *, watch: bool) -> None:
        self._reading, self._stale = True, False
        self._next_read_s = now_s + _PAUSE_S + self._yield_s()
        self._reads += 1
        generation, number = self._generation, self._reads
        fired = None
        if watch and not self._watched:
            self._watched = True
            self._watches += 1
            fired = partial(self._post, partial(self._fired, generation, self._watches))
        future = self._coordinator.children(paths.pending(self.spec.name), watch=fired)
        future.add_done_callback(lambda done: self._post(partial(self._listed, generation, number, done)))

    def _fired(self, generation: int, watch: int) -> None:
        if generation == self._generation and watch == self._watches:
            self._watched, self._was_called = False, True
            self._stale = self._stale or not self._left()
            self._next_read_s = max(self._next_read_s, self._clock() + self._yield_s())

    def _yield_s(self) -> float:
        return machine.uniform(0.0, _YIELD_S * 2**self._late) if self._late else 0.0

    def _listed(self, generation: int, number: int, done: Future[list[str] | None]) -> None:
        if generation != self._generation:
            return
        self._reading = False
        now_s = self._clock()
        try:
            names = done.result()
        except RmgrError:
            self._watched, self._stale = False, True
            self._next_read_s = now_s + _FAILED_PAUSE_S
            return
        self._read_s = now_s
        if self._was_called and not names and not self._has_won:
            self._late = min(_YIELDS, self._late + 1)
        self._was_called = self._has_won = False
        self._gone = 0
        listed = set(names or ())
        for submission in [number for number, name in self._pausing.items() if name not in listed]:  # set aside, perhaps brought back
            del self._pausing[submission], self._paused_s[submission]
        self._strange &= listed
        self._is_fair = self.spec.is_fair
        found = sorted([name for name in listed - self._strange if len(name) in paths.BLOCK_NAMES], key=paths.claim_order)
        if self._users:
            standing = {paths.submission_in(name) for name in found if not paths.tag_in(name)}
            self._users = {number: user for number, user in self._users.items() if number in standing}
        self._line_up(found)
        # A name that was gone when this list was asked for and stands in it is a block that came back.
        self._candidates = {
            name: candidate
            for name, candidate in self._candidates.items()
            if (name in listed or candidate.stage is CandidateStage.TAKEN)
            and not (candidate.stage is CandidateStage.GONE and candidate.gone_at < number)
        }

    def _fetched(self, candidate: BlockCandidate, done: Future[Stamped | None]) -> None:
        candidate.is_coming = False
        try:
            found = done.result()
            if found is None:
                self._lose(candidate)
                self._too_late(candidate)
            else:
                candidate.data, candidate.refusal = _block_of(candidate.key, found.data)
                candidate.version = found.version
        except RmgrError:
            self._next_read_s = self._clock() + _FAILED_PAUSE_S

    def _lose(self, candidate: BlockCandidate) -> None:
        candidate.stage, candidate.gone_at, candidate.data = CandidateStage.GONE, self._reads, None

    def _candidate(self, name: str) -> BlockCandidate | None:
        candidate = self._candidates.get(name)
        if candidate is None:
            try:
                candidate = BlockCandidate(name, paths.parse_block(name))
            except ValueError:
                self._strange.add(name)  # submitters create here: looked at once while it stands there
                return None
            self._candidates[name] = candidate
        return candidate

    def _trim(self, line: _Line) -> None:
        """Moves past what is gone at the front, so that a long list costs nothing."""
        while line.at < len(line.names):
            name = line.names[line.at]
            candidate = self._candidates.get(name)
            if name not in self._strange and (candidate is None or candidate.stage in _STANDING):
                return
            line.at += 1


def _block_of(key: BlockKey, data: bytes) -> tuple[BlockData, str]:
    """What stands in a block, and why nothing of it may run ("" = it may): then nothing of it is believed."""
    try:
        found = decode(data, BlockData, paths.block_name(key))
        check_block(key, found, pulled=True)
    except RmgrError as error:
        return BlockData(resubmit=False, stamp="invalid"), error.message
    return found, ""
