"""Identity: certificates, credentials, invitations and signatures of a secured cluster.

`pki` issues and checks certificates; `credentials` reads the bundle of this process; `trust` follows who is known and revoked.
The room may use `coord` and `model`. It must not know gRPC, stores or processes: it answers who somebody is,
and `access` decides what they may call.
"""
