"""Cuts one partition out of an event log: a log of its own, which replays to the same decisions.

Partitions share nothing that a pass decides by, but recorded use (fair share) and dependencies between jobs: use is kept, a job that waits
for one of another partition waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from rmgr.sched.job import Running
from rmgr.sched.records import Suspended, Usage
from rmgr.sched.state.event_log import End, Entry, Fact, Opening, Passed
from rmgr.sched.state.snapshot import Snapshot

DEFAULT = "default"


def only(entries: Iterable[Entry], partition: str) -> Iterator[Entry]:
    """The entries of this partition; passes keep their numbers, and the end its counts right. Cost: O(1) an entry."""
    facts = passes = 0
    for entry in entries:
        match entry:
            case Opening():
                yield _opened(entry, partition)
            case Fact() if _home(entry) in (partition, None):
                facts += 1
                yield entry
            case Passed():
                passes += 1
                yield entry._replace(number=passes, decisions=tuple(one for one in entry.decisions if _of(one) == partition))
            case End():
                yield entry._replace(facts=facts, passes=passes)


def _opened(opening: Opening, partition: str) -> Opening:
    """Policy and parameters are those of the partition, where it has one stage."""
    pipelines = {name: tables for name, tables in opening.pipelines.items() if name == partition}
    stages: list[dict[str, Any]] = [stage for tables in pipelines.values() for stage in tables.get("stage", [])]
    state = replace(opening.state, **{part.name: _kept(opening.state, part.name, partition) for part in fields(Snapshot)})
    if len(stages) == 1:
        parameters = {name: str(value) for name, value in stages[0].get("parameters", {}).items()}
        opening = opening._replace(policy=str(stages[0]["policy"]), parameters=parameters)
    return opening._replace(pipelines=pipelines, state=state)


def _kept(state: Snapshot, name: str, partition: str) -> tuple[Any, ...]:
    records: tuple[Any, ...] = getattr(state, name)
    if name in {"limits", "pinned"}:  # (partition, what it has)
        return tuple(record for record in records if record[0] == partition)
    if name in {"reservations", "holds"}:  # of jobs that wait
        waiting = {job.id for job in state.waiting if job.partition == partition}
        return tuple(record for record in records if record.job_id in waiting)
    return tuple(record for record in records if isinstance(record, Usage) or _partition_of(record) == partition)


def _partition_of(record: Any) -> str:
    """Of any record of a snapshot."""
    if isinstance(record, Suspended):
        record = record.run
    if isinstance(record, Running):
        record = record.job
    return str(record.partition)


def _home(fact: Fact) -> str | None:
    """The partition that a fact is about; None: of no single one (the end of a maintenance)."""
    if "partition" in fact.arguments:
        return str(fact.arguments["partition"])
    record = next((value for value in fact.arguments.values() if isinstance(value, Running) or hasattr(value, "partition")), None)
    if record is not None:
        return _partition_of(record)
    return None if fact.name == "maintenance_over" else DEFAULT


def _of(decision: Any) -> str:
    """As `described` writes it: the default partition is left out."""
    told = decision.get("partition")
    if told is None and isinstance(decision.get("gang"), dict):
        told = decision["gang"].get("partition")
    return str(told or DEFAULT)
