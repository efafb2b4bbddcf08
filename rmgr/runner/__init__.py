"""Runs work on a node: the spawner of a slot, its commands, Python workers and ranks.

`spawner` is started as a program; `remote` and `current` keep their names, since stored results and users refer to them. Rooms, lowest
first: host, command and ranks, python. The runner imports only nouns and errors, since its modules are in every forked worker.
"""
