"""Identity: certificates, credentials, invitations and signatures of a secured cluster.

`pki` issues and checks certificates; `credentials` reads the bundle of this process; `trust` follows which keys are known and revoked.
The room may use `coord` and `model`. It must not know gRPC, stores or processes: it says who a caller is,
and `access` decides what the caller may call.
"""
