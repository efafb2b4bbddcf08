"""Workload models, by their names on the command line: `lublin99`, `lublin99:batch`, `hpc2500`, `feitelson96`.

Jobs are drawn from named random streams, so that one seed gives every policy the same workload. A model may use `sim/workload`, queue
classes and nouns. It must not import the engine or a policy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from rmgr.errors import UsageError, meant
from rmgr.sim.models import feitelson96, hpc2500, lublin99
from rmgr.sim.workload.jobs import Workload

#: Default numbers of jobs and processors; a model made for one machine defaults to the processors of that machine.
JOBS = 10_000
PROCESSORS = 128
OWN_PROCESSORS: Mapping[str, int] = {"hpc2500": hpc2500.PROCESSORS, "feitelson96": feitelson96.PROCESSORS}
_FEITELSON96 = {"": feitelson96.DEFAULT, "repeated": feitelson96.Constants(repeat_exponent=feitelson96.REPEAT_EXPONENT)}

#: name -> (kinds after a colon, jobs x processors x seed x kind -> workload)
MODELS: Mapping[str, tuple[tuple[str, ...], Callable[[int, int, int, str], Workload]]] = {
    "lublin99": (
        tuple(lublin99.MIXES),
        lambda jobs, processors, seed, mix: lublin99.lublin99(jobs, processors=processors, seed=seed, mix=mix),
    ),
    "hpc2500": (hpc2500.KINDS, lambda jobs, processors, seed, kind: hpc2500.hpc2500(jobs, processors=processors, seed=seed, kind=kind)),
    "feitelson96": (
        tuple(_FEITELSON96),
        lambda jobs, processors, seed, kind: feitelson96.feitelson96(jobs, processors=processors, seed=seed, constants=_FEITELSON96[kind]),
    ),
}


def names() -> list[str]:
    """Returns every name that `model_named` knows."""
    return [f"{name}:{kind}" if kind else name for name, (kinds, _) in MODELS.items() for kind in kinds]


def is_model(source: str) -> bool:
    """Returns whether the name begins with the name of a model. A file with such a name is written ./NAME."""
    return source.partition(":")[0] in MODELS


def refuse_misspelt(source: str) -> None:
    """Raises UsageError for a name that is no file but resembles the name of a model."""
    near = meant(source, names(), cutoff=0.7)
    if near and not os.path.lexists(source):
        raise UsageError(f"no model and no file is called {source!r}{near}", hint=f"models: {', '.join(names())}")


def model_named(source: str, *, jobs: int | None, processors: int | None, seed: int) -> Workload:
    """Draws the workload of the named model. Raises: UsageError for an unknown kind, or numbers that the model cannot draw."""
    name, _, kind = source.partition(":")
    kinds, draw = MODELS[name]
    if kind not in kinds:
        raise UsageError(f"{name} has no kind {kind!r}{meant(kind, kinds)}", hint=f"known: {', '.join(names())}")
    return draw(jobs or JOBS, processors or OWN_PROCESSORS.get(name, PROCESSORS), seed, kind)
