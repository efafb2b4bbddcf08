"""Records of the cluster: nodes, queues, settings and limits, identities, invitations.

They are read and written as they are in znodes. They know `base`, and nothing of submissions.
"""
