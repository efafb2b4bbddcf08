"""Certificates that end soon: whose, when, and what to type before nobody believes their holders. Pure.

Daemons work as long as their certificates do: then no connection to them comes about, and nothing that they sign is believed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from rmgr.model.base.units import counted
from rmgr.model.views import Level, PartView

#: Certificates that end within so many days are a warning; of more than so many, how many there are.
SOON_DAYS, _SHOWN = 14, 8
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CertificateHolder:
    """Owner of a certificate. role: as the certificate names it. is_person: a user or an operator, who restarts nothing."""

    role: str
    name: str
    is_person: bool = False


def ending(ends_s: Mapping[CertificateHolder, float], now_s: float) -> tuple[PartView, ...]:
    """A warning for each that ends within `SOON_DAYS`, a problem for each that has ended, the first to end first.

    Args: ends_s: when the first certificate of each ends, seconds since 1970.
    """
    soon = sorted((at_s, holder) for holder, at_s in ends_s.items() if at_s - now_s < SOON_DAYS * _DAY_S)
    found = [_part(holder, at_s, now_s) for at_s, holder in soon[:_SHOWN]]
    if more := soon[_SHOWN:]:
        is_over = any(at_s <= now_s for at_s, _ in more)
        reason = f"{counted(len(more), 'more certificate')} end within {SOON_DAYS} days"
        level = Level.PROBLEM if is_over else Level.WARNING
        found.append(PartView(kind="certificate", id="", state="ends", reason=reason, fix="rmgr admin rotate tls --help", level=level))
    return tuple(found)


def _part(holder: CertificateHolder, at_s: float, now_s: float) -> PartView:
    left_days = (at_s - now_s) / _DAY_S
    day = dt.datetime.fromtimestamp(at_s, dt.UTC).strftime("%Y-%m-%d")
    when = f"in {counted(int(left_days), 'day')}" if left_days >= 1 else "within a day"
    told = f"ends {when} ({day})" if left_days > 0 else f"has ended ({day})"
    if holder.is_person:
        fix = f"ask the cluster's admin for a new bundle: rmgr admin add-user {holder.name}"
    else:
        renew = f"rmgr admin add-node {holder.name} --role {holder.role} --renew"
        fix = f"{renew} (where its bundle lies: rmgr admin rotate tls DIR), then restart it"
    return PartView(
        kind="certificate",
        id=f"{holder.role} {holder.name}",
        state="ends" if left_days > 0 else "ended",
        reason=f"the certificate of {holder.role} {holder.name} {told}",
        fix=fix,
        level=Level.WARNING if left_days > 0 else Level.PROBLEM,
    )
