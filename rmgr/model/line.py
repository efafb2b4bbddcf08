"""Messages between client and Starter on a direct line (MessagePack, one frame each). They commit nothing: see `adapters/rpc/line.py`."""

from __future__ import annotations

from enum import StrEnum

import msgspec

#: Most bytes of one frame: a block's data with its name, or a fragment's.
MAX_BYTES = 64 * 1024


class Hint(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=1):
    """Client to Starter: a block is being handed to `node`. block: name of its znode. data: its future contents.

    is_early: its commit is not under way yet, because its output keys are being claimed.
    """

    node: str
    block: str
    data: bytes
    is_early: bool = False


class Ahead(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Starter to client: a fragment of `submission` is being committed. serial: counts them on this line."""

    serial: int
    submission: int
    fragment: bytes


class Told(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Starter to client: the last `Ahead` of that serial was committed, as fragment `number`."""

    serial: int
    submission: int
    number: int


class ClaimStage(StrEnum):
    """Stages of the claim of output keys that are left to the node that gets their block."""

    HERE = "here"  #: the node claims them itself before it begins
    AWAITED = "awaited"  #: the client claims them, and will report it
    DECIDED = "decided"  #: no other client can get them: tasks may begin, but not be committed as completed
    MADE = "made"  #: the tasks have them


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Client to Starter: how far it has claimed the output keys of a block handed to `node`. HERE: it does not claim them."""

    node: str
    block: str
    stage: ClaimStage


Message = Hint | Ahead | Told | Claimed
