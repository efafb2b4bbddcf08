"""Submissions of command lines and scripts, alone or as a list: from a request to a durable submission.

`request` (what is asked for), `checks` (against the cluster and the data store), `shipping` (files that travel), `sending`
(one submission), `job_lists` (several, all or nothing). The caller parses and prints; nothing here reads options or writes
to a terminal. The room may use the Submitter, values, and what is below them.
"""
