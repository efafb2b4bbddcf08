"""Finds the leader that answers: at a glance where that is enough, else by a session of ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmgr.adapters.rpc.server import LeaderClient
    from rmgr.adapters.rpc.thin import ThinLeader
    from rmgr.client.queries.doors import LeaderHost

#: How long the leader may think; it answers from memory.
LEADER_S = 5.0


class LeaderSearch:
    """Clients of the leader, for one command or program.

    is_local: nobody leads, or the leader does not answer; nothing more is sent to it.
    """

    def __init__(self, host: LeaderHost) -> None:
        self._host = host
        self._client: LeaderClient | None = None
        self._thin: ThinLeader | None = None
        self._is_thin_tried = False
        self.is_local = False

    def thin(self) -> ThinLeader | None:
        """The leader without gRPC's library, found and asked at once; None where the long way must be taken."""
        if self._is_thin_tried or self.is_local or self._client is not None:
            return self._thin
        self._is_thin_tried = True
        epoch = self._host.leader_at_a_glance()
        if epoch is None:
            return None
        from rmgr.adapters.rpc.thin import ThinLeader

        credentials = self._host.shown_credentials()
        bundle = None if credentials is None else credentials.directory
        self._thin = ThinLeader(epoch.endpoint, timeout_s=self._host.left_s(LEADER_S) or LEADER_S, bundle=bundle)
        return self._thin

    def client(self) -> LeaderClient | None:
        """The leader by gRPC; None, with a note, when nobody leads."""
        if self.is_local:
            return None
        if self._client is not None:
            return self._client
        from rmgr.submitter.questions import WhoLeads

        epoch = self._host.ask(WhoLeads()).leader
        if epoch is None:
            self.give_up("no WatchDog leads just now")
            return None
        from rmgr.adapters.rpc.server import LeaderClient

        timeout_s = self._host.left_s(LEADER_S) or LEADER_S
        self._client = LeaderClient(epoch.endpoint, timeout_s=timeout_s, via=self._host.via, credentials=self._host.credentials())
        return self._client

    def without_thin(self, why: str) -> None:
        """The short way failed: the long one from now on."""
        self._host.detail(f"asked the leader again: {why}")
        self._thin = None

    def give_up(self, why: str) -> None:
        """From now on answers come from ZooKeeper; the user is notified."""
        self._host.note(f"{why}; this answer is read from ZooKeeper")
        self.is_local, self._thin = True, None

    def close(self) -> None:
        """Ends the channels to the leader."""
        for client in (self._client, self._thin):
            if client is not None:
                client.close()
        self._client = self._thin = None
