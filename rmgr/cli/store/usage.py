"""Counts values and bytes for `rmgr store du`: by prefix, by kind of row, and by the user whose work they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.cli.store.values import Opened
from rmgr.coord.protocol import keys
from rmgr.errors import CoordinationUnavailable, DataLost, NotConnected, NotFound, PermissionDenied, RmgrError

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session

#: Families of rows (coord/protocol/keys.py) and what they hold.
FAMILIES = {
    "name/": "values of users",
    "share/": "what users share",
    "final/": "outputs of collected work",
    "fn/": "functions",
    "mod/": "modules",
    "file/": "uploads",
    "args/": "arguments",
    "frag/": "results",
    "out/": "large results",
    "log/": "logs",
    "ckpt/": "checkpoints",
    "page/": "outcomes",
    "hist/": "history",
    "histu/": "history by user",
    "metric/": "measurements",
    "events/": "events of the scheduler",
    "picks/": "picks of servers for calls",
    "use/": "what users wrote today",
    "meta/": "the store itself",
}
#: Families whose rows are of one submission, by its number.
_OF_SUBMISSION = ("args/", "frag/", "out/", "log/", "ckpt/", "page/", "final/")
#: Rows that belong to nobody alone, and those of submissions that nobody knows any more.
SHARED, UNKNOWN = "(shared)", "(unknown)"
_TOP = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUsage:
    """Number of values of one kind (or of one user), and their bytes."""

    kind: str
    count: int
    size: int


def usage(opened: Opened, prefix: str) -> StoredUsage:
    """Values of users with `prefix` and their bytes (outputs count as the pointers they are; their bytes: `--all`)."""
    count, size = opened.store.usage(keys.named_prefix(prefix), timeout_s=opened.timeout_s)
    return StoredUsage(kind=prefix, count=count, size=size)


def usage_by_family(opened: Opened) -> list[StoredUsage]:
    """Everything in the store by kind of row; kinds without rows are left out, through a gateway what others have, too."""
    sums = ((kind, _measured(opened, family)) for family, kind in FAMILIES.items())
    return [StoredUsage(kind=kind, count=count, size=size) for kind, (count, size) in sums if count]


def usage_by_user(opened: Opened, live_owner: Callable[[int], str | None]) -> list[StoredUsage]:
    """Everything in the store by user, the largest first.

    Args: live_owner: whose submission it is that is not in the history yet, None where that is not known.
    Cost: two reads for each kind of row of each submission, one for its owner.
    """
    sums: dict[str, tuple[int, int]] = {}
    owners: dict[int, str] = {}

    def add(user: str, prefix: str) -> None:
        count, size = _measured(opened, prefix)
        before = sums.get(user, (0, 0))
        sums[user] = before[0] + count, before[1] + size

    for family in _OF_SUBMISSION:
        for part in _parts(opened, family):
            number = int(part) if part.isdecimal() else -1
            if number not in owners:
                owners[number] = _owner(opened, number) or live_owner(number) or UNKNOWN
            add(owners[number], f"{family}{part}/")
    for user in _parts(opened, "histu/"):
        add(user, f"histu/{user}/")
    for family in FAMILIES:
        if family not in _OF_SUBMISSION and family != "histu/":
            add(SHARED, family)
    rows = [StoredUsage(kind=user, count=count, size=size) for user, (count, size) in sums.items() if count]
    return sorted(rows, key=lambda row: (-row.size, row.kind))


def _measured(opened: Opened, prefix: str) -> tuple[int, int]:
    """Values and bytes, none where a gateway does not tell: what all have together is for operators."""
    try:
        return opened.store.usage(prefix, timeout_s=opened.timeout_s)
    except PermissionDenied:
        return 0, 0


class LiveOwners:
    """Users of submissions that ZooKeeper holds, as far as it can be asked: one that is away is asked once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_away = False

    def __call__(self, number: int) -> str | None:
        """The user, None when there is no such submission or its user is not known."""
        from rmgr.submitter.questions import ReadRecord

        if self._is_away or number < 0:
            return None
        try:
            return self._session.ask(ReadRecord(number=number), 5.0).record.user
        except NotFound:
            return None
        except (CoordinationUnavailable, NotConnected) as error:
            self._is_away = True
            self._session.note(f"{error.message}; rows of work that has not ended are counted as {UNKNOWN}")
        except RmgrError as error:
            self._session.detail(f"whose submission {number} is, is not known: {error.message}")
        return None


def _owner(opened: Opened, number: int) -> str | None:
    from rmgr.procedures.history import summary_of

    try:
        kept = summary_of(opened.store, number, timeout_s=opened.timeout_s) if number >= 0 else None
        return kept.user if kept is not None else None
    except (DataLost, PermissionDenied):  # a gateway shows users their own
        return None


def _parts(opened: Opened, family: str) -> Iterator[str]:
    """The second words of all keys of a family, each once. Cost: one look for each."""
    after = ""
    while names := opened.store.keys(family, after=after, limit=1, timeout_s=opened.timeout_s):
        part = names[0].split("/")[1]
        yield part
        after = f"{family}{part}/{_TOP}"
