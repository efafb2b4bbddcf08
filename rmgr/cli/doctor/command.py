"""`rmgr doctor`: names what is wrong and the fix."""

from __future__ import annotations

import sys

from rmgr.cli.display.render import emit, folded, paint, printable
from rmgr.cli.doctor.check_result import CheckResult
from rmgr.cli.doctor.checks import everything
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.errors import WorkEnded
from rmgr.errors import RmgrError


@command(
    "doctor",
    examples="""\
    rmgr doctor
    rmgr doctor --zk zk1:2181 --store sqlite:/srv/rmgr/store.db
    rmgr doctor --json | jq '.checks[] | select(.ok | not)'""",
    exits="0 healthy, 1 something is wrong: the lines that begin with FAILED say what, and what to do",
)
def doctor(session: Session) -> None:
    """Looks at this machine, the configuration, ZooKeeper, the data store and the cluster; says what is wrong and how to mend it."""
    checks: list[CheckResult] = []
    try:
        for check in everything(session):
            checks.append(check)
            if not session.json:
                _draw(check)
    except RmgrError as error:
        broken = CheckResult(name="connection", ok=False, detail=error.message, fix=error.hint)
        checks.append(broken)
        if not session.json:
            _draw(broken)
    failed = [check for check in checks if not check.ok]
    if session.json:
        told = [{"name": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix} for check in checks]
        emit({"healthy": not failed, "checks": told})
    elif failed:
        sys.stdout.write(f"\n{len(failed)} of {len(checks)} checks failed: {', '.join(check.name for check in failed)}\n")
    else:
        sys.stdout.write("\nhealthy\n")
    if failed:
        raise WorkEnded(1)


def _draw(check: CheckResult) -> None:
    out = sys.stdout
    word, style = ("ok", "green") if check.ok and not check.fix else ("advice", "yellow") if check.ok else ("FAILED", "red")
    told = folded(printable(check.detail), out, begin=8 + len(check.name) + 2, indent=8)
    out.write(f"{paint(f'{word:<6}', style, out)}  {paint(check.name, 'bold', out)}: {told}\n")
    if check.fix:
        out.write(f"        -> {folded(printable(check.fix), out, begin=11, indent=11)}\n")
    out.flush()
