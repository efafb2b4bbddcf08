"""Ranks of a job: processes of one command on several nodes, their output, signals and terminals, and `rmgr run` inside a job.

It speaks with the Starters of the job's nodes through sockets on the node. It makes no claim and commits nothing.
"""
