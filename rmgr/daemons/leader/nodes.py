"""Liveness of nodes: a Starter whose session ended is fenced after a grace, then its claimed blocks are marked FAILED.

Two kinds of open business, both level-triggered and found again by any successor:
- a *case*: a node whose record says UP but whose Starter has no entry; it ends with FENCE, or when the node returns;
- a *clearing*: a fenced node with blocks under /running; it ends when the last block is FAILED, or when the node returns and handles its
  remaining blocks itself. At the end, orders to the node and its idle marker are deleted.
FENCE always comes first: after it the old incarnation can commit nothing, whatever session it uses.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rmgr.coord import validity
from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import LossWindow, MassLoss, Meter
from rmgr.coord.ops.leader import discard, fail, fence, tidy_node
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Committed, Conflict, Multi, Outcome, Stamped, Unknown
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.facts import user_mark
from rmgr.errors import RmgrError, WrongCluster
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.node import TAKES_WORK, Drain, NodeRecord, NodeState, StarterEntry, Trouble
from rmgr.model.states import Reason
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story, each

if TYPE_CHECKING:
    from rmgr.daemons.leader.leader import Leader

_RETRY_S = 1.0
#: Pause before a long list is read again, for each name beyond the first `_SHORT`: 0.1 s with 2,000 Starters.
_PACE_S, _SHORT = 50e-6, 100
#: Largest number of nodes fenced by one multi.
_TOGETHER = 50
#: Records reread at once when memory may be wrong: nodes are never deleted, so there may be thousands.
DOUBTS = 250


@dataclass(slots=True, eq=False)
class _LostNode:
    """A lost node. guid: of its Starter. claimed: number of blocks that it had. alone: a commit of its own fences it."""

    guid: str
    claimed: int = 0
    alone: bool = False


class NodeKeeper:
    """Keeps track of nodes and their Starters, and fences the nodes whose Starters vanish."""

    def __init__(self, leader: Leader) -> None:
        self.records: dict[str, NodeRecord] = {}
        self.drains: dict[str, Drain] = {}
        self.resumed: dict[str, Drain] = {}
        self.troubles: dict[str, Trouble] = {}
        self.alive: frozenset[str] = frozenset()
        self.mass: MassLoss | None = None
        self.leader = leader
        self.term = leader.term
        self._versions: dict[str, int] = {}
        self._entries: frozenset[str] = frozenset()
        mirror = self.term.mirror
        self._names = mirror.names(paths.NODES, self._on_names)
        self._starters = mirror.names(paths.STARTERS, self._on_starters)
        self._starters.is_chatty = True
        self._drains = mirror.below(paths.DRAINS, self._take_drain)
        self._troubles = mirror.below(paths.TROUBLES, self._take_trouble)
        self._revoked = mirror.below(paths.REVOKED, lambda _: self._look_soon())
        self._cases: dict[str, _LostNode] = {}
        self._clearer = Clearer(self)
        self._window = LossWindow(self.term.settings.mass_loss_share, 2 * self.term.coordinator.session_timeout_s)
        self._meter: Meter | None = None
        self._unread = 0  # reads of records and entries in flight; no case is opened meanwhile
        self._listed = False
        self._turned = 0
        self._looks = False
        self._ripe: dict[str, _LostNode] = {}  # cases whose grace is over; one list of entries confirms them together

    def start(self) -> None:
        """Reads everything, records before entries (see `coord/decisions/liveness.py`)."""
        self._names.refresh()
        self._drains.refresh()
        self._troubles.refresh()
        self._revoked.refresh()

    def resync(self) -> None:
        """Compares some of the records with their znodes."""
        names = sorted(self.records)
        start = self._turned % max(1, len(names))
        self._turned = start + DOUBTS if start + DOUBTS < len(names) else 0
        for name in names[start : start + DOUBTS]:  # the next ones, round after round
            self.fetch(name, drift=True)

    def hurry(self) -> bool:
        """Sends the reads that were put off. Returns whether nothing is being read."""
        return self.term.mirror.hurry() and not self._unread

    def takes_work(self, name: str) -> bool:
        """Whether the node is up and not drained, and its Starter accepts placed work."""
        record, trouble = self.records[name], self.troubles.get(name)
        is_up = record.state is NodeState.UP and record.guid in self.alive and name not in self.drains
        return is_up and (trouble is None or trouble.incarnation != record.incarnation or trouble.kind in TAKES_WORK)

    def refuses(self, name: str) -> Collection[str]:
        """Returns the users whose work the node's Starter cannot run."""
        record, trouble = self.records[name], self.troubles.get(name)
        return trouble.refused if trouble is not None and trouble.incarnation == record.incarnation else ()

    def mark_of(self, user: str) -> str:
        """Returns the feature that jobs of the user need of their nodes (`user_mark`), "" if no node refuses the user's work."""
        return user_mark(user) if any(user in trouble.refused for trouble in self.troubles.values()) else ""

    def version_of(self, name: str) -> int | None:
        """Returns the node's fence, None if the node is unknown."""
        return self._versions.get(name)

    # -- facts

    def _on_names(self) -> None:
        names = self._names.value or ()
        self._names.pace_s = _PACE_S * max(0, len(names) - _SHORT)
        for name in names:
            if name not in self.records:
                self.fetch(name)
        if not self._starters.is_known:
            self._starters.refresh()  # sent after the records, so answered after them

    def fetch(self, name: str, *, drift: bool = False) -> None:
        """Reads the node's record again."""
        self._unread += 1
        self.term.tell(self._read_record(name, drift=drift), paths.node(name), key=object())

    def _read_record(self, name: str, *, drift: bool) -> Story[None]:
        try:
            found = yield self.term.get(paths.node(name))
        except RmgrError:
            self.term.after(_RETRY_S, lambda: self.fetch(name))
            return
        finally:
            self._unread -= 1
        if found is not None:
            if drift and name in self._versions and self._versions[name] < found.version and name not in self._cases:
                self.term.metrics.resync_drift.inc()
            self._take(name, found)
        self._look_soon()

    def _take(self, name: str, found: Stamped) -> None:
        if found.version <= self._versions.get(name, -1):
            return  # known, or older than what a commit of this leader made
        try:
            record = decode_record(found.data, NodeRecord, paths.node(name))
        except WrongCluster as error:
            self.term.log.error("node_record_unreadable", node=name, error=error.message)
            return
        self.records[name], self._versions[name] = record, found.version
        self.leader.nodes_changed()

    def _on_starters(self) -> None:
        entries = frozenset(self._starters.value or ())
        for entry in sorted(entries - self._entries):
            if self._listed:  # at the start, all records were read before
                self._unread += 1
                self.term.tell(self._read_entry(entry), f"{paths.STARTERS}/{entry}", key=object())
        self._entries = entries
        self._starters.pace_s = _PACE_S * max(0, len(entries) - _SHORT)
        alive = liveness.guids(entries)
        if self._listed:  # a Starter may have registered and gone between two reads of the list
            gone = [record for record in self.records.values() if record.guid not in alive]
            gone.sort(key=lambda record: (record.state is NodeState.FENCED, -record.registered_us, record.node))
            for record in gone[:DOUBTS]:
                self.fetch(record.node)
        self._listed = True
        self._set_alive(alive)

    def _set_alive(self, alive: frozenset[str]) -> None:
        for guid in alive - self.alive:
            self._window.returned(guid)
        if alive != self.alive:
            self.alive = alive
            self.leader.nodes_changed()
        self._look()

    def _read_entry(self, entry: str) -> Story[None]:
        try:
            found = yield self.term.get(f"{paths.STARTERS}/{entry}")
        except RmgrError:
            found = None
        self._unread -= 1
        if found is not None:
            for name in decode_record(found.data, StarterEntry, entry).nodes:
                self.fetch(name)
        self._look_soon()

    def _take_drain(self, name: str) -> None:
        found = self._drains.values.get(name)
        drain = None if found is None else decode_record(found.data, Drain, paths.drain(name))
        for table in (self.drains, self.resumed):
            table.pop(name, None)
        if drain is not None:
            (self.resumed if drain.is_over else self.drains)[name] = drain
        self.leader.nodes_changed()

    def _take_trouble(self, name: str) -> None:
        found = self._troubles.values.get(name)
        trouble = None if found is None else decode_record(found.data, Trouble, paths.trouble(name))
        self.troubles.pop(name, None)
        if trouble is not None:
            self.troubles[name] = trouble
        self.leader.nodes_changed()

    # -- what follows from the facts

    def _look_soon(self) -> None:
        """Calls `_look` once for all records that arrive together."""
        if not self._looks:
            self._looks = True
            self.term.soon(self._look)

    def _look(self) -> None:
        """Opens and drops cases and clearings; harmless to call at any time. Cost: O(nodes)."""
        self._looks = False
        if not self._listed:
            return
        lost = set(liveness.lost(self.records, self.alive, self._revoked.names))
        for name in [known for known in self._cases if known not in lost]:
            self._drop(name)
        new = sorted(lost - self._cases.keys()) if not self._unread else []
        for name in new:
            self._window.note(self.records[name].guid, self.term.clock())
        for name in new:
            self._open(name)
        for name, record in self.records.items():
            if record.state is NodeState.FENCED:
                self._clearer.clear(name, self._versions[name])
            else:
                self._clearer.leave(name)
        self.term.metrics.nodes_up.set(sum(record.state is NodeState.UP and record.guid in self.alive for record in self.records.values()))

    def _drop(self, name: str) -> None:
        case = self._cases.pop(name)
        self.term.stories.end(case)
        self._window.returned(case.guid)
        self.term.log.info("node_returned", node=name)

    def _open(self, name: str) -> None:
        record = self.records[name]
        self._cases[name] = case = _LostNode(record.guid)
        self.term.log.info("node_lost", node=name, incarnation=record.incarnation, guid=record.guid)
        self._judge_mass()
        self.term.tell(self._wait(name, case), f"lost node {name}", key=case)

    def _wait(self, name: str, case: _LostNode) -> Story[None]:
        """Waits for the end of the node's grace and for its turn."""
        try:
            claimed = yield self.term.children(paths.running_node(name))
            claimed = claimed or (yield self.term.children(paths.hold(name)))  # work that the node only helped with counts, too
            case.claimed = len(claimed or ())
        except RmgrError:
            case.claimed = 1
        # A Starter that ended in good order left nothing behind, so there is no grace.
        yield Pause(self.term.settings.grace_us / 1e6 if case.claimed else 0.0)
        yield from self._ripen(name, case)

    def _try_again(self, name: str, case: _LostNode) -> Story[None]:
        yield Pause(_RETRY_S)
        yield from self._ripen(name, case)

    def _ripen(self, name: str, case: _LostNode) -> Story[None]:
        while wait_s := self.turn_s():
            yield Pause(wait_s)
        self._ripe[name] = case
        self.term.tell(self._confirm_all(), "lost nodes")

    def _confirm_all(self) -> Story[None]:
        """Confirms all cases whose grace ended together with one read of the list, which may be long."""
        while self._ripe:
            yield self.term.others_first()
            cases, self._ripe = self._ripe, {}
            yield from self._confirm(cases)

    def _confirm(self, cases: dict[str, _LostNode]) -> Story[None]:
        """Checks that the nodes are still lost. Records first, then the list (FIFO): see `coord/decisions/liveness.py`."""
        records = [self.term.get(paths.node(name)) for name in cases]
        entries = self.term.children(paths.STARTERS)
        for (name, case), record in zip(cases.items(), records, strict=True):
            with suppress(RmgrError):  # then the fence is tried on an older version, and is refused if the version has changed
                found = yield record
                if found is not None and self._cases.get(name) is case:
                    self._take(name, found)
        try:
            listed = yield entries
        except RmgrError:
            for name, case in cases.items():
                if self._cases.get(name) is case:
                    self.term.tell(self._try_again(name, case), f"lost node {name}", key=case)
            return
        self._set_alive(liveness.guids(listed or ()))  # drops the cases of nodes that are back
        doomed: list[str] = []
        for name, case in cases.items():
            if self._cases.get(name) is not case:
                continue
            if self.records[name].guid != case.guid:  # a later incarnation is lost: it has its own grace
                self._drop(name)
                self._look_soon()
            else:
                doomed.append(name)
        together = [name for name in doomed if not cases[name].alone]
        groups = [together[start : start + _TOGETHER] for start in range(0, len(together), _TOGETHER)]
        for some in [*groups, *([name] for name in doomed if cases[name].alone)]:
            self._fence_soon({name: cases[name] for name in some})

    def _fence_soon(self, cases: dict[str, _LostNode]) -> None:
        self.term.tell(self._fence(cases), f"lost nodes {', '.join(cases)}"[:200], key=object())

    def _fence(self, cases: dict[str, _LostNode]) -> Story[None]:
        failpoint("leader.before_fence")
        reasons, multis = {}, []
        for name, case in cases.items():
            record = self.records[name]
            reasons[name] = liveness.fence_reason(case.claimed, revoked=record.key_id in self._revoked.names, leaves=record.leaves)
            multis.append(fence(self.term.epoch_version, record, self._versions[name], reasons[name]))
        ops = tuple(dict.fromkeys(op for multi in multis for op in multi.ops))  # the leader fence is checked once
        # All or nothing: the list that proves one node lost proves all of them lost.
        outcome = yield self.term.commit(replace(multis[0], ops=ops), urgent=True)
        standing = [name for name, case in cases.items() if self._cases.get(name) is case]
        match outcome:
            case Committed():
                self._note_fenced(cases, reasons, outcome)
            case Conflict() if len(cases) > 1:  # one of the nodes has registered again
                for name in standing:
                    self._fence_soon({name: cases[name]})
            case Conflict():  # the node has registered again: look once more
                for name in standing:
                    del self._cases[name]
                    self.fetch(name)
            case Unknown():  # also a multi that is too large
                for name in standing:
                    cases[name].alone = True
                    self.term.tell(self._try_again(name, cases[name]), f"lost node {name}", key=cases[name])

    def _note_fenced(self, cases: dict[str, _LostNode], reasons: dict[str, str], outcome: Committed) -> None:
        for at, (name, case) in enumerate(cases.items(), start=1):
            self._cases.pop(name, None)
            self._versions[name] = outcome.versions[at]
            self.records[name] = fenced = replace(self.records[name], state=NodeState.FENCED, reason=reasons[name])
            self.term.metrics.fenced_nodes.inc()
            incarnation, reason = fenced.incarnation, fenced.reason
            self.term.log.info("node_fenced", node=name, incarnation=incarnation, reason=reason, running=case.claimed)
        failpoint("leader.after_fence")
        self.leader.nodes_changed()
        self._look()

    # -- mass loss

    def _judge_mass(self) -> None:
        self._window.share = self.term.settings.mass_loss_share
        verdict = self._window.verdict(len(self.alive), self.term.clock())
        if (verdict is None) != (self.mass is None):
            self.term.metrics.mass_loss.set(0 if verdict is None else 1)
            if verdict is not None:
                rate = self.term.settings.mass_requeue_per_s
                self._meter = Meter(rate, self.term.clock())
                self.term.tell(self._until_it_is_over(), "the mass loss")
                self.term.log.warning("mass_loss_began", failed=verdict.lost, total=verdict.known, rate=rate)
            else:
                self._meter = None
                self.term.log.info("mass_loss_ended")
        self.mass = verdict

    def _until_it_is_over(self) -> Story[None]:
        while self.mass is not None or self._meter is not None:
            yield Pause(1.0)
            self._judge_mass()

    def turn_s(self) -> float:
        """Returns 0.0 to go on, or how long to wait before asking again (rule 21)."""
        if self.mass is not None:
            self._judge_mass()
        return self._meter.take(self.term.clock()) if self._meter is not None else 0.0


