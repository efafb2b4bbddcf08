"""The papers' experiments, repeated: each module has a STUDY, which reports checks and tables beside the paper's printed values.

Each paper has one file. It uses `engine`, `runs`, `gangs` and `calls`, and no other paper.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from rmgr.errors import UsageError, meant
from rmgr.sim.papers.report import Study

#: number -> (module, subject) of each paper that can be run.
PAPERS: Mapping[str, tuple[str, str]] = {
    "000": ("rmgr.sim.papers.paper000", "queue selection and connection reservation on an HPC2500"),
    "001": ("rmgr.sim.papers.paper001", "migration against starvation on a grid"),
    "002": ("rmgr.sim.papers.paper002", "gang time-sharing over nested partitions (DQT)"),
    "004": ("rmgr.sim.papers.paper004", "which server answers a call first, under stale information (Ninf)"),
}


def paper_named(number: str) -> Study[Any]:
    """Returns the study of a paper. Raises: UsageError for an unknown paper; it names the nearest."""
    if number not in PAPERS:
        digits = number.strip().lower().removeprefix("paper").removesuffix(".txt").lstrip("_-")[:3].zfill(3)
        near = meant(digits if digits in PAPERS else number, PAPERS, cutoff=0.3)
        known = ", ".join(f"{name} ({about})" for name, (_, about) in PAPERS.items())
        raise UsageError(f"no paper is called {number!r}{near}", hint=f"known: {known}; all for every one")
    study: Study[Any] = importlib.import_module(PAPERS[number][0]).STUDY
    return study


def checks_named(paper: str, wanted: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Returns the wanted ids as papers.md writes them, each once, in its order.

    Raises: UsageError for an unknown id; it names the nearest.
    """
    by_name = {name.lower(): name for name in known}
    found = set()
    for word in wanted:
        name = by_name.get(word.strip().lower())
        if name is None:
            near = meant(word.strip(), known, cutoff=0.3)
            raise UsageError(f"paper {paper} has no check {word!r}{near}", hint=f"known: {', '.join(known)}")
        found.add(name)
    return tuple(name for name in known if name in found)
