"""`rmgr wait`: until work has ended, with its exit code; and the loop that submit --wait and --progress share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click

from rmgr.cli.display import shapes
from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.cli.session.numbers import positions_of
from rmgr.cli.session.tables import filter_options
from rmgr.cli.waiting.detach import detached
from rmgr.cli.waiting.ends import codes, tell_failure
from rmgr.cli.waiting.follow import AwaitedSubmission, Follow, FollowedEnd
from rmgr.cli.words.exits import WORK_EXITS
from rmgr.cli.words.selectors import Filter, parse, resolve, targets_of
from rmgr.errors import RmgrError
from rmgr.model.base.states import Reason, State

#: Work that has not begun after so long is worth a word why; of several submissions, of so many.
PATIENCE_S = 3.0
_TOLD = 3
#: How often it is asked whether anybody lives who could add to what has ended as far as it was submitted.
_OWNER_S = 2.0


@command(
    "wait",
    examples="""\
    rmgr wait 42
    rmgr wait 42_7 50-60 --progress
    rmgr wait last --timeout 10m
    rmgr wait all --json | jq '.items[] | select(.state != "COMPLETED")'""",
    exits=WORK_EXITS,
)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("--progress", is_flag=True, help="a bar on a terminal, lines elsewhere")
@filter_options
def wait(session: Session, selectors: tuple[str, ...], progress: bool, chosen: Filter) -> None:
    """Waits until submissions or tasks have ended, and exits with their code.

    A TaskQueue whose program is gone counts as ended once all that it submitted has.
    """
    selection = parse(selectors, chosen)
    session.query().check_queue(chosen.queue)
    if selection.needs_list:
        known = session.query().jobs(ended=bool(selection.ranges or selection.last or chosen.states or selection.named))
        targets = resolve(selection, known, me=session.me)
    else:
        targets = targets_of(selection)
    follow = Follow(session)
    ids = [id_ for target in targets for id_ in target.ids]
    try:
        for target in targets:
            positions = positions_of(session, target.submission, target.tasks) if target.tasks else None
            follow.add(target.submission, positions)
        until_ended(session, follow, progress=progress)
    except KeyboardInterrupt:
        raise detached(session, ids, attach=f"rmgr wait {' '.join(ids)}") from None
    if session.json:
        emit({"items": [item for followed in follow.items for item in items_of(followed)]})
    else:
        for item in follow.items:
            tell_failure(session, item, with_tail=True)
    if not targets:
        session.note("nothing of yours waits or runs")
    raise WorkEnded(codes(follow.items))


def until_ended(
    session: Session, follow: Follow, *, progress: bool, on_end: Callable[[FollowedEnd], None] = lambda _: None, title: str = ""
) -> None:
    """Waits for all that is followed; reports when ZooKeeper goes away. Raises DeadlineExceeded, KeyboardInterrupt."""
    from rmgr.client.progress import Counts, ProgressDisplay

    patience_s: float | None = time.monotonic() + PATIENCE_S
    ask_s = time.monotonic() + _OWNER_S
    names = title or " ".join(str(item.number) for item in follow.items)
    with ProgressDisplay(names, enabled=progress and not session.json, trouble=follow.trouble) as display:
        while True:
            counts = [item.counts for item in follow.items]
            display.update(
                Counts(
                    total=sum(item.total for item in follow.items),
                    final=sum(sum(count.values()) for count in counts),
                    failed=sum(count.get(State.FAILED, 0) for count in counts),
                    cancelled=sum(count.get(State.CANCELLED, 0) for count in counts),
                )
            )
            if follow.is_ended:
                break
            for end in follow.next():
                on_end(end)
                patience_s = None
            if patience_s is not None and time.monotonic() > patience_s:
                patience_s = None
                for item in [item for item in follow.items if not item.is_ended][:_TOLD]:
                    tell_why(session, item, say=lambda text: display.say(f"rmgr: {text}"))
            if time.monotonic() > ask_s:
                _look_for_owners(session, [item for item in follow.items if not item.is_ended and item.is_idle])
                ask_s = time.monotonic() + _OWNER_S


def _look_for_owners(session: Session, idle: Sequence[AwaitedSubmission]) -> None:
    """Nobody waits for tasks that nobody will submit: the owner of a TaskQueue has gone, and all that it submitted has ended."""
    if not idle:
        return
    try:
        jobs = session.query().jobs(tuple(item.number for item in idle), ended=True)
    except RmgrError:
        return  # asked again
    gone = {job.id for job in jobs if job.reason == Reason.OWNER_GONE}
    for item in idle:
        if item.number in gone and not item.is_left:
            item.is_left = True
            session.note(f"{item.number}: its program is gone, all that it submitted has ended")


def tell_why(session: Session, item: AwaitedSubmission, *, say: Callable[[str], None] | None = None) -> None:
    """A line on what submitted work waits for, while nothing of it runs: nobody should look at a silent command."""
    try:
        view = session.query().explain(item.number, None)
    except RmgrError:
        return
    if view.why and not view.state.is_final and view.why[0].what not in {"running", "node"}:
        (say or session.note)(f"{item.number} waits: {view.why[0].detail}")


def items_of(followed: AwaitedSubmission) -> Sequence[dict[str, object]]:
    """What `wait --json` says of one submission, or of the tasks that were named."""
    if followed.wanted is not None:
        return [
            shapes.item(end.id, end.state, end.reason, end.exit_code) for end in sorted(followed.ends.values(), key=lambda e: e.position)
        ]
    if followed.past is not None:
        past = followed.past
        return [shapes.item(str(past.id), past.state, past.reason, past.exit_code)]
    worst = followed.worst
    codes_ = [end.exit_code for end in followed.ends.values() if end.exit_code is not None]
    highest = max(codes_, default=None)
    reason = worst.reason if worst is not None else ""
    return [shapes.item(str(followed.number), followed.state, reason, highest)]
