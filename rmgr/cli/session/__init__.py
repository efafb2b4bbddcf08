"""The session of one command line: global options, connections, questions to the leader, errors and exit codes.

Commands get a `Session` and ask through it. The room uses the client and its procedures, and must not import a command.
"""

from rmgr.cli.session.commands import Session, TableGroup, command, command_group
from rmgr.cli.session.errors import WorkEnded

__all__ = ["Session", "TableGroup", "WorkEnded", "command", "command_group"]
