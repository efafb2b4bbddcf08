"""`rmgr limits`: a user's share of what all use, how much is used, what was refused. `rmgr admin limit`: sets who may have how much."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rmgr.cli.control.operate import apply_settings, read_settings
from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session import Session, command
from rmgr.cli.session.tables import draw, table_options
from rmgr.cli.words.params import Parsed
from rmgr.errors import Unavailable, UsageError
from rmgr.model.identity import Role
from rmgr.model.queue import BOUNDS, CORES, JOBS, UserLimits
from rmgr.model.units import format_size
from rmgr.submitter.questions import ReadSettings, ReadUse

if TYPE_CHECKING:
    from rmgr.adapters.rpc.services import UseAnswer

#: Digits of the largest cap: more cores than any cluster has.
_DIGITS = 9
_DEFAULT = "default"


class _Row(NamedTuple):
    """One limit of one user. used: None if nobody who was asked can know it."""

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
@click.option("--all", "is_all", is_flag=True, help="include limits of requests, clients, bytes and the like")
@table_options
def limits(session: Session, user: str, is_all: bool, layout: Layout, watch: bool) -> None:
    """Shows one user's limits on shared resources, the current usage, and requests refused in the last minutes.

    Through a gateway: limits of that gateway and of the whole cluster. Directly: limits of the whole cluster and of the leader.
    rmgr admin limit sets cores and jobs, rmgr config apply the others in [limits]; 0 = none.
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
    """Asks the gateway or the leader; if neither answers, returns what a leader told last."""
    from rmgr.adapters.rpc.services import UseClient

    via = session.via
    endpoint = via or session.query().leader_endpoint()
    problem = "no WatchDog leads just now: what is used is not known"
    if endpoint:
        credentials = session.shown_credentials()
        role = Role.SUBMITTER if via else Role.WATCHDOG
        own = session.me if credentials is None else ""
        client = UseClient(endpoint, role=role, credentials=credentials, timeout_s=session.left_s(5.0), user=own)
        try:
            return client.use((user,), fresh=True)
        except Unavailable as error:
            problem = f"what is used is not known: {error.message}"
        finally:
            client.close()
    return _last_told(session, user, problem)


def _last_told(session: Session, user: str, problem: str) -> UseAnswer:
    """Returns the settings, and what a leader last counted for users who have a cap: Starters go by it, too."""
    from rmgr.adapters.rpc.services import UseAnswer, UserUse

    limits, last = session.ask(ReadSettings()).settings.limits, session.ask(ReadUse(user=user))
    used = {name: has for name, has in ((CORES, last.cores), (JOBS, last.jobs)) if limits.of(name, user)}
    return UseAnswer(users={user: UserUse(used=used)}, limits=limits, problem=problem)


# -- `rmgr admin limit`: how many cores and open jobs one user, or each user, may have at once ---------------------------------


def _cap(text: str) -> int | str:
    """Reads a cap: a number, `none` (0), or `default`."""
    if text in ("none", _DEFAULT):
        return 0 if text == "none" else text
    if not (text.isascii() and text.isdigit() and int(text[:_DIGITS]) > 0 and len(text) <= _DIGITS):
        raise UsageError(
            f"{text!r} is no cap", hint="a number from 1 on; none: as many as there are; default: as everybody without a cap of their own"
        )
    return int(text)


_CAP = Parsed("cap", _cap)


@command(
    "limit",
    examples="""\
    rmgr admin limit ann --cores 40 --jobs 200
    rmgr admin limit ann --cores none          as many as there are
    rmgr admin limit ann --cores default       as everybody
    rmgr admin limit --cores 100               of each user without a cap of their own
    rmgr admin limit                           which caps there are""",
    exits="0 ok, 1 somebody else has changed the settings meanwhile, 2 usage, 4 not an operator, 5 ZooKeeper cannot be reached",
)
@click.argument("user", required=False, default=None)
@click.option("--cores", type=_CAP, metavar="N|none|default", help="most cores of the user's work in pulled queues at once")
@click.option("--jobs", type=_CAP, metavar="N|none|default", help="most open jobs: submissions that have not ended")
def limit(session: Session, user: str | None, cores: int | str | None, jobs: int | str | None) -> None:
    """Sets how many cores and open jobs a user may have at once; without USER, every user without a cap of their own.

    It applies at once to work that starts from now on; running work is not ended. Caps are settings: rmgr config show --cluster.
    """
    if user is None:
        user = ""  # everybody
    elif not user or "/" in user or not user.isprintable() or len(user) > 255:  # "" = a script's variable that is not set
        raise UsageError(f"{user[:80]!r} is no user's name", hint="a name as in rmgr jobs -A")
    settings, version = read_settings(session)
    if cores is None and jobs is None:
        _show(session, user, settings.limits)
        return
    limits = _with_cap(_with_cap(settings.limits, user, CORES, cores), user, JOBS, jobs)
    if limits != settings.limits:
        apply_settings(session, replace(settings, limits=limits), version)
    text = ""
    for name, what, given in ((CORES, "cores", cores), (JOBS, "open jobs", jobs)):
        if given is not None:
            old, new = (_text(each.of(name, user)) for each in (settings.limits, limits))
            text += f"{user or 'everybody'}: {what} {old} -> {new}\n"
    session.answer(_limit_document(user, limits) | {"changed": limits != settings.limits}, text)


def _with_cap(limits: UserLimits, user: str, name: str, cap: int | str | None) -> UserLimits:
    if cap is None:
        return limits
    if not user:
        most = 0 if cap == _DEFAULT else int(cap)
        return replace(limits, max_cores_per_user=most) if name == CORES else replace(limits, max_jobs_per_user=most)
    own = dict(limits.cores_of if name == CORES else limits.jobs_of)
    own.pop(user, None)
    if cap != _DEFAULT:
        own[user] = int(cap)
    own = dict(sorted(own.items()))
    return replace(limits, cores_of=own) if name == CORES else replace(limits, jobs_of=own)


def _text(cap: int) -> str:
    return str(cap) if cap else "none"


def _limit_document(user: str, limits: UserLimits) -> dict[str, object]:
    return {"user": user or None, "cores": limits.of(CORES, user) or None, "jobs": limits.of(JOBS, user) or None}


def _show(session: Session, user: str, limits: UserLimits) -> None:
    """Shows the caps of one user, or everybody's cap and the users with caps of their own."""
    names = [user] if user else ["", *sorted({*limits.cores_of, *limits.jobs_of})]
    if session.json:
        emit({"caps": [_limit_document(name, limits) for name in names]})
        return
    columns = (
        Column(name="USER", text=lambda name: name or "(everybody)", is_id=True),
        Column(name="CORES", text=lambda name: _text(limits.of(CORES, name)), right=True),
        Column(name="JOBS", text=lambda name: _text(limits.of(JOBS, name)), right=True),
    )
    table(names, columns, Layout())
