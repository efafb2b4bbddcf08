"""The Submitter gateway: uses ZooKeeper and the data store on behalf of gRPC clients that cannot reach them.

It checks every call against its caller's rights, and can do nothing that its caller may not do.
"""
