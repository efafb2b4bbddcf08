"""NOUNS: the pure data of rmgr. No clock, no randomness, no IO, no logging in this package.

Rooms, lowest first: base, tasks and cluster, wire; `views` are what people see. Every room above may import it; it imports
only `rmgr.errors`.
"""
