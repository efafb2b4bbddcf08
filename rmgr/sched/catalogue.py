"""The policies by the names of configuration and command line, each built from parameters that are checked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from rmgr.errors import ConfigError
from rmgr.model.units import parse_duration_us
from rmgr.sched.policies.ageing import Ageing
from rmgr.sched.policies.conservative import Conservative
from rmgr.sched.policies.easy import Easy
from rmgr.sched.policies.fcfs import Fcfs
from rmgr.sched.policies.first_fit import FirstFit
from rmgr.sched.policies.head_blocking import HeadBlocking
from rmgr.sched.policies.ljf import Ljf
from rmgr.sched.policies.priority import Priority
from rmgr.sched.policies.sjf import Sjf
from rmgr.sched.policy import Order, Policy

Named = TypeVar("Named")

ORDERS: Mapping[str, Callable[[], Order]] = {"fcfs": Fcfs, "sjf": Sjf, "ljf": Ljf, "priority": Priority}
SEARCHES: Mapping[str, Callable[[Order], Policy]] = {
    "head_blocking": lambda order: HeadBlocking(order=order),
    "first_fit": lambda order: FirstFit(order=order),
    "easy": lambda order: Easy(order=order),
    "conservative": lambda order: Conservative(order=order),
}
#: Name -> (order, search), each of which a parameter may replace.
POLICIES: Mapping[str, tuple[str, str]] = {
    "fcfs": ("fcfs", "head_blocking"),
    "sjf": ("sjf", "head_blocking"),
    "ljf": ("ljf", "head_blocking"),
    "priority": ("priority", "head_blocking"),
    "first_fit": ("fcfs", "first_fit"),
    "ljf_first_fit": ("ljf", "first_fit"),
    "easy": ("fcfs", "easy"),
    "conservative": ("fcfs", "conservative"),
}


def policy_named(name: str, params: Mapping[str, str] | None = None) -> Policy:
    """The policy of this name.

    Args:
        params: `order` and `search` replace that half of the policy: any order composes with any search. `max_wait`
            (a duration: `12h`, `3600` seconds) composes with them: a job that has waited so long goes first.
    Raises: ConfigError for an unknown name or parameter; it names the nearest.
    """
    order, search = _one_of("policy", name, POLICIES)
    max_wait_us = 0
    for key, value in (params or {}).items():
        match key:
            case "order":
                order = value
            case "search":
                search = value
            case "max_wait":
                max_wait_us = parse_duration_us(value)
                if max_wait_us <= 0:
                    raise ConfigError(f"max_wait of {name} is {value!r}: it must be above 0 s", hint="a duration, as in 12h or 3600")
            case _:
                raise _unknown(f"parameter of {name}", key, ("order", "search", "max_wait"))
    arranged = _one_of("order", order, ORDERS)()
    if max_wait_us:
        arranged = Ageing(max_wait_us=max_wait_us, base=arranged)
    return _one_of("search", search, SEARCHES)(arranged)


def _one_of(what: str, name: str, known: Mapping[str, Named]) -> Named:
    if name not in known:
        raise _unknown(what, name, tuple(known))
    return known[name]


def _unknown(what: str, name: str, known: tuple[str, ...]) -> ConfigError:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"no {what} is called {name!r}{meant}", hint=f"known: {', '.join(known)}")
