"""Builds the statements that are signed of work, placements, checkpoints and results, as a receiver recomputes them.

It makes bytes to sign. Keys and signatures belong to `rmgr.adapters.identity` and to whoever signs.
"""
