"""`rmgr store`: the group that its commands join."""

from __future__ import annotations

from rmgr.cli.session.command import command_group
from rmgr.cli.session.context import Session

EXITS = "0 ok, 2 usage, 3 no such key, 4 somebody else's, 5 store unavailable, 6 --timeout ran out, 125 the stored value is damaged"


@command_group(
    "store",
    examples="""
    rmgr store put in/7 water.xyz          a file under the key in/7
    rmgr store ls out/                     keys that begin with out/
    rmgr store get out/7 -o energy.txt     a value into a file
    rmgr store du                          how many values, how many bytes
    rmgr store share in/ --with bob        bob may read what you have under in/
    """,
)
def store(_session: Session) -> None:
    """Values in the data store: inputs and outputs of tasks, by key.

    In a secured cluster a value belongs to the user who put it first, an output to the user of its task: others neither read
    nor write it, nor name it in their tasks, unless the owner shares it.
    """
