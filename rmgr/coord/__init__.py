"""The ZooKeeper protocol as data, pure: paths, records, multis, read-back, decisions, views.

Rooms, lowest first: protocol, validity with seal and nonces, ops, decisions, views. A room imports only rooms before it. Nothing here
reads a clock, draws a number, waits, logs or talks to a server: adapters carry out what these modules describe.
"""
