"""Sets up the interpreter of a daemon: collections of garbage stay rare and short.

A daemon holds some hundred thousand objects for as long as it lives, and many small ones for a moment. CPython's
defaults look through all of them now and then: pauses of up to 0.8 s in a busy leader of 2,000 submissions.
"""

from __future__ import annotations

import gc

from rmgr.runner.host.kernel import trim_memory

#: Allocations before a young collection, young ones before a middle one, middle ones before a full one.
_THRESHOLDS = (20_000, 20, 50)


def set_for_daemon() -> None:
    """Once, when everything is imported and nothing is served yet. Cost: about 50 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    trim_memory()
