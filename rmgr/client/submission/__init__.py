"""One submission of the Submitter: what callers may do with it, and the parts that send it, follow it and repair it.

`handle` joins the parts. `waits` are those of callers; `sender` commits blocks; `follower` reads outcomes; `repair` resubmits;
`takeover` makes a dead owner's submission this Submitter's own. They live on the Submitter's thread, which they know through
`doors`, and handle tasks as bytes. This room must not know the engine, futures, queues or executors, nor run code of the user.
"""
