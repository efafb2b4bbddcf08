"""Version of the messages of a client's session with a gateway, and who may speak with whom."""

from __future__ import annotations

from rmgr.errors import UsageError, VersionMismatch
from rmgr.model.base.version import SKEW

#: Version of the messages of gateway.proto: a client sends its own in the hello, see `check_version`.
VERSION = 1


def check_version(theirs: int) -> None:
    """A gateway serves clients of its own release, the one before and the one after. Raises UsageError, VersionMismatch."""
    if theirs < 1:
        raise UsageError("the first message of a session is a hello")
    if abs(theirs - VERSION) > SKEW:
        raise VersionMismatch(
            f"the client speaks version {theirs} of the gateway's protocol, this gateway version {VERSION}",
            hint=f"upgrade the {'gateway' if theirs > VERSION else 'client'}: rmgr version",
        )
