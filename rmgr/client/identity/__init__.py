"""Identity of a client in a secured cluster: signs the user's work and checks that outcomes are a Starter's own.

`secured` gives the Submitter its signer and its checks, so an open cluster loads neither. The room may use `procedures`,
`runtime` and `coord`. It must not submit, store or read values.
"""
