"""Finds the authority of a secured cluster on this machine: what every command of the admin begins with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.session.context import Session
from rmgr.errors import PermissionDenied

if TYPE_CHECKING:
    from rmgr.adapters.identity.pki import Authority

#: How long daemons have to fetch a new secret.
GRACE_S = 15.0


def authority_option(function: Any) -> Any:
    """`--authority DIR`: where the cluster's authority lies."""
    return click.option(
        "--authority",
        metavar="DIR",
        help="the admin's directory, made by rmgr admin init  [[security] dir where that is one, else ~/.config/rmgr/authority]",
    )(function)


def as_admin(session: Session, directory: str | None) -> Authority:
    """The cluster's authority; from now on the session has the admin's rights. Raises ConfigError, PermissionDenied."""
    authority, where = open_authority(session, directory)
    session.config({"security": {"dir": str(where)}})
    return authority


def open_authority(session: Session, directory: str | None) -> tuple[Authority, Path]:
    """The cluster's authority and where it lies. Raises ConfigError, PermissionDenied."""
    from rmgr.adapters.identity.credentials import load_ca
    from rmgr.config import authority_directory

    own = Path(session.config().security.dir).expanduser()
    # One's own bundle may be the authority, or lie below the one that made it (AUTHORITY/bundles/NAME).
    places = (Path(directory).expanduser(),) if directory else (own, own.parent.parent, authority_directory())
    where = next((place for place in places if (place / "ca.key").exists()), None)
    if where is None and not directory:
        raise PermissionDenied(
            "this is for who has the cluster's authority, and it is not here",
            hint="name the directory that rmgr admin init made: --authority DIR",
        )
    found = where or places[0]
    return load_ca(found), found
