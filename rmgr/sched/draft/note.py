"""Verbs by which a policy remembers: notes of a job or of the partition, under its own name."""

from __future__ import annotations

from functools import partial

from rmgr.sched.draft.view import View
from rmgr.sched.plan import Accepted, Verdict, Why

_INTEGERS = {int}


class Noting(View):
    """A part of `Draft`."""

    __slots__ = ()

    def note(self, kind: str, job_id: int, value: tuple[int, ...], /) -> Verdict:
        """Remembers this of the job or call until it leaves the cluster; with id 0 of the partition. It replaces the note of that kind.

        Infeasible: an unknown job, or anything but a name and a tuple of integers: a note is a record that another leader reads.
        """
        self._check_open()
        if type(kind) is not str or type(job_id) is not int or type(value) is not tuple or not {*map(type, value)} <= _INTEGERS:
            return self._never(Why("note", "{} of job {}: a note is a tuple of integers", (kind, job_id)))
        if job_id and not self._part.knows(job_id):
            return self._never(Why("state", "no job {} in partition {}", (job_id, self.partition)))
        self._write(kind, job_id, value)
        return Accepted(self.now_us)

    def forget(self, kind: str, job_id: int, /) -> Verdict:
        """The note goes, if there is one."""
        self._check_open()
        if type(job_id) is int and self.note_of(kind, job_id) is not None:
            self._write(kind, job_id, None)
        return Accepted(self.now_us)

    def _noted(self, kind: str, job_id: int) -> list[str]:
        """Policies that have a note of this kind of the job, sorted."""
        part, more = self._part, self._more
        found = {policy for policy, kinds in part.notes.items() if job_id in kinds.get(kind, ())}
        if more is not None:
            written = {policy: notes[job_id] for (policy, known), notes in more.notes.items() if known == kind and job_id in notes}
            found = {policy for policy in (*found, *written) if written.get(policy, ()) is not None}
        return sorted(found)

    def _strike(self, kind: str, job_id: int) -> None:
        """Notes of this kind of the job go, whoever has them."""
        for policy in self._noted(kind, job_id):
            self._write(kind, job_id, None, policy)

    def _write(self, kind: str, job_id: int, value: tuple[int, ...] | None, policy: str = "") -> None:
        more = self._changes()
        key = (policy or self.policy, kind)
        notes = more.notes.get(key)
        if notes is None:
            notes = more.notes[key] = {}
        if self._marked:  # somebody may go back
            more.did(partial(notes.__setitem__, job_id, notes[job_id]) if job_id in notes else partial(notes.__delitem__, job_id))
        notes[job_id] = value
