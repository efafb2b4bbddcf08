"""The host: processes, slots, control groups, accounts and devices of the machine that a node runs on.

`process` runs slots; each `slot` is one spawner process, with its Python workers; `channel` carries their frames.
The room may use `model` and the runner's frames. It must not know ZooKeeper, gRPC or stores, nor which work is due:
it takes orders and emits facts (`workevents`).
"""
