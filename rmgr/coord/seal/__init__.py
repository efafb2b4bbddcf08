"""What is signed of work, placements, checkpoints and results, and how a receiver recomputes it.

It makes bytes to sign. Keys and signatures belong to `rmgr.adapters.identity` and to whoever signs.
"""
