"""The simulator: the leader's scheduler under virtual time, with workloads, events, replays, laws and papers.

Rooms, lowest first: workload, models, engine, gangs and calls, runs, replay and laws, papers, plots. It uses policies, nouns and errors
only: no store, no ZooKeeper, no client.
"""
