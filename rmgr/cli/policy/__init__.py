"""`rmgr policy`: which scheduling policies there are, who places where, and the checks before one is set.

The room reads the catalogue and cluster settings; what it changes goes through `control`.
"""
