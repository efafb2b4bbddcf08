"""`rmgr limits`: what each user may have of what all share, has now, and was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.tables import draw, table_options
from rmgr.model.base.units import format_size
from rmgr.model.cluster.limits import BOUNDS, CORES, JOBS

if TYPE_CHECKING:
    from rmgr.adapters.rpc.use import UseAnswer


class _Row(NamedTuple):
    """One limit of one user. used: None where nobody who was asked can know it."""

    user: str
    name: str
    limit: int
    used: int | None
    refused: int
    where: str
    what: str
    advice: str


def _number(name: str, value: int | None) -> str:
    if value is None:
        return ""
    return format_size(value) if name.endswith("_bytes") else str(value)


COLUMNS = (
    Column(name="LIMIT", text=lambda r: r.name),
    Column(name="VALUE", text=lambda r: _number(r.name, r.limit) if r.limit else "none", order=lambda r: r.limit, right=True),
    Column(name="USED", text=lambda r: _number(r.name, r.used), order=lambda r: r.used or 0, right=True),
    Column(name="REFUSED", text=lambda r: str(r.refused or ""), order=lambda r: r.refused, right=True),
    Column(name="OF", text=lambda r: r.what),
    Column(name="USER", text=lambda r: r.user, default=False),
    Column(name="WHERE", text=lambda r: r.where, default=False),
    Column(name="ADVICE", text=lambda r: r.advice, default=False),
)


@command(
    "limits",
    examples="""\
    rmgr limits                           cores and open jobs, and what was refused lately
    rmgr limits --all -o +where,advice    everything
    rmgr limits ann                       for an operator
    rmgr limits --json | jq '.limits[] | select(.refused > 0)'""",
    exits="0 ok, 4 only operators see those of others, 5 ZooKeeper or the gateway cannot be reached",
)
@click.argument("user", required=False, default="")
@click.option("--all", "is_all", is_flag=True, help="those of requests, clients, bytes and the like, too")
@table_options
def limits(session: Session, user: str, is_all: bool, layout: Layout, watch: bool) -> None:
    """What one user may have of what all share, what is used of it now, and requests that were refused in the last minutes.

    Through a gateway: what that gateway gives, and the whole cluster. Directly: the whole cluster, and what the leader gives.
    Cores and jobs are set with rmgr admin limit, the others in [limits] with rmgr config apply; 0 = none.
    """

    def once() -> None:
        name = user or session.me
        told = _ask(session, name)
        rows = _rows(name, told)
        if session.json:
            emit({"user": name, "limits": [_document(row) for row in rows], **({"problem": told.problem} if told.problem else {})})
            return
        table([row for row in rows if is_all or row.name in (CORES, JOBS) or row.refused], COLUMNS, layout)
        if told.problem:
            session.note(told.problem)

    draw(session, once, watch=watch)


def _document(row: _Row) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != "user"}


def _rows(user: str, told: UseAnswer) -> list[_Row]:
    use = told.users.get(user)
    rows = []
    for bound in BOUNDS:
        used = use.used.get(bound.name, None if told.problem or "gateway" not in bound.where else 0) if use is not None else None
        refused = use.refused.get(bound.name, 0) if use is not None else 0
        counted = None if bound.name in {"requests_per_s", "audit_lines"} else used
        limit = told.limits.of(bound.name, user)
        rows.append(_Row(user, bound.name, limit, counted, refused, bound.where, bound.what, bound.advice))
    return rows


def _ask(session: Session, user: str) -> UseAnswer:
    """The gateway or the leader; where neither answers what a leader told last."""
    from rmgr.adapters.rpc.use import UseClient
    from rmgr.errors import Unavailable
    from rmgr.model.cluster.identity import Role

    via = session.via
    endpoint = via or session.query().leader_endpoint()
    problem = "no WatchDog leads just now: what is used is not known"
    if endpoint:
        credentials = session.credentials()
        role = Role.SUBMITTER if via else Role.WATCHDOG
        own = session.me if credentials is None else ""
        client = UseClient(endpoint, role=role, credentials=credentials, timeout_s=session.left_s(5.0) or 5.0, user=own)
        try:
            return client.use((user,), fresh=True)
        except Unavailable as error:
            problem = f"what is used is not known: {error.message}"
        finally:
            client.close()
    return _last_told(session, user, problem)


def _last_told(session: Session, user: str, problem: str) -> UseAnswer:
    """The settings, and what a leader has counted last for those who have a cap: Starters go by it, too."""
    from rmgr.adapters.rpc.use import UseAnswer, UserUse
    from rmgr.submitter.questions import ReadSettings, ReadUse

    limits, last = session.ask(ReadSettings()).settings.limits, session.ask(ReadUse(user=user))
    used = {name: has for name, has in ((CORES, last.cores), (JOBS, last.jobs)) if limits.of(name, user)}
    return UseAnswer(users={user: UserUse(used=used)}, limits=limits, problem=problem)
