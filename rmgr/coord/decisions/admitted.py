"""What Starters may claim: whether a queue admits a submission, and what a cap leaves its user. Pure.

Starters ask because clients of anybody's making write blocks. The client and the gateway ask more, before anything is written
(`procedures/admission.py`). Of what was submitted before the settings were changed last, only its user is judged: a limit that is
lowered, or a queue that is closed, concerns what comes after.

A cap of cores bounds what is claimed, and claimed work counts, up to the cores of its node; nothing that runs is ended for it. The leader,
who tells what users have, and the Starters, who obey, count alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import floor

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_USAGE_BYTES
from rmgr.coord.protocol.records import encode_record
from rmgr.model.base.units import counted
from rmgr.model.cluster.queue import CORES, JOBS, CappedUse, QueueSpec, UserLimits
from rmgr.model.tasks.block import BlockKey
from rmgr.model.tasks.submission import Submission


def not_admitted(queue: QueueSpec, record: Submission, key: BlockKey, *, is_newer: bool) -> str:
    """Why the queue in which a block of `record` stands does not admit it, "" = it does. Cost: 0.3 us.

    is_newer: the submission was made after the cluster's settings were changed last.
    """
    if record.queue != queue.name:
        return f"its submission is of queue {record.queue}"
    if key.user == paths.RAISED and not record.is_raised:
        return "its name says that an operator has raised it, and none has"
    if key.user not in ("", paths.RAISED, paths.user_tag(record.user)):
        return f"its name has the tag of another user than {record.user}"
    if queue.users and record.user not in queue.users:
        return f"user {record.user} may not use queue {queue.name}"
    if not is_newer:
        return ""
    if queue.state == "closed":
        return f"queue {queue.name} is closed"
    if queue.max_cores and key.cores > queue.max_cores:
        return f"queue {queue.name} allows {counted(queue.max_cores, 'core')}"
    if queue.max_memory_bytes and record.request.memory_bytes > queue.max_memory_bytes:
        return f"queue {queue.name} allows {queue.max_memory_bytes} bytes of memory"
    if key.priority > queue.max_priority and not record.is_raised:
        return f"queue {queue.name} allows priority {queue.max_priority}"
    return ""


# -- caps ----------------------------------------------------------------------------------------------------------------------


#: Users of whom `/usage` tells at most: those who are nearest to their caps. Fewer, where their names are long.
MOST_USERS = 1_000


def capped(limits: UserLimits, used: Mapping[str, Mapping[str, int]], jobs: Mapping[str, int], free: int) -> CappedUse:
    """What is told of users who have a cap. used: cores in use, node -> user -> cores. free: nodes that may claim."""
    cores: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for each in used.values():
        cores.update(each)
        nodes.update(each.keys())
    most = MOST_USERS
    while True:
        has, open_jobs = _nearest(limits, CORES, cores, most), _nearest(limits, JOBS, jobs, most)
        use = CappedUse(cores=has, nodes={user: nodes[user] for user in has}, jobs=open_jobs, free=free)
        if len(encode_record(use)) <= MAX_USAGE_BYTES:
            return use
        most //= 2


def _nearest(limits: UserLimits, name: str, has: Mapping[str, int], most: int) -> dict[str, int]:
    capped = sorted((-count / cap, user) for user, count in has.items() if count and (cap := limits.of(name, user)))
    return {user: has[user] for _, user in sorted(capped[:most], key=lambda item: item[1])}


def room_below_cap(*, cap: int, told: int, more: int, part: float, cores: int, chance: float) -> int:
    """Cores that one Starter may claim now for a user, 0 = none.

    Others claim, too, before the next figures come: of what is left below the cap each takes its part, rounded by chance, so that all
    together take about what is left, also where that is less than a task for each. So it is with what is too much.

    Args:
        told: what the user has in all, by the last figures. more: what the user has here beyond what was had when they came (or less).
        part: of one Starter among those that claim or have work of the user. cores: of one task. chance: in [0, 1).
    """
    left = cap - told
    mine = floor(left * part / cores + chance) * cores - more
    return mine if mine >= cores and (left <= 0 or left - more >= cores) else 0
