"""`rmgr submit` and `rmgr run`: send work, and what follows; inside a placed job its ranks.

The room joins `sending` and `waiting`. It must not reach the cluster but through them and the session.
"""
