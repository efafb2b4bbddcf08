"""`rmgr admin limit`: how many cores and open jobs a user may have at once, or everybody."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from rmgr.cli.control.operate import apply_settings, read_settings
from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import Parsed
from rmgr.errors import UsageError
from rmgr.model.cluster.limits import CORES, JOBS, UserLimits

#: Digits of the largest cap: more cores than any cluster has.
_DIGITS = 9
_DEFAULT = "default"


def _cap(text: str) -> int | str:
    """A number, `none` (0), or `default`."""
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
@click.option("--cores", type=_CAP, metavar="N|none|default", help="cores that the user's work in pulled queues has at once")
@click.option("--jobs", type=_CAP, metavar="N|none|default", help="open jobs: submissions that have not ended")
def limit(session: Session, user: str | None, cores: int | str | None, jobs: int | str | None) -> None:
    """Sets how many cores and open jobs a user may have at once; without USER each user who has no cap of their own.

    Holds at once, for what starts from now on: nothing that runs is ended. Caps stand among the settings: rmgr config show --cluster.
    """
    if user is None:
        user = ""  # everybody
    elif not user or "/" in user or not user.isprintable() or len(user) > 255:  # "" = a script's variable that is not set
        raise UsageError(f"{user[:80]!r} is no user's name", hint="a name as in rmgr jobs -A")
    settings, version = read_settings(session)
    if cores is None and jobs is None:
        _show(session, user, settings.limits)
        return
    limits = _with(_with(settings.limits, user, CORES, cores), user, JOBS, jobs)
    if limits != settings.limits:
        apply_settings(session, replace(settings, limits=limits), version)
    if session.json:
        emit(_document(user, limits) | {"changed": limits != settings.limits})
        return
    for name, what, given in ((CORES, "cores", cores), (JOBS, "open jobs", jobs)):
        if given is not None:
            old, new = (_text(each.of(name, user)) for each in (settings.limits, limits))
            sys.stdout.write(f"{user or 'everybody'}: {what} {old} -> {new}\n")


def _with(limits: UserLimits, user: str, name: str, cap: int | str | None) -> UserLimits:
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


def _document(user: str, limits: UserLimits) -> dict[str, object]:
    return {"user": user or None, "cores": limits.of(CORES, user) or None, "jobs": limits.of(JOBS, user) or None}


def _show(session: Session, user: str, limits: UserLimits) -> None:
    """The caps of one user; else everybody's, then those who have their own."""
    names = [user] if user else ["", *sorted({*limits.cores_of, *limits.jobs_of})]
    if session.json:
        emit({"caps": [_document(name, limits) for name in names]})
        return
    columns = (
        Column(name="USER", text=lambda name: name or "(everybody)", is_id=True),
        Column(name="CORES", text=lambda name: _text(limits.of(CORES, name)), right=True),
        Column(name="JOBS", text=lambda name: _text(limits.of(JOBS, name)), right=True),
    )
    table(names, columns, Layout())
