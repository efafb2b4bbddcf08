"""The Submitter gateway: what clients do with ZooKeeper and the store, for those who cannot reach them, by gRPC.

It checks each call against its caller's rights before it does it, and may do nothing that its caller may not.
"""
