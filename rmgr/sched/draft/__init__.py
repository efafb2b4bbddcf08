"""Gives a policy its draft: a view of one partition, an overlay of what this pass has decided, and verbs that are vetted at once.

`Draft` is the whole; `draft.py` has the seam on one page. Each other file holds one kind of verbs, or what they stand on. A draft reads
the state and never changes it: what was accepted is the plan's.
"""

from rmgr.sched.draft.draft import Draft, Trial

__all__ = ["Draft", "Trial"]
