"""The Submitter: the only part of rmgr that touches ZooKeeper for an application.

`port` says what an application may ask of one (`WorkPort`). `direct` carries it out on ZooKeeper and the data store, in the process of
whoever is trusted with these, and in a gateway for everybody else; `remote` asks a gateway. This room may use `procedures`, `runtime`,
`adapters` and what lies below. It knows nothing of functions, futures and pickles, and never runs code of a user.
"""
