"""Whether a node can do its work: watches, strikes and quarantine, whose keys and users are trusted, whether users reach their files.

It decides and reports; it starts and ends no work.
"""
