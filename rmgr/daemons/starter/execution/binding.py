"""Assigns processors of the machine to the nodes of a Starter, so that slots and ranks can have their own."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.errors import ConfigError


def processors_of(
    names: Sequence[str], *, cores: int, mode: str, has_all: bool, available: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Processors by node; empty: work is not bound.

    Args:
        cores: of one node. mode: `[starter] bind_cpus`. has_all: nobody has said how many cores, so that they are all of the machine's.
        available: processors that this process may use.
    With "yes" they are bound wherever each core of every node is a processor of its own; with "auto" only where the Starter has the
    whole machine: of two Starters on it (`rmgr dev`), neither knows what the other gives away. Raises: ConfigError.
    """
    if mode not in {"auto", "yes", "no"}:
        raise ConfigError(f"[starter] bind_cpus = {mode!r} is not known", hint="yes, no or auto")
    is_wanted = mode == "yes" or (mode == "auto" and has_all and len(names) == 1)
    if not is_wanted or len(available) < 2 or cores * len(names) > len(available):
        return {}
    ordered = sorted(available)
    return {name: tuple(ordered[number * cores : (number + 1) * cores]) for number, name in enumerate(names)}
