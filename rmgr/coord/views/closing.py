"""The end of a submission as data: its summary for the history, pages of old fragments, what is deleted when it is collected.

Pure. The order is always: rows first, then the commit that makes them true; when things go, znodes first, rows after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from rmgr.coord.decisions.keeping import SubmissionEnd
from rmgr.coord.decisions.progress import EndFold, Progress
from rmgr.coord.ops.membership import reign_of
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.records import UNREADABLE, encode_record
from rmgr.coord.views.answers import job_view
from rmgr.errors import DataLost, UsageError
from rmgr.model.base.states import State
from rmgr.model.tasks.block import Fragment, Outcome
from rmgr.model.tasks.submission import Paged, Submission, Tail
from rmgr.model.views import JobView
from rmgr.model.wire.stream import json_decoder

# -- history ------------------------------------------------------------------------------------------------------------------


def summary(submission: Submission, progress: Progress, *, now_us: int) -> JobView:
    """What the history keeps of an ended submission: all that `rmgr history` and `rmgr show` tell of it."""
    view = job_view(submission, progress, [])
    return view if view.ended_us else msgspec.structs.replace(view, ended_us=now_us)


class _Kept(JobView, frozen=True, kw_only=True):
    """A row of the history. began: as `Progress.began`; the view does not tell it of attempts whose times nobody knows."""

    began: bool = False


def history_rows(view: JobView, *, began: bool = False) -> list[tuple[str, bytes]]:
    """Store rows of a summary: for everyone, and by user (where the user's name can be part of a key)."""
    data = encode_record(_Kept(**msgspec.structs.asdict(view), began=began))
    rows = [(keys.history(view.id), data)]
    with suppress(UsageError):
        rows.append((keys.history_of_user(view.user, view.id), data))
    return rows


def decode_summary(data: bytes) -> JobView:
    """A history row. Raises DataLost."""
    try:
        return json_decoder(JobView).decode(data)
    except UNREADABLE as error:
        raise DataLost(f"a row of the history cannot be read: {error}") from None


def decode_ending(data: bytes) -> SubmissionEnd:
    """What a history row tells those that wait for its submission. Raises DataLost."""
    try:
        kept = json_decoder(_Kept).decode(data)
    except UNREADABLE as error:
        raise DataLost(f"a row of the history cannot be read: {error}") from None
    began = kept.began or kept.started_us or kept.counts.get(State.COMPLETED) or kept.counts.get(State.FAILED)
    return SubmissionEnd(state=kept.state, began=bool(began))


# -- pages --------------------------------------------------------------------------------------------------------------------


def paged_with(paged: Paged, fragments: Sequence[Fragment]) -> Paged:
    """`paged` after `fragments`, which follow its base, were written to a page."""
    ends = EndFold()
    for fragment in fragments:
        ends.fold(fragment.outcomes)
        for state, _, count in fragment.ranges if fragment.row else ():  # a row's tasks by their ranges: a page may have millions
            if state in ends.counts:
                ends.counts[state] += count
    counts = Counter(paged.counts) + Counter({str(state): count for state, count in ends.counts.items()})
    return Paged(base=paged.base + len(fragments), counts=dict(counts))


# -- collection ---------------------------------------------------------------------------------------------------------------


def kept_outputs(number: int, tail: Tail, ends: Iterable[tuple[Fragment, Outcome]]) -> list[tuple[str, str]]:
    """(row of an output, row under which it is kept) for every keyed output of a task that COMPLETED."""
    kept: list[tuple[str, str]] = []
    for fragment, outcome in ends:
        if outcome.state is not State.COMPLETED:
            continue
        by = reign_of(tail, outcome.index) if outcome.outputs else ""
        for n in range(outcome.outputs):
            pointer = keys.Pointer(sub=number, index=outcome.index, n=n, by=by)
            kept.append((keys.output(number, outcome.index, outcome.attempt or fragment.attempt, n), keys.final(pointer)))
    return kept


