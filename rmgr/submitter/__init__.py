"""The Submitter: the only part of rmgr that touches ZooKeeper for an application.

`port` defines what an application may ask of it (`WorkPort`). `direct` does that work on ZooKeeper and the data store, in processes
that are trusted with both and in gateways for all others; `remote` asks a gateway. This room may use `procedures`, `runtime`,
`adapters` and the rooms below them. It knows nothing of functions, futures and pickles, and never runs code of a user.
"""
