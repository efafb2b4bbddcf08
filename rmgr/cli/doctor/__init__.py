"""`rmgr doctor`: looks at this machine and the cluster, says what is wrong and what to type.

The room reads only. Each check stands alone, has a deadline, and must not fail because another did.
"""
