"""Gives a policy its draft: a view of one partition, what this pass has decided laid over it, and verbs that are vetted at once.

`Draft` is the whole; `draft.py` has the seam on one page. `View` is what a policy reads, `Ganging` the verb that shares nodes in time.
A draft reads the state and never changes it: what was accepted is the plan's.
"""

from rmgr.sched.draft.draft import Draft, Trial

__all__ = ["Draft", "Trial"]
