"""Submissions of command lines and scripts, alone or as a list: from a request to a durable submission.

`request` (what is asked for, anew or again), `sending` (one submission: checked against cluster and store, files that travel, sent),
`job_lists` (several, all or nothing); and `moving` (orders to placed jobs). The caller parses and prints; nothing here reads
options or writes to a terminal. The room may use the Submitter, values, and what is below them.
"""
