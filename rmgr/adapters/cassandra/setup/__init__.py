"""Setup of a keyspace: creates the tables or upgrades them, step by step, until every node of the ring agrees.

The room may use the connection, the schema and the URL of `cassandra`; nothing there imports this room.
It must not read or write values.
"""
