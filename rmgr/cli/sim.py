"""`rmgr sim`: the table of the simulator's commands, each imported only when it is used."""

from __future__ import annotations

import importlib

import click

from rmgr.cli.command import RmgrGroup, command_group
from rmgr.cli.context import Session

#: name -> (module:function, what it does). A command stands here when it exists.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("sim_run:run", "One workload under one policy: schedule and measures"),
    "sweep": ("sim_sweep:sweep", "Policies x loads x seeds, in parallel; goes on where it was interrupted"),
}


class SimGroup(RmgrGroup):
    """The commands of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, function = entry[0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"rmgr.cli.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@command_group("sim", examples="rmgr sim run KTH-SP2.swf.gz --policy easy\nrmgr sim run --help", kind=SimGroup)
def sim(_session: Session) -> None:
    """Scheduling research: the leader's own policies, vetting and passes on a virtual clock."""
