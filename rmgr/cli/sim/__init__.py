"""`rmgr sim`: the simulator's commands, each imported only when it is used.

The room turns options into runs of `rmgr.sim` and shows their results. It must not reach a cluster.
"""

from __future__ import annotations

import platform

from rmgr.cli.session import Session, TableGroup, command_group
from rmgr.model.version import VERSION

#: name -> (module:function, what it does). Lists every command that exists.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("sim.runs:run", "One workload under one policy: schedule and measures"),
    "sweep": ("sim.runs:sweep", "Policies x loads x seeds, in parallel; goes on where it was interrupted"),
    "replay": ("sim.runs:replay", "A recorded log again: the same decisions, or another policy beside it"),
    "calls": ("sim.paper:calls", "Calls to servers: which policy has the answers first (paper 004)"),
    "paper": ("sim.paper:paper", "A paper's experiments again: its values, ours, spread, verdict"),
    "plot": ("sim.runs:plot", "Pictures of runs and sweeps, PNG or SVG, without a display"),
}


@command_group("sim", examples="rmgr sim run KTH-SP2.swf.gz --policy easy\nrmgr sim run --help", kind=TableGroup, table=COMMANDS)
def sim(_session: Session) -> None:
    """Scheduling research: the leader's own policies, vetting and passes on a virtual clock."""


def versions() -> dict[str, str]:
    """Returns the versions that made the results, for their manifests."""
    return {"rmgr": VERSION, "python": platform.python_version()}
