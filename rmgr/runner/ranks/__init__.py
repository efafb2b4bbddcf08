"""Ranks of a job: processes of one command on several nodes, their output, signals and terminals, and `rmgr run` inside a job.

It talks to the Starters of the job's nodes through sockets on the node. It claims and commits nothing.
"""
