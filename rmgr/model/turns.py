"""Messages between a Starter and its turner, the program that stops and continues parts of gangs: frames as those of `frames.py`.

A part is one attempt of a gang's job on this node (`run_label`). Times are CLOCK_BOOTTIME nanoseconds of this machine.
"""

from __future__ import annotations

import msgspec

# -- Starter -> turner ------------------------------------------------------------------------------------------------


class AddPart(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A part, which begins stopped. spawner: pid of the ancestor of all its processes. freeze: `cgroup.freeze` of the group
    of all of them but the spawner, "" = they are stopped by signals."""

    part: str
    spawner: int
    freeze: str = ""


class DropPart(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The part is over: its last `Served` follows, then it is forgotten."""

    part: str


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """(from when, parts that run from then on), ascending, in place of all earlier rows. The last row holds until others come; unknown
    names are no error."""

    rows: tuple[tuple[int, tuple[str, ...]], ...]


class LetGo(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The part runs until then, whatever the rows say; 0: it returns to its turns. Its served time so far is reported at once."""

    part: str
    until_ns: int


class HoldPart(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Suspends the part (on): it is not continued until it is resumed; `LetGo` outranks this."""

    part: str
    on: bool


ToTurner = AddPart | DropPart | Rows | LetGo | HoldPart

# -- turner -> Starter ------------------------------------------------------------------------------------------------


class Began(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The first slot of the part has begun: its work may start."""

    part: str


class Served(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """parts: (name, total time with its cores (ns), number of turns, whether it has them now).

    Since this turner began: switches: boundaries at which a part was stopped or continued; late: those at which a part did not
    stop within 20 ms, or one was found running out of turn; out_of_turn_ns: how long parts have run out of turn.
    """

    parts: tuple[tuple[str, int, int, bool], ...]
    switches: int
    late: int
    out_of_turn_ns: int


class Stubborn(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The part did not stop within a second. killed: it was computing; else it sleeps where no signal reaches it, and is stopped when
    it wakes."""

    part: str
    killed: bool


FromTurner = Began | Served | Stubborn
