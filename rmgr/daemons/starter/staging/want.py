"""A keyed task whose inputs are to be read, and whose output keys may have to be claimed, before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.room import Wish
from rmgr.daemons.starter.staging.inputs import Input
from rmgr.model.tasks.block import KeyedPayload
from rmgr.runtime import machine


@dataclass(frozen=True, slots=True)
class Message:
    """All that a task needs is in these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FoundInputs:
    """The inputs of a task are found, and some of them must become files."""

    inputs: list[Input]


@dataclass(slots=True, eq=False)
class Want:
    """A task whose inputs are to be read. need_bytes: taken of the memory until they are here.

    found: what was read. is_claiming: it may not begin, for its output keys are not its own yet. is_claimed: they are, or `refusal` says
    why it cannot have them.
    """

    block: ClaimedBlock
    index: int
    wish: Wish
    keyed: KeyedPayload
    need_bytes: int
    found: Message | FoundInputs | Exception | None = None
    is_claiming: bool = False
    is_claimed: bool = False
    refusal: Exception | None = None
    since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.since_s = machine.monotonic()
