"""`rmgr store`: values in the data store from the shell, who may read them, and the space they take.

The room works on a data store through the session. It must not touch work that is queued or runs.
"""
