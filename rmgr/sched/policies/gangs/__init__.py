"""Gang policies: jobs that share nodes in time (`dqt`), and the batch comparison over the same nested partitions (`buddy_fcfs`).

They read and write drafts as every policy and keep what must survive in the gang's record; arithmetic is that of `rmgr.sched.tree`.
"""
