"""Answers questions on ZooKeeper and the data store: in processes that are trusted with both, and in gateways for all others.

One function per question, in a table; orders are in `orders.py`. The maker of the `Answers` knows the asker, whose name is recorded with
every change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rmgr.coord import validity
from rmgr.coord.decisions.rights import Person, may
from rmgr.coord.nonces import place_of
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.coord.views import answers as views
from rmgr.coord.views.health import with_part
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.errors import NotFound, StateConflict, StoreUnavailable
from rmgr.model.block import MAX_INDEX, job_id
from rmgr.model.node import Drain, EpochRecord, GangRecord, NodeRecord
from rmgr.model.queue import CappedUse, ClusterSettings
from rmgr.model.states import State
from rmgr.model.submission import Paged
from rmgr.model.views import PartView, QueueView, StatusView
from rmgr.procedures.admission import class_views
from rmgr.procedures.bootstrap import read_meta
from rmgr.procedures.bounded import page_at
from rmgr.procedures.history import summary_of
from rmgr.procedures.output_keys import Fates, locate
from rmgr.procedures.snapshot import fetch, read_names, read_record, read_snapshot, read_tasks
from rmgr.runtime import machine
from rmgr.submitter import orders
from rmgr.submitter import questions as q
from rmgr.submitter.questions import ORDERS, Question, check_asker
from rmgr.submitter.records import read_nodes, read_stored

A = TypeVar("A")
T = TypeVar("T")

#: Fragments in one answer: 3 MiB at most.
_FRAGMENTS = 250


class Answers:
    """A `questions.Asks`. Thread-safe as far as its parts are.

    Args:
        store: opens the data store; returns None if it cannot. who: the asker.
        owner_of: returns a submission's owner; None = read it each time.
        is_direct: the asker reaches ZooKeeper directly, too: no reading is refused, and operators named in the settings count beside
            those with a certificate.
        own_key: key of the asker's connection, "" = the asker has the cluster's credentials. certify: returns key id and canonical form of
            a certificate; None in an open cluster. most_tasks: in one answer, 0 = all.
        ordered: called with each order that was carried out, and the other users whose work it concerned.
        fates: shared by several `Answers`; None: its own.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Callable[[], Store | None],
        who: Person,
        *,
        owner_of: Callable[[int], str | None] | None = None,
        is_direct: bool = True,
        own_key: str = "",
        certify: Callable[[bytes], tuple[str, bytes]] | None = None,
        most_tasks: int = 0,
        ordered: Callable[[Question[Any], Collection[str]], None] = lambda *_: None,
        fates: Fates | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.store = store
        self.who = who
        self.is_direct = is_direct
        self.own_key = own_key
        self.certify = certify
        self.most_tasks = most_tasks
        self._owner_of = owner_of
        self._fates = fates
        self._ordered = ordered

    @property
    def hosts(self) -> str:
        return str(getattr(self.coordinator, "hosts", ""))

    @property
    def session_timeout_s(self) -> float:
        return self.coordinator.session_timeout_s

    def expect(self, *questions: Question[Any]) -> None:
        """Does nothing: here a question waits for ZooKeeper alone."""

    def ask(self, question: Question[A], *, timeout_s: float) -> A:
        owner_of = partial(self._owner, timeout_s=timeout_s)
        others = check_asker(self.who, question, owner_of, lambda: self.operators(timeout_s), reads_all=self.is_direct)
        answer: A = ANSWERS[type(question)](self, question, timeout_s)
        if type(question) in ORDERS:
            self._ordered(question, others)
        return answer

    def operators(self, timeout_s: float) -> tuple[str, ...]:
        """Returns names that count as operators without a certificate."""
        return _read_settings(self, q.ReadSettings(), timeout_s).settings.operators if self.is_direct else ()

    @property
    def fates(self) -> Fates:
        """Knows and remembers what became of tasks."""
        if self._fates is None:
            store = self.store()
            if store is None:
                raise StoreUnavailable("no data store can be opened", hint="rmgr doctor")
            self._fates = Fates(store, self.coordinator)
        return self._fates

    def may_read(self, number: int, timeout_s: float) -> bool:
        """Returns whether the asker may know of a submission: it is the asker's own, does not exist, or the asker may read all."""
        if self.is_direct or self.who.is_free:
            return True
        owner = self._owner(number, timeout_s)
        return owner is None or self.who.owns(owner)

    def get(self, path: str, timeout_s: float) -> Stamped | None:
        """Reads one znode."""
        return self.coordinator.get(path, timeout_s=timeout_s).result(timeout_s + 1.0)

    def read(self, path: str, kind: type[T], timeout_s: float) -> T | None:
        """Reads one record."""
        return read_record(self.coordinator, path, kind, timeout_s=timeout_s)

    def stat(self, path: str, timeout_s: float) -> Stat | None:
        """Reads the numbers beside a znode."""
        return self.coordinator.stat(path, timeout_s=timeout_s).result(timeout_s + 1.0)

    def children(self, path: str, timeout_s: float) -> list[str]:
        """Returns the names below a znode."""
        return read_names(self.coordinator, path, timeout_s=timeout_s)

    def _owner(self, number: int, timeout_s: float) -> str | None:
        if self._owner_of is not None:
            return self._owner_of(number)
        found = self.get(paths.sub(number), timeout_s)
        if found is not None:
            return validity.submission(found.data, number).user
        store = self.store()
        past = summary_of(store, number, timeout_s=timeout_s) if store is not None else None
        return past.user if past is not None else None


