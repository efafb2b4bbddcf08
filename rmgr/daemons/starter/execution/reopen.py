"""Slots that their own work has killed or stopped: another one is opened, or the same one continued, and the node is not blamed.

A slot's spawner has its user's rights, so its work can kill it (`kill -9 $PPID`, `pkill -u`). That says nothing of the node: the
Starter opens another slot without work, as the same user, and only if that fails it is the node's failure. Until the new slot
is up, no other new slot of that user gets work: what kills slots wears out its own attempts, no node.

    lost ──> opening ──up──> proven: work goes on
               │ lost, not up in time, cannot be opened: a strike
               └──> pause, longer each time ──> opening
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.process import Slot
from rmgr.daemons.starter.execution.lanes import Lanes

#: A spawner is up after 0.1 s; on a machine that swaps, later.
_UP_S = 20.0
#: How often spawners are continued: one that its work has stopped would enforce no limit, and hear of no cancel.
_CONTINUE_S = 2.0
#: After a failure; doubled each time.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 4.0


@dataclass(slots=True)
class _Trial:
    """The next slot of one user. slot: None while nothing is open. next_s: when it is opened, or given up."""

    number: int
    next_s: float
    slot: Slot | None = None
    failures: int = 0
    is_spoilt: bool = False  #: other slots of this user were lost meanwhile: whatever killed them may have killed it, too


class Reopening:
    """All users of one node whose next slot must prove itself. Owned by the Starter's thread.

    on_strike: the node failed (what, detail, in whose slot: None = not in a user's).
    """

    def __init__(self, lanes: Lanes, on_strike: Callable[[str, str, Account | None], None]) -> None:
        self._lanes = lanes
        self._on_strike = on_strike
        self._trials: dict[Account | None, _Trial] = {}
        self._continued_s = -math.inf

    def lost(self, slot: Slot, why: str, now_s: float) -> None:
        """A slot was lost that nobody had closed."""
        trial = self._trials.get(slot.account)
        if trial is None:
            self._trials[slot.account] = _Trial(slot.number, now_s)
            self._lanes.unproven.add(slot.account)
        elif trial.slot is not slot:
            trial.is_spoilt = True
        elif trial.is_spoilt:
            trial.slot, trial.next_s, trial.is_spoilt = None, now_s, False
        else:
            self._failed(trial, "slot_lost", why, now_s, slot.account, his=self._lanes.is_his_own_doing(slot))

    def up(self, slot: Slot) -> None:
        """A slot obeys."""
        trial = self._trials.get(slot.account)
        if trial is not None and trial.slot is slot:
            self._end(slot.account)

    def closed(self, slot: Slot, now_s: float) -> None:
        """A slot was closed, to make room for another user's: had it not proven itself yet, the next one has to."""
        trial = self._trials.get(slot.account)
        if trial is not None and trial.slot is slot:
            trial.slot, trial.next_s = None, now_s

    def settle(self, now_s: float, *, takes_work: bool = True) -> float | None:
        """Opens what is due, while the node takes work. Returns: when to call again at the latest, None if never."""
        if now_s - self._continued_s > _CONTINUE_S:
            self._continued_s = now_s
            for slot in self._lanes.slots():
                slot.wake()
        if not takes_work:
            return None
        for account, trial in list(self._trials.items()):
            if now_s < trial.next_s:
                continue
            if trial.slot is None:
                self._open(account, trial, now_s)
            elif trial.slot.is_up:
                self._end(account)
            else:
                trial.next_s = now_s + _UP_S
                trial.slot.kill()  # its loss is reported
        return min((trial.next_s for trial in self._trials.values()), default=None)

    def forget(self, users: Container[str]) -> None:
        """No slot of these users is to be opened: why is known."""
        for account in [account for account in self._trials if account is not None and account.name in users]:
            self._end(account)

    def _open(self, account: Account | None, trial: _Trial, now_s: float) -> None:
        try:
            trial.slot = self._lanes.open_idle(trial.number, account)
        except OSError as error:
            self._failed(trial, "slot_not_opened", str(error), now_s)
            return
        trial.next_s = now_s + _UP_S

    def _failed(self, trial: _Trial, what: str, why: str, now_s: float, account: Account | None = None, *, his: bool = False) -> None:
        """his: work in another slot of its user's may have killed it, or taken all the processes that he may have: no strike."""
        trial.slot, trial.is_spoilt = None, False
        trial.next_s = now_s + min(_LONGEST_PAUSE_S, _PAUSE_S * 2**trial.failures)
        trial.failures += 1
        if not his:
            self._on_strike(what, why, account)

    def _end(self, account: Account | None) -> None:
        del self._trials[account]
        with suppress(KeyError):
            self._lanes.unproven.remove(account)
