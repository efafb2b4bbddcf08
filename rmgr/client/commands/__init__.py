"""Submissions of command lines and scripts, alone or in lists: from a request to a durable submission.

`request` builds or repeats a request; `sending` checks it against cluster and store, ships files, and sends it, alone or in a list of
several, all or nothing. The caller parses and prints; nothing here reads options or writes to a terminal.
The room may use the Submitter, values, and the rooms below them.
"""
