"""One term of one leader: its loop, requests of users, settings and limits, views, release of what it held.

It puts the rooms below together; when the lease is lost all of it stops.
"""
