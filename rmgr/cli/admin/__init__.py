"""`rmgr admin` and `rmgr join`: authority, credentials, machines and the data store of a cluster.

The room holds what an administrator does once or rarely, with the administrator's own bundle. It must not touch work.
"""