# -- reading what is recorded --------------------------------------------------------------------------------------------------


def _read_settings(on: Answers, _: q.ReadSettings, timeout_s: float) -> q.Versioned:
    found = on.get(paths.CONFIG, timeout_s)
    if found is None:
        raise StateConflict("the cluster has no settings", hint="rmgr doctor")
    return q.Versioned(validity.decode(found.data, ClusterSettings, paths.CONFIG), found.version)


def _read_drain(on: Answers, question: q.ReadDrain, timeout_s: float) -> Drain | None:
    found = on.read(paths.drain(question.node), Drain, timeout_s)
    return None if found is None or found.is_over else found


def _who_leads(on: Answers, _: q.WhoLeads, timeout_s: float) -> q.Leadership:
    asked = on.coordinator.get(paths.EPOCH, timeout_s=timeout_s)
    candidates = on.children(paths.WATCHDOGS, timeout_s)
    found = asked.result(timeout_s + 1.0)
    epoch = validity.decode(found.data, EpochRecord, paths.EPOCH) if found is not None else None
    return q.Leadership(epoch=epoch, leads=epoch is not None and epoch.candidate in candidates, watchdogs=len(candidates))


def _read_record(on: Answers, question: q.ReadRecord, timeout_s: float) -> q.RecordRead:
    found = read_stored(on.coordinator, question.number, timeout_s=timeout_s)
    return q.RecordRead(found.submission, found.tail)


def _read_nonce(on: Answers, question: q.ReadNonce, timeout_s: float) -> int:
    record = read_stored(on.coordinator, question.number, timeout_s=timeout_s).submission
    return on.read(place_of(record), int, timeout_s) or 0


def _which_exist(on: Answers, question: q.WhichExist, timeout_s: float) -> tuple[int, ...]:
    numbers = tuple(dict.fromkeys(question.numbers))
    stats = fetch([paths.sub(number) for number in numbers], on.coordinator.stat, timeout_s=timeout_s)
    return tuple(number for number, stat in zip(numbers, stats, strict=True) if stat is not None)


def _read_use(on: Answers, question: q.ReadUse, timeout_s: float) -> q.Use:
    rows = on.read(paths.USAGE, CappedUse, timeout_s) or CappedUse()
    return q.Use(cores=rows.cores.get(question.user, 0), jobs=rows.jobs.get(question.user, 0))


def _read_claims(on: Answers, question: q.ReadClaims, timeout_s: float) -> tuple[q.NodeClaims, ...]:
    names = on.children(paths.NODES, timeout_s)
    lists = fetch([paths.running_node(name) for name in names], on.coordinator.children, timeout_s=timeout_s)
    here = {
        name: mine for name, blocks in zip(names, lists, strict=True)
        if (mine := tuple(key for _, key in paths.blocks_in(blocks) if key.submission == question.number))
    }  # fmt: skip
    records = fetch([paths.node(name) for name in here], on.coordinator.get, timeout_s=timeout_s)
    return tuple(
        q.NodeClaims(node=name, endpoint=validity.decode(item.data, NodeRecord, paths.node(name)).endpoint, blocks=mine)
        for (name, mine), item in zip(here.items(), records, strict=True)
        if item is not None
    )


