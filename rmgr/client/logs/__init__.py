"""Output of tasks: live from the nodes that run them, afterwards from the data store.

The room may use `procedures` and the adapters' clients. It must not know futures or queues: it takes ids and gives pieces.
"""
