"""`rmgr admin`: the table of the admin's commands, each imported only when it is used."""

from __future__ import annotations

import importlib

import click

from rmgr.cli.command import RmgrGroup, command_group
from rmgr.cli.context import Session

#: name -> (module:function, what it does). A command stands here when it exists.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("admin_init:init", "Make a cluster's authority, its daemons' credentials and the first user's"),
    "init-store": ("admin_store:init_store", "Make the data store, or bring its schema to this release"),
    "add-node": ("admin_nodes:add_node", "Invite a machine: prints the one command to type there"),
    "add-user": ("admin_users:add_user", "Make credentials for a person"),
    "identities": ("admin_nodes:identities", "Who is known to the cluster, and who was revoked"),
    "revoke": ("admin_nodes:revoke", "Believe a node or a user no longer"),
    "rotate": ("admin_rotate:rotate", "New secrets of ZooKeeper while the cluster works"),
}


class AdminGroup(RmgrGroup):
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


@command_group(
    "admin",
    kind=AdminGroup,
    examples="""\
    rmgr admin init                   # an authority, and credentials for daemons and you
    rmgr admin add-node n4            # prints what to type on the new machine
    rmgr admin revoke n4              # and it never comes back""",
)
def admin(_session: Session) -> None:
    """Setting up and securing a cluster."""