def _read_tasks(on: Answers, question: q.ReadTasks, timeout_s: float) -> q.TaskPage:
    asked, most = question.limit, on.most_tasks
    limit = min(asked or most, most or asked)
    tasks = read_tasks(on.coordinator, on.store(), question.number, first=question.first, limit=limit, timeout_s=timeout_s)[1]
    return q.TaskPage(tuple(tasks), is_last=not limit or limit == asked or len(tasks) < limit)


def _read_fragments(on: Answers, question: q.ReadFragments, timeout_s: float) -> q.FragmentPage:
    number, first, end_s = question.number, question.first, machine.monotonic() + timeout_s
    of = read_stored(on.coordinator, number, timeout_s=timeout_s)
    version = -1
    while True:
        done = on.get(paths.done(number), max(0.1, end_s - machine.monotonic()))
        if done is None:
            raise NotFound(f"submission {number} is being collected", hint=f"rmgr history {number}")
        paged = validity.decode(done.data, Paged, paths.done(number)) if done.data else Paged()
        store = on.store() if first < paged.base else None
        first = paged.base if store is None else first
        if store is not None and first < paged.base:
            fragments = [*page_at(store, number, first, timeout_s=timeout_s)]
            stop = first + len(fragments)
        else:
            stop = min(done.stat.creates, first + _FRAGMENTS)
            where = [paths.fragment(number, at) for at in range(first, stop)]
            found = fetch(where, on.coordinator.get, timeout_s=timeout_s)
            if None in found and done.version != version:
                version = done.version  # a page was written meanwhile; if not, they are gone: tell what is there
                continue
            fragments = [read_fragment(item.data) for item in found if item is not None]
        is_last = stop >= done.stat.creates
        return q.FragmentPage(
            record=of.submission, total=of.tail.next, fragments=tuple(fragments), next=stop, is_last=is_last or stop <= first
        )


def _read_gangs(on: Answers, _: q.ReadGangs, timeout_s: float) -> tuple[q.GangRead, ...]:
    names = sorted(on.children(paths.GANGS, timeout_s))
    stamped = fetch([paths.gangs(name) for name in names], on.coordinator.get, timeout_s=timeout_s)
    gangs = []
    for partition, one in zip(names, stamped, strict=True):
        if one is None:
            continue
        record = validity.decode(one.data, GangRecord, paths.gangs(partition))
        if not _is_in_turns(on, record, timeout_s):
            continue
        clock = on.read(paths.node(record.clock.node), NodeRecord, timeout_s) if record.clock.node else None
        endpoint = clock.endpoint if clock is not None else ""
        gangs.append(q.GangRead(partition=partition, generation=one.version, record=record, clock_endpoint=endpoint))
    return tuple(gangs)


def _is_in_turns(on: Answers, record: GangRecord, timeout_s: float) -> bool:
    """Returns whether some attempt in the record still has its nodes. A gang's record stays after its jobs have ended."""
    named = {(job, attempt) for job, attempt, _ in record.attempts}
    lists = fetch([paths.running_node(node) for node, _ in record.leaves], on.coordinator.children, timeout_s=timeout_s) if named else []
    keys = (key for names in lists for _, key in paths.blocks_in(names))
    return any((job_id(key.submission, key.first), key.attempt) in named for key in keys if key.first < MAX_INDEX)


def _read_fates(on: Answers, question: q.ReadFates, timeout_s: float) -> tuple[q.FateRead, ...]:
    mine = {number: on.may_read(number, timeout_s) for number in {pointer.sub for pointer in question.pointers}}
    fates = on.fates
    found = iter(fates.fates([pointer for pointer in question.pointers if mine[pointer.sub]], timeout_s))
    told = []
    for pointer in question.pointers:
        fate = next(found) if mine[pointer.sub] else "denied"
        told.append(q.FateRead(str(fate), fates.attempt(pointer) if fate == State.COMPLETED else 1))
    return tuple(told)


