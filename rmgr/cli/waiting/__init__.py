"""Follows submissions until they end: their ends as they are committed, Ctrl-C, exit codes, `rmgr wait`.

The room reads; the one change that it may ask for is to cancel what Ctrl-C means.
"""
