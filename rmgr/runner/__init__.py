"""Runs work on a node: the spawner of a slot, its commands, Python workers and ranks.

`spawner` is started as a program; `remote` and `current` keep their names, which stored results and users know. Rooms, lowest first: host,
command and ranks, python. The runner imports nouns and errors only, because what it loads is forked for every worker.
"""