def _locate_value(on: Answers, question: q.LocateValue, timeout_s: float) -> str:
    store = on.store()
    if store is None:
        raise NotFound(f"{question.user_key!r} lies in a data store, and none can be opened", hint="rmgr doctor")
    return locate(on.coordinator, store, question.user_key, question.pointer, timeout_s=timeout_s)


def _read_revoked(on: Answers, _: q.ReadRevoked, timeout_s: float) -> tuple[q.Revoked, ...]:
    names = on.children(paths.REVOKED, timeout_s)
    found = fetch([paths.revoked(name) for name in names], on.coordinator.get, timeout_s=timeout_s)
    return tuple(
        q.Revoked(name, one.data, one.stat.mzxid, one.stat.czxid or one.stat.mzxid)
        for name, one in zip(names, found, strict=True)
        if one is not None
    )


# -- views ---------------------------------------------------------------------------------------------------------------------


def _snapshot(on: Answers, timeout_s: float) -> ClusterSnapshot:
    """Returns a snapshot of all submissions that the asker may see."""
    return read_snapshot(on.coordinator, None, shown=lambda one: on.is_direct or may(on.who, one.user), timeout_s=timeout_s)


def _derive_queues(on: Answers, _: q.DeriveQueues, timeout_s: float) -> tuple[QueueView, ...]:
    facts = _snapshot(on, timeout_s)
    return (*views.queues(facts), *class_views(facts.settings))


def _derive_status(on: Answers, question: q.DeriveStatus, timeout_s: float) -> StatusView:
    view = views.status(_snapshot(on, timeout_s), zookeeper=question.zookeeper, store=question.store, now_us=machine.wall_us())
    if view.leader is None:
        return view
    problem = f"the leader {view.leader.id} on {view.leader.host} does not answer at {view.leader.endpoint}"
    return with_part(view, PartView(kind="leader", id=view.leader.id, state="silent", reason=problem, fix="rmgr doctor"))


#: Every question, and the function that answers it.
ANSWERS: dict[type[Question[Any]], Callable[[Answers, Any, float], Any]] = {
    q.ReadMeta: lambda on, _, timeout_s: read_meta(on.coordinator, timeout_s=timeout_s),
    q.ReadSettings: _read_settings,
    q.ReadNodes: lambda on, _, timeout_s: tuple(read_nodes(on.coordinator, timeout_s=timeout_s)),
    q.ReadDrain: _read_drain,
    q.WhoLeads: _who_leads,
    q.ReadRecord: _read_record,
    q.ReadNonce: _read_nonce,
    q.WhichExist: _which_exist,
    q.CountWaiting: lambda on, asked, timeout_s: getattr(on.stat(paths.pending(asked.queue), timeout_s), "children", 0),
    q.ReadUse: _read_use,
    q.ReadClaims: _read_claims,
    q.ReadTasks: _read_tasks,
    q.ReadFragments: _read_fragments,
    q.CountFragments: lambda on, asked, timeout_s: getattr(on.stat(paths.done(asked.number), timeout_s), "creates", 0),
    q.ReadGangs: _read_gangs,
    q.ReadFates: _read_fates,
    q.LocateValue: _locate_value,
    q.ReadCertificate: lambda on, asked, timeout_s: getattr(on.get(paths.identity(asked.key_id), timeout_s), "data", None),
    q.ReadRevoked: _read_revoked,
    q.DeriveJobs: lambda on, of, timeout_s: tuple(views.jobs(_snapshot(on, timeout_s), of.ids, ended=of.ended, user=of.user)),
    q.DeriveNodes: lambda on, _, timeout_s: tuple(views.nodes(_snapshot(on, timeout_s))),
    q.DeriveQueues: _derive_queues,
    q.DeriveStatus: _derive_status,
    q.DeriveExplain: lambda on, of, timeout_s: views.explain(
        replace(_snapshot(on, timeout_s), store_problem=of.store_problem), of.number, of.position
    ),
    **orders.ORDERED,
}
