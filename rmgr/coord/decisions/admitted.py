"""What Starters may claim: whether a queue admits a submission, and how many cores a cap leaves to its user. Pure.

Starters check this because any client may write blocks. The client and the gateway check more, before anything is written
(`procedures/admission.py`). For submissions made before the last change of the settings, only the user is checked: a lowered
limit, or a closed queue, concerns later submissions.

A cap of cores limits claimed work, up to the cores of its node; running work is never ended for it. The leader,
which publishes what users have, and the Starters, which obey, count alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import floor

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_USAGE_BYTES
from rmgr.coord.protocol.records import encode_record
from rmgr.model.block import BlockKey
from rmgr.model.queue import CORES, JOBS, CappedUse, QueueSpec, UserLimits
from rmgr.model.submission import Submission
from rmgr.model.units import counted


def not_admitted(queue: QueueSpec, record: Submission, key: BlockKey, *, is_newer: bool) -> str:
    """Returns why the queue of a block of `record` does not admit the block, "" if it does. Cost: 0.3 us.

    is_newer: the submission was made after the last change of the cluster's settings.
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


#: Most users in `/usage`: those nearest to their caps. Fewer, if their names are long.
MOST_USERS = 1_000


def capped(limits: UserLimits, used: Mapping[str, Mapping[str, int]], jobs: Mapping[str, int], free: int) -> CappedUse:
    """Returns the figures to publish for users with a cap. used: node -> user -> cores in use. free: nodes that may claim."""
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
    """Returns how many cores one Starter may claim now for a user, 0 = none.

    Other Starters claim, too, before the next figures come: each takes its part of what is left below the cap, rounded by chance, so that
    all together take about what is left, even if that is less than one task each. The same holds for an excess.

    Args:
        told: cores of the user in all, by the last figures. more: cores of the user here beyond those at the last figures (may be
        negative).
        part: of one Starter among those that claim or have work of the user. cores: of one task. chance: in [0, 1).
    """
    left = cap - told
    mine = floor(left * part / cores + chance) * cores - more
    return mine if mine >= cores and (left <= 0 or left - more >= cores) else 0
