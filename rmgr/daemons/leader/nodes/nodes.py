"""Liveness of nodes: a Starter whose session ended is fenced after a grace, then its claimed blocks are marked FAILED.

Two kinds of open business, both level-triggered and found again by any successor:
- a *case*: a node that is up by its record and whose Starter has no entry; ends with FENCE, or with its return;
- a *clearing* (`leader/nodes/clear.py`): a fenced node with blocks under /running; ends when the last one is FAILED, or with its return.
FENCE comes first, always: from then on the old incarnation can commit nothing, whatever session it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import LossWindow, MassLoss, Meter
from rmgr.coord.ops.leader import fence
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome, Stamped, Unknown
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.facts import user_mark
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.watched_cache import names_below
from rmgr.daemons.leader.nodes.clear import Clearer
from rmgr.errors import WrongCluster
from rmgr.model.cluster.node import TAKES_WORK, Drain, NodeRecord, NodeState, StarterEntry, Trouble
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.mailbox import Timer

_RETRY_S = 1.0
#: A long list is read again no sooner than after this for each of its names beyond the first ones: 0.1 s with 2,000 Starters.
_PACE_S, _SHORT = 50e-6, 100
#: Nodes fenced by one multi.
_TOGETHER = 50
#: Records read again at once, when there is reason to doubt what is known: nodes are never deleted, and may be thousands.
DOUBTS = 250


@dataclass(slots=True)
class _Case:
    """A node without Starter. `timer`: the end of its grace, or of its turn."""

    guid: str
    claimed: int = 0
    timer: Timer | None = None


class NodeKeeper:
    """Nodes, their Starters and what to do when they vanish.

    Args:
        settings: the cluster's, as they are now.
        queue_of: asks for the queue of a submission; the answer (None: no such submission) comes by callback.
        window_s: mass losses are counted over so long (2 T).
        changed: called when nodes, entries or drains have changed.
    """

    def __init__(
        self,
        tree: LeaderCommits,
        term: Term,
        settings: Callable[[], ClusterSettings],
        queue_of: Callable[[int, Callable[[str | None], None]], None],
        *,
        window_s: float,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.records: dict[str, NodeRecord] = {}
        self.drains: dict[str, Drain] = {}
        self.resumed: dict[str, Drain] = {}
        self.troubles: dict[str, Trouble] = {}
        self.alive: frozenset[str] = frozenset()
        self.mass: MassLoss | None = None
        self._tree = tree
        self._term = term
        self._settings = settings
        self._changed = changed
        self._versions: dict[str, int] = {}
        self._entries: frozenset[str] = frozenset()
        self._names = names_below(tree, paths.NODES, self._on_names)
        self._starters = names_below(tree, paths.STARTERS, self._on_starters)
        self._drained = names_below(tree, paths.DRAINS, self._on_drains)
        self._troubled = names_below(tree, paths.TROUBLES, self._on_troubles)
        self._revoked = names_below(tree, paths.REVOKED, self._look_soon)
        self._starters.is_chatty = self._drained.is_chatty = self._troubled.is_chatty = True
        self._cases: dict[str, _Case] = {}
        self._clearer = Clearer(tree, term, queue_of, self._turn, self._fetch)
        self._window = LossWindow(settings().mass_loss_share, window_s)
        self._meter: Meter | None = None
        self._unread = 0  # records and entries asked for and not yet here: no case is opened before
        self._listed = False
        self._turned = 0
        self._looks = False
        self._ripe: dict[str, _Case] = {}  # cases whose grace is over, to be looked at together

    def start(self) -> None:
        """Reads everything; records before entries (see `coord/decisions/liveness.py`)."""
        self._names.refresh()
        self._drained.refresh()
        self._troubled.refresh()
        self._revoked.refresh()

    def resync(self) -> None:
        """Compares memory with znodes, watches or not."""
        self._names.refresh()
        self._drained.refresh()
        self._troubled.refresh()
        self._revoked.refresh()
        for name in self._slice(sorted(self.records)):
            self._fetch(name, drift=True)
        self._starters.refresh()

    def _slice(self, names: list[str]) -> list[str]:
        """The next `DOUBTS` of the names, round after round."""
        start = self._turned % max(1, len(names))
        self._turned = start + DOUBTS if start + DOUBTS < len(names) else 0
        return names[start : start + DOUBTS]

    def hurry(self) -> bool:
        """Whether nothing is being read."""
        waits = [cache.hurry() for cache in (self._names, self._starters, self._drained, self._troubled, self._revoked)]
        return not any(waits) and not self._unread

    def takes_work(self, name: str) -> bool:
        """The node is up, nobody drains it, and its Starter takes what is placed there."""
        record, trouble = self.records[name], self.troubles.get(name)
        is_up = record.state is NodeState.UP and record.guid in self.alive and name not in self.drains
        return is_up and (trouble is None or trouble.incarnation != record.incarnation or trouble.kind in TAKES_WORK)

    def refuses(self, name: str) -> Collection[str]:
        """Users whose work the node's Starter cannot run."""
        record, trouble = self.records[name], self.troubles.get(name)
        return trouble.refused if trouble is not None and trouble.incarnation == record.incarnation else ()

    def mark_of(self, user: str) -> str:
        """What jobs of the user need of their nodes (`user_mark`), "" if no node refuses his work."""
        return user_mark(user) if any(user in trouble.refused for trouble in self.troubles.values()) else ""

    def version_of(self, name: str) -> int | None:
        """The node's fence; None for an unknown one."""
        return self._versions.get(name)

    # -- facts

    def _on_names(self) -> None:
        names = self._names.value or ()
        self._names.pace_s = _PACE_S * max(0, len(names) - _SHORT)
        for name in names:
            if name not in self.records:
                self._fetch(name)
        if not self._starters.is_known:
            self._starters.refresh()  # sent after the records: answered after them

    def _fetch(self, name: str, *, drift: bool = False) -> None:
        self._unread += 1
        self._tree.get(paths.node(name), partial(self._on_record, name, drift), failed=partial(self._on_unread, name))

    def _on_unread(self, name: str) -> None:
        self._unread -= 1
        self._tree.after(_RETRY_S, partial(self._fetch, name))

    def _on_record(self, name: str, drift: bool, found: Stamped | None) -> None:
        self._unread -= 1
        if found is not None:
            self._note_drift(name, drift, found)
            self._take(name, found)
        self._look_soon()

    def _note_drift(self, name: str, drift: bool, found: Stamped) -> None:
        if drift and name in self._versions and self._versions[name] < found.version and name not in self._cases:
            self._term.metrics.resync_drift.inc()

    def _take(self, name: str, found: Stamped) -> None:
        if found.version <= self._versions.get(name, -1):
            return  # known, or older than what a commit of ours has made
        try:
            record = decode_record(found.data, NodeRecord, paths.node(name))
        except WrongCluster as error:
            self._term.log.error("node_record_unreadable", node=name, error=error.message)
            return
        self.records[name], self._versions[name] = record, found.version
        self._changed()

    def _on_starters(self) -> None:
        entries = frozenset(self._starters.value or ())
        for entry in sorted(entries - self._entries):
            if self._listed:  # at the start all records have been asked for before
                self._unread += 1
                path = f"{paths.STARTERS}/{entry}"
                self._tree.get(path, partial(self._on_entry, entry), failed=partial(self._on_entry, entry, None))
        self._entries = entries
        self._starters.pace_s = _PACE_S * max(0, len(entries) - _SHORT)
        alive = liveness.guids(entries)
        if self._listed:  # a Starter may have registered and gone again between two readings of the list
            gone = [record for record in self.records.values() if record.guid not in alive]
            gone.sort(key=lambda record: (record.state is NodeState.FENCED, -record.registered_us, record.node))
            for record in gone[:DOUBTS]:
                self._fetch(record.node)
        self._listed = True
        self._set_alive(alive)

    def _set_alive(self, alive: frozenset[str]) -> None:
        for guid in alive - self.alive:
            self._window.returned(guid)
        if alive != self.alive:
            self.alive = alive
            self._changed()
        self._look()

    def _on_entry(self, entry: str, found: Stamped | None) -> None:
        self._unread -= 1
        if found is not None:
            for name in decode_record(found.data, StarterEntry, entry).nodes:
                self._fetch(name)
        self._look_soon()

    def _on_drains(self) -> None:
        names = self._drained.value or []
        for table in (self.drains, self.resumed):
            for name in [known for known in table if known not in names]:
                del table[name]
        for name in names:
            self._tree.get(paths.drain(name), partial(self._on_drain, name))
        self._changed()

    def _on_drain(self, name: str, found: Stamped | None) -> None:
        if found is not None:
            drain = decode_record(found.data, Drain, paths.drain(name))
            table, other = (self.resumed, self.drains) if drain.is_over else (self.drains, self.resumed)
            table[name] = drain
            other.pop(name, None)
            self._changed()

    def _on_troubles(self) -> None:
        names = self._troubled.value or []
        for name in [known for known in self.troubles if known not in names]:
            del self.troubles[name]
        for name in names:
            self._tree.get(paths.trouble(name), partial(self._on_trouble, name))
        self._changed()

    def _on_trouble(self, name: str, found: Stamped | None) -> None:
        if found is not None:
            self.troubles[name] = decode_record(found.data, Trouble, paths.trouble(name))
            self._changed()

    # -- what follows from them

    def _look_soon(self) -> None:
        """Looks once for any number of records that have arrived together."""
        if not self._looks:
            self._looks = True
            self._tree.soon(self._look)

    def _look(self) -> None:
        """Opens and drops cases and clearings; harmless to call at any time. Cost: O(nodes)."""
        self._looks = False
        if not self._listed:
            return
        lost = set(liveness.lost(self.records, self.alive, self._revoked.value or ()))
        for name in [known for known in self._cases if known not in lost]:
            self._drop(name)
        new = sorted(lost - self._cases.keys()) if not self._unread else []
        for name in new:
            self._window.note(self.records[name].guid, self._tree.clock())
        for name in new:
            self._open(name)
        for name, record in self.records.items():
            if record.state is NodeState.FENCED:
                self._clearer.clear(name, self._versions[name])
            else:
                self._clearer.leave(name)
        self._term.metrics.nodes_up.set(
            sum(record.state is NodeState.UP and record.guid in self.alive for record in self.records.values())
        )

    def _drop(self, name: str) -> None:
        case = self._cases.pop(name)
        if case.timer is not None:
            case.timer.cancel()
        self._window.returned(case.guid)
        self._term.log.info("node_returned", node=name, epoch=self._term.epoch)

    def _open(self, name: str) -> None:
        record = self.records[name]
        self._cases[name] = case = _Case(record.guid)
        self._term.log.info("node_lost", node=name, incarnation=record.incarnation, guid=record.guid, epoch=self._term.epoch)
        self._judge_mass()
        self._tree.children(
            paths.running_node(name), partial(self._on_running, name, case), failed=partial(self._on_claimed, name, case, None)
        )

    def _on_running(self, name: str, case: _Case, names: list[str] | None) -> None:
        """What it only helped with counts, too."""
        then = partial(self._on_claimed, name, case)
        if names:
            then(names)
        else:
            self._tree.children(paths.hold(name), lambda holds: then(holds or []), failed=partial(then, None))

    def _on_claimed(self, name: str, case: _Case, names: list[str] | None) -> None:
        if self._cases.get(name) is not case:
            return
        case.claimed = 1 if names is None else len(names)
        # A Starter that ended in good order left nothing behind: there is nobody to wait for.
        grace_s = self._settings().grace_us / 1e6 if case.claimed else 0.0
        case.timer = self._tree.after(grace_s, partial(self._due, name, case))

    def _due(self, name: str, case: _Case) -> None:
        """The grace is over: is it still so? Record first, then the list (FIFO): see `coord/decisions/liveness.py`."""
        if self._cases.get(name) is not case:
            return
        wait_s = self._turn()
        if wait_s:
            case.timer = self._tree.after(wait_s, partial(self._due, name, case))
            return
        if not self._ripe:
            self._tree.soon(self._confirm)
        self._ripe[name] = case

    def _confirm(self) -> None:
        """One list for all whose grace has ended together: it may be long."""
        cases, self._ripe = self._ripe, {}
        # If only a record cannot be read, the fence is tried on an older version, and loses if that has changed.
        for name, case in cases.items():
            self._tree.get(paths.node(name), partial(self._on_confirmed, name, case))
        self._tree.children(paths.STARTERS, partial(self._on_listed, cases), failed=partial(self._again, cases))

    def _again(self, cases: dict[str, _Case]) -> None:
        for name, case in cases.items():
            if self._cases.get(name) is case:
                case.timer = self._tree.after(_RETRY_S, partial(self._due, name, case))

    def _on_confirmed(self, name: str, case: _Case, found: Stamped | None) -> None:
        if self._cases.get(name) is case and found is not None:
            self._take(name, found)

    def _on_listed(self, cases: dict[str, _Case], names: list[str] | None) -> None:
        self._set_alive(liveness.guids(names or ()))  # drops the cases whose nodes are back
        doomed = []
        for name, case in cases.items():
            if self._cases.get(name) is not case:
                continue
            if self.records[name].guid != case.guid:  # another incarnation, lost in its turn: it has its own grace
                self._drop(name)
                self._look_soon()
            else:
                doomed.append(name)
        for start in range(0, len(doomed), _TOGETHER):
            self._fence({name: cases[name] for name in doomed[start : start + _TOGETHER]})

    def _fence(self, cases: dict[str, _Case]) -> None:
        failpoint("leader.before_fence")
        reasons, multis = {}, []
        for name, case in cases.items():
            record = self.records[name]
            reasons[name] = liveness.fence_reason(case.claimed, revoked=record.key_id in (self._revoked.value or ()), leaves=record.leaves)
            multis.append(fence(self._term.epoch_version, record, self._versions[name], reasons[name]))
        ops = tuple(dict.fromkeys(op for multi in multis for op in multi.ops))  # the leader fence is checked once
        multi = replace(multis[0], ops=ops)  # all or nothing: what proves one of them proves all
        self._tree.commit(multi, partial(self._on_fenced, cases, reasons), urgent=True)

    def _on_fenced(self, cases: dict[str, _Case], reasons: dict[str, str], outcome: Outcome) -> None:
        standing = [name for name, case in cases.items() if self._cases.get(name) is case]
        if isinstance(outcome, Conflict) and len(cases) > 1:  # one of them has registered again
            for name in standing:
                self._fence({name: cases[name]})
            return
        if not isinstance(outcome, Committed):
            for name in standing:
                if isinstance(outcome, Unknown):
                    self._cases[name].timer = self._tree.after(_RETRY_S, partial(self._due, name, cases[name]))
                    continue
                del self._cases[name]
                self._fetch(name)  # it has registered again: look once more
            return
        for at, (name, case) in enumerate(cases.items(), start=1):
            self._cases.pop(name, None)
            self._versions[name] = outcome.versions[at]
            self.records[name] = replace(self.records[name], state=NodeState.FENCED, reason=reasons[name])
            self._term.metrics.fenced_nodes.inc()
            self._term.log.info(
                "node_fenced",
                node=name,
                incarnation=self.records[name].incarnation,
                reason=reasons[name],
                running=case.claimed,
                epoch=self._term.epoch,
            )
        failpoint("leader.after_fence")
        self._changed()
        self._look()

    # -- mass loss

    def _judge_mass(self) -> None:
        self._window.share = self._settings().mass_loss_share
        verdict = self._window.verdict(len(self.alive), self._tree.clock())
        if (verdict is None) != (self.mass is None):
            self._term.metrics.mass_loss.set(0 if verdict is None else 1)
            if verdict is not None:
                self._meter = Meter(self._settings().mass_requeue_per_s, self._tree.clock())
                self._tree.after(1.0, self._until_it_is_over)
                self._term.log.warning(
                    "mass_loss_began",
                    failed=verdict.lost,
                    total=verdict.known,
                    rate=self._settings().mass_requeue_per_s,
                    epoch=self._term.epoch,
                )
            else:
                self._meter = None
                self._term.log.info("mass_loss_ended", epoch=self._term.epoch)
        self.mass = verdict

    def _until_it_is_over(self) -> None:
        self._judge_mass()
        if self.mass is not None:
            self._tree.after(1.0, self._until_it_is_over)

    def _turn(self) -> float:
        """0.0: go on; else how long to wait before asking again (rule 21)."""
        if self.mass is not None:
            self._judge_mass()
        return self._meter.take(self._tree.clock()) if self._meter is not None else 0.0
