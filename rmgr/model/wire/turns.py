"""Messages between a Starter and its turner, the program that stops and continues parts of gangs: frames as those of `frames.py`.

A part is one attempt of a gang's job on this node (`run_label`). Times are CLOCK_BOOTTIME nanoseconds of this machine.
"""

from __future__ import annotations

import msgspec

# -- Starter -> turner ------------------------------------------------------------------------------------------------


class AddPart(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A part, which begins stopped. spawner: pid of the program below which all its processes are. freeze: `cgroup.freeze` of the group
    that all of them but the spawner are in, "" = they are stopped by signals."""

    part: str
    spawner: int
    freeze: str = ""


class DropPart(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """It is over: its last `Served` follows, and it is forgotten."""

    part: str


class Rows(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """(from when on, parts that run from then on), ascending, in place of all earlier rows. The last one stands until others come; names
    that nobody has are no error."""

    rows: tuple[tuple[int, tuple[str, ...]], ...]


class LetGo(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """It runs until then, whatever the rows say. 0: it returns to its turns. What it was served so far is told at once."""

    part: str
    until_ns: int


class HoldPart(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Somebody has suspended it (on), and it is not continued until he resumes it; `LetGo` outranks this."""

    part: str
    on: bool


ToTurner = AddPart | DropPart | Rows | LetGo | HoldPart

# -- turner -> Starter ------------------------------------------------------------------------------------------------


class Began(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The first slot of the part has begun: its work may start."""

    part: str


class Served(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """parts: (name, for how long it has had its cores in all (ns), in how many turns, whether it has them now).

    Since this turner began: switches: boundaries at which somebody was stopped or continued; late: those at which somebody did not stand
    still in 20 ms, or was found running that should not; out_of_turn_ns: how long parts have run out of turn.
    """

    parts: tuple[tuple[str, int, int, bool], ...]
    switches: int
    late: int
    out_of_turn_ns: int


class Stubborn(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The part did not stand still within a second. killed: it computed; else it sleeps where no signal reaches it, and is stopped as soon
    as it wakes."""

    part: str
    killed: bool


FromTurner = Began | Served | Stubborn
