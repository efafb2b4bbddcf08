"""`rmgr admin` and `rmgr join`: authority, credentials, machines and the data store of a cluster.

The room holds what an administrator does once or rarely, with the administrator's own bundle. It must not touch work.
"""

from __future__ import annotations

from rmgr.cli.session import Session, TableGroup, command_group

#: name -> (module:function, what it does). Lists every command that exists.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("admin.members:init", "Make a cluster's authority, its daemons' credentials and the first user's"),
    "init-store": ("admin.store:init_store", "Make the data store, or bring its schema to this release"),
    "add-node": ("admin.members:add_node", "Invite a machine: prints the one command to type there"),
    "add-user": ("admin.members:add_user", "Make credentials for a person"),
    "add-server": ("admin.members:add_server", "Make credentials for a server of calls"),
    "export-events": ("admin.store:export_events", "The scheduler's log of a leader, to be replayed"),
    "identities": ("admin.members:identities", "Who is known to the cluster, and who was revoked"),
    "limit": ("control.limits:limit", "How many cores and open jobs a user may have at once"),
    "revoke": ("admin.members:revoke", "Believe a node or a user no longer"),
    "rotate": ("admin.members:rotate", "New secrets of ZooKeeper while the cluster works"),
}


@command_group(
    "admin",
    kind=TableGroup,
    table=COMMANDS,
    examples="""\
    rmgr admin init                   # an authority, and credentials for daemons and you
    rmgr admin add-node n4            # prints what to type on the new machine
    rmgr admin revoke n4              # and it never comes back""",
)
def admin(_session: Session) -> None:
    """Sets up and secures a cluster."""
