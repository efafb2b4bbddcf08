"""The waiting blocks of a queue as a Starter sees them: listed now and then, kept in claim order, their data fetched ahead.

In a fair queue each user's blocks are a line of their own, and users take turns (`core/shares.py`): the first block of the user who has
used least is next. In a `fifo` queue all blocks are one line. The tag in a block's name tells its line; a block without a tag moves to its
user's line once its record was read (`belongs`). Blocks that an operator has raised are a line of their own (`paths.RAISED`), which goes
first.

Shared by all virtual nodes of a Starter. The list is read again when its candidates run out, after a second, or when a
claim met a block that was gone; a watch stands only while a node is hungry.

Many Starters on one queue would all meet at its head, and each change would make all of them read. A Starter that comes too late
therefore (1) chooses among more of the first candidates, by its own hash and the same one again while there is a
rest of it, and (2) reads again after a pause of its own, at most twice as long each time; a Starter that wins reads at once.
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
from itertools import chain, groupby

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.validity import check_block, decode
from rmgr.daemons.starter.core.shares import Turns
from rmgr.errors import RmgrError
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.queue import QueueSpec
from rmgr.runtime import machine

#: A list older than this is read again before it is used.
_FRESH_S = 1.0
#: Pause between two reads of the list, and after a failed one.
_PAUSE_S, _FAILED_PAUSE_S = 0.004, 0.2
#: Pause before a list without candidates is read again for nodes that want work ahead but are not hungry.
_EXHAUSTED_S = 0.05
#: Starters that compete spread over up to `_SPREAD` first candidates. The list is stale when fewer than `_ENOUGH` candidates are left,
#: or `_GONE` of them were gone.
_SPREAD, _ENOUGH, _GONE = 256, 8, 3
#: A Starter that came too late n times waits up to 2**n times this long before it reads again; n is limited to `_YIELDS`: 0.26 s.
_YIELD_S, _YIELDS = 0.002, 7
#: The longest time for which blocks that cannot be claimed are left alone.
_MOST_PAUSE_S = 60.0
#: Candidates with a claim in flight that are skipped in search of others.
_CLAIMS = 64


class CandidateStage(StrEnum):
    """What is known of a listed block."""

    WAITS = "waits"
    TAKEN = "taken"  #: a claim of it is in flight
    UNSUITABLE = "unsuitable"  #: the node could never run it
    GONE = "gone"  #: claimed, here or elsewhere


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
    gone_at: int = 0  #: number of reads of the list begun before it was found gone
    refusal: str = ""
    pauses: int = 0
    is_own: bool = False  #: rest of a claim by this Starter: others learn of it only by reading the list


@dataclass(slots=True, eq=False)
class _Line:
    """Blocks taken in the order of their names. at: those before this index are gone."""

    names: list[str] = field(default_factory=list)
    at: int = 0


class PendingQueue:
    """One queue with its waiting blocks.

    Args:
        turns: what users have used of this Starter in the queue.
        post: puts a call into the owner's mailbox.
        salt: makes the choice among the first candidates specific to this Starter.
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
        self.since = 0  #: transaction of the last change of the settings, 0 if unknown
        self._coordinator = coordinator
        self._post = post
        self._salt = salt.encode()
        self._clock = clock or machine.monotonic
        self.turns = turns if turns is not None else Turns()
        self._lines: dict[str, _Line] = {}
        self._is_fair = spec.is_fair
        self._users: dict[int, str] = {}  #: submissions whose blocks have no tag in their names -> tag
        self._here: set[str] = set()  #: users who have a line and a place in the turns
        self._candidates: dict[str, BlockCandidate] = {}
        self._strange: set[str] = set()  #: listed names that are not blocks
        self._paused_s: dict[int, float] = {}
        self._pausing: dict[int, str] = {}  #: submission -> the block that caused its pause
        self._read_s = self._next_read_s = -math.inf
        self._reading = False
        self._watched = False
        self._watches = 0
        self._stale = True
        self._reads = 0
        self._spread = 1
        self._gone = 0  #: candidates of the list found gone
        self._late = 0  #: times that others were quicker, minus claims that were made
        self._has_won = self._was_called = False  #: since the list was read: won a claim, the watch fired
        self._generation = 0

    @property
    def is_current(self) -> bool:
        """Whether a watch stands on the list: then an empty choice means that there is nothing."""
        return self._watched and not self._stale and not self._reading

    @property
    def is_bare(self) -> bool:
        """Whether nothing waits, as far as a watch can tell: no block, and no pause that will end."""
        return self.is_current and not self._lines and not self._paused_s

    @property
    def is_shared(self) -> bool:
        """Whether several users wait, and take turns."""
        return self._is_fair and len(self._lines) > 1

    @property
    def is_reading(self) -> bool:
        """Whether the list is being read."""
        return self._reading

    def reset(self) -> None:
        """Forgets everything after a new session, which ends old watches and answers."""
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
        """Returns the block to claim next: the first of the user whose turn it is, or one of the first of its priority under competition.

        passed, without, barred: blocks, submissions and users (tags) to skip.
        None: there is none, or the list has to be read first (`look`). Cost: as `Turns.order`, and the skipped blocks of that user.
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
        """Returns the users who have a line, in turn, after the blocks that an operator has raised."""
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
        """Orders candidates under competition: first our own rest, then at random, where large blocks (still whole) are likelier."""
        mixed = zlib.crc32(self._salt + candidate.name.encode()) * 0x9E3779B1 & 0xFFFFFFFF  # a bare checksum would order all salts alike
        share = (mixed + 1) / (1 << 32)
        return not candidate.is_own, -math.log(share) / candidate.key.count**2

    def fetch(self, candidate: BlockCandidate) -> None:
        """Starts to fetch the data of a candidate, unless known."""
        if candidate.data is None and not candidate.is_coming and candidate.stage is not CandidateStage.GONE:
            candidate.is_coming = True
            future = self._coordinator.get(paths.pending_block(self.spec.name, candidate.key))
            future.add_done_callback(lambda done: self._post(lambda: self._on_fetched(candidate, done)))

    def fetch_ahead(self, count: int) -> list[BlockCandidate]:
        """Fetches the data of the first candidates of each user, `count` in all, and returns these candidates; none under competition.

        Cost: O(count + claims in flight), and as `pick`.
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
        """Notes the user (tag) of a block whose record was read. Returns: whether the block moves to another line, since its name has no
        tag."""
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
        """Builds the lines. names: in claim order. Under competition, lines of equal turn have an order of this Starter's own."""
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

    # -- results of claims -------------------------------------------------------------------------------------------------

    def take(self, candidate: BlockCandidate, rest: tuple[BlockKey, BlockData] | None) -> BlockCandidate | None:
        """Notes that a claim of `candidate` is in flight; returns the candidate that it leaves behind, which can be claimed at once."""
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
        """Notes that the claim was committed."""
        self._lose(candidate)
        self._spread -= -(-self._spread // 8) if self._spread > 1 else 0
        self._late, self._has_won = self._late // 2, True

    def missed(self, candidate: BlockCandidate, rest: BlockCandidate | None) -> None:
        """Notes that another Starter was quicker: read again soon, and spread further from the head."""
        self._lose(candidate)
        if rest is not None:
            self._lose(rest)
        self._too_late(candidate)

    def _too_late(self, candidate: BlockCandidate) -> None:
        self._spread = min(_SPREAD, self._spread * 2)
        self._late = min(_YIELDS, self._late + 1)
        self._gone += 1
        # The rest that others left of the block may be more urgent than all blocks of a lower priority.
        line = self._lines.get(self._user_of(candidate.name))
        left = self._left_of(line, candidate.key.priority) if line is not None else 0
        self._stale = self._stale or self._gone >= _GONE or left < _ENOUGH

    def _count_left(self) -> int:
        """Returns the number of remaining candidates; stops counting at `_ENOUGH`. Cost: as `fetch_ahead`."""
        left = 0
        for line in self._lines.values():
            left += self._left_of(line)
            if left >= _ENOUGH:
                break
        return left

    def _left_of(self, line: _Line, priority: int | None = None) -> int:
        """Returns the same for one line (only the first priority if given), counted up to `_ENOUGH`."""
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
        """Notes that a claim failed for another reason: the block is still there."""
        if candidate.stage is CandidateStage.TAKEN:
            candidate.stage = CandidateStage.WAITS
        if rest is not None:
            self._lose(rest)

    def pause(self, candidate: BlockCandidate, now_s: float, for_s: float, *, grows: bool = True) -> None:
        """Leaves the blocks of a submission alone for a while; with `grows` twice as long each time, as long as the block waits."""
        if grows:
            for_s = min(_MOST_PAUSE_S, for_s * 2**candidate.pauses)
            candidate.pauses += 1
        self._paused_s[candidate.key.submission] = now_s + for_s
        self._pausing[candidate.key.submission] = candidate.name

    def next_pause_s(self, now_s: float) -> float | None:
        """Returns when the first pause of a submission ends, None if there is none."""
        later = [until for until in self._paused_s.values() if until > now_s]
        return min(later, default=None)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def look(self, now_s: float, *, hungry: bool) -> None:
        """Reads the list if that can show something new, with a watch for hungry nodes; called when nothing could be picked."""
        if self._reading or self.is_current or now_s < self._next_read_s:
            return
        if self._stale or hungry or now_s - self._read_s > _EXHAUSTED_S:
            self._read(now_s, watch=hungry)

    def look_behind(self, now_s: float) -> None:
        """Reads the list right behind a claim of the last candidate, when the node will be hungry soon.

        It sets a new watch, since the claim itself fires the old one. So the node knows before the task ends that nothing else
        waits, and its COMPLETE can carry the idle mark.
        """
        if not self._reading and not self._count_left():
            self._watched = False
            self._read(now_s, watch=True)

    def next_look_s(self) -> float:
        """Returns when reading the list can show something new."""
        return self._next_read_s if self._stale else max(self._next_read_s, self._read_s + _EXHAUSTED_S)

    def _read(self, now_s: float, *, watch: bool) -> None:
        self._reading, self._stale = True, False
        self._next_read_s = now_s + _PAUSE_S + self._yield_s()
        self._reads += 1
        generation, number = self._generation, self._reads
        is_new = watch and not self._watched
        if is_new:
            self._watched = True
            self._watches += 1
        mine = self._watches
        fired = (lambda: self._post(lambda: self._on_watch(generation, mine))) if is_new else None
        future = self._coordinator.children(paths.pending(self.spec.name), watch=fired)
        future.add_done_callback(lambda done: self._post(lambda: self._on_list(generation, number, done)))

    def _on_watch(self, generation: int, watch: int) -> None:
        if generation == self._generation and watch == self._watches:
            self._watched, self._was_called = False, True
            self._stale = self._stale or not self._count_left()
            self._next_read_s = max(self._next_read_s, self._clock() + self._yield_s())

    def _yield_s(self) -> float:
        return machine.uniform(0.0, _YIELD_S * 2**self._late) if self._late else 0.0

    def _on_list(self, generation: int, number: int, done: Future[list[str] | None]) -> None:
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
        for submission in [number for number, name in self._pausing.items() if name not in listed]:  # the block was set aside
            del self._pausing[submission], self._paused_s[submission]
        self._strange &= listed
        self._is_fair = self.spec.is_fair
        found = sorted([name for name in listed - self._strange if len(name) in paths.BLOCK_NAMES], key=paths.claim_order)
        if self._users:
            standing = {paths.submission_in(name) for name in found if not paths.tag_in(name)}
            self._users = {number: user for number, user in self._users.items() if number in standing}
        self._line_up(found)
        # A name that was gone before this read began and is listed again is a block that came back.
        self._candidates = {
            name: candidate
            for name, candidate in self._candidates.items()
            if (name in listed or candidate.stage is CandidateStage.TAKEN)
            and not (candidate.stage is CandidateStage.GONE and candidate.gone_at < number)
        }

    def _on_fetched(self, candidate: BlockCandidate, done: Future[Stamped | None]) -> None:
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
                self._strange.add(name)  # submitters can create names here: parsed once while it stands
                return None
            self._candidates[name] = candidate
        return candidate

    def _trim(self, line: _Line) -> None:
        """Skips blocks that are gone at the front, so that a long list costs nothing."""
        while line.at < len(line.names):
            name = line.names[line.at]
            candidate = self._candidates.get(name)
            if name not in self._strange and (candidate is None or candidate.stage in _STANDING):
                return
            line.at += 1


def _block_of(key: BlockKey, data: bytes) -> tuple[BlockData, str]:
    """Returns the data of a block, and why nothing of it may run ("" = it may); the data of an invalid block are not used."""
    try:
        found = decode(data, BlockData, paths.block_name(key))
        check_block(key, found, pulled=True)
    except RmgrError as error:
        return BlockData(resubmit=False, stamp="invalid"), error.message
    return found, ""