class Clearer:
    """All clearings of one leadership."""

    def __init__(self, keeper: NodeKeeper) -> None:
        self._keeper = keeper
        self._term = keeper.term
        self._begun: dict[str, int] = {}  # node -> version of the FENCE for which its clearing began

    def clear(self, name: str, version: int) -> None:
        """Begins the clearing of a node fenced at this version of its record; repeated calls do nothing."""
        if self._begun.get(name) != version:
            self.leave(name)
            self._begun[name] = version
            self._term.tell(self._clear(name, version), f"clearing of {name}", key=("clearing", name))

    def leave(self, name: str) -> None:
        """Ends the clearing of a node that is not fenced, or no longer."""
        if self._begun.pop(name, None) is not None:
            self._term.stories.end(("clearing", name))

    def _clear(self, name: str, version: int) -> Story[None]:
        failed = 0
        while True:
            try:
                keys = [key for _, key in sorted(paths.blocks_in((yield self._term.children(paths.running_node(name)))))]
                if not keys:
                    break
                some = yield from self._fail(name, version, keys)
            except RmgrError:
                some = 0
            failed += some
            if not some:
                yield Pause(_RETRY_S)
        if failed:
            self._term.log.info("node_cleared", node=name, failed=failed)
        yield from self._tidy(name, version)

    def _tidy(self, name: str, version: int) -> Story[None]:
        """Deletes the orders to the node and its idle marker, which are useless now. What cannot be deleted alone stays."""
        stuck: set[str] = set()
        while True:
            asked: list[Future[Any]] = [self._term.children(paths.inbox_node(name)), self._term.stat(paths.idle(name))]
            try:
                orders, idle = yield from each(asked)
            except RmgrError:
                yield Pause(_RETRY_S)
                continue
            left = [guid for guid in orders or () if paths.inbox(name, guid) not in stuck]
            is_marked = idle is not None and paths.idle(name) not in stuck
            multi = tidy_node(self._term.epoch_version, name, version, orders=left, idle=is_marked)
            if multi is None:
                return
            match (yield self._term.commit(multi)):
                case Conflict(path=path) if path == paths.node(name):  # the node has registered again and needs them itself
                    self._keeper.fetch(name)
                    return
                case Conflict(path=path):  # crossed off meanwhile, or something lies below it
                    stuck.add(path)
                case Unknown():
                    yield Pause(_RETRY_S)

    def _fail(self, name: str, version: int, keys: list[BlockKey]) -> Story[int]:
        """Marks blocks FAILED. Returns how many."""
        queues: dict[int, str | None] = {}
        for number in dict.fromkeys(key.submission for key in keys):
            queues[number] = yield from self._keeper.leader.submissions.queue_of(number)
        blocks = yield self._term.get_all([paths.running_block(name, key) for key in keys])
        sent: list[tuple[str, Future[Outcome]]] = []
        for key, found in zip(keys, blocks, strict=True):
            if found is not None:
                while wait_s := self._keeper.turn_s():
                    yield Pause(wait_s)
                block = paths.running_block(name, key)
                try:
                    multi = self._outcome_of(name, version, key, queues[key.submission], found)
                except Exception as error:  # noqa: BLE001 - the boundary of one block
                    self._term.aside.add(block, found.version, error)
                else:
                    sent.append((block, self._term.commit(multi, urgent=True)))
        failed = 0
        outcomes = yield from each([answer for _, answer in sent])
        for (block, _), outcome in zip(sent, outcomes, strict=True):
            match outcome:
                case Committed():
                    failed += 1
                    self._term.metrics.failed_blocks.inc()
                    failpoint("leader.after_fail")
                case Conflict(path=path) if path == paths.node(name):
                    self._keeper.fetch(name)
                case Conflict(path=path, kind=kind):  # no place for its record: the submission was collected, as the next look shows
                    self._term.log.debug("leader_fail_conflict", node=name, block=block, path=path, kind=kind)
        return failed

    def _outcome_of(self, name: str, version: int, key: BlockKey, queue: str | None, found: Stamped) -> Multi:
        fenced = Check(paths.node(name), version)  # a node that has registered again handles the rest itself
        try:
            if queue is not None:
                validity.decode(found.data, BlockData, paths.running_block(name, key))
        except RmgrError as error:  # a Starter may write invalid data: its block is deleted, and spreads nowhere
            self._term.log.error("block_discarded", path=paths.running_block(name, key), error=error.message)
            queue = None
        if queue is None:
            return discard(paths.running_block(name, key), fenced, version=found.version)
        failpoint("leader.before_fail")
        return fail(fenced, name, queue, key, found.data, found.version, reason=Reason.NODE_LOST, now_us=self._term.wall_us())
