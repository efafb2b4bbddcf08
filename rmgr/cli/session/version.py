"""`rmgr version`: versions of rmgr, Python and the protocol."""

from __future__ import annotations

import platform
import sys

from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session


def rmgr_version() -> str:
    """Version of the installed package; "unknown" when it runs from a plain directory."""
    from rmgr.runtime.release import package_version

    return package_version() or "unknown"


@command("version", examples="rmgr version\nrmgr version --json")
def version(session: Session) -> None:
    """Versions of rmgr, of Python, and of the protocol; processes of one cluster may differ by one protocol."""
    from rmgr.model.base.version import PROTOCOL

    python = platform.python_version()
    if session.json:
        emit({"version": rmgr_version(), "python": python, "protocol": PROTOCOL})
    else:
        sys.stdout.write(f"rmgr {rmgr_version()} (protocol {PROTOCOL}, Python {python})\n")
