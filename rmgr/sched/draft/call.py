"""The verb for calls: send one to a server."""

from __future__ import annotations

from rmgr.sched.draft.view import View
from rmgr.sched.plan import Accepted, Send, Verdict, Why


class Calling(View):
    """A part of `Draft`."""

    __slots__ = ()

    def send(self, call_id: int, to: str, why: Why, *, predicted_us: int = 0) -> Verdict:
        """Sends a call to the server `to`. predicted_us: how long the policy expects the answer to take from now on, 0 = it does not say.

        Infeasible: an unknown call, or one that has a server; a server that is not there, is closed, does not offer the function, or is
        excluded by the call.
        """
        self._check_open()
        call = self._part.calls.get(call_id) if type(call_id) is int else None
        more = self._changes()
        if call is None or call_id in more.calls_gone:
            return self._never(Why("state", "call {} does not wait in partition {}", (call_id, self.partition)))
        server = self._part.servers.get(to) if type(to) is str else None
        if server is None:
            return self._never(Why("server", "no server {} in partition {}", (to, self.partition)))
        if not server.takes(call):
            return self._never(Why("server", "server {} cannot take call {} of {}", (to, call_id, call.function or "any function")))
        if type(predicted_us) is not int or predicted_us < 0:
            return self._never(Why("prediction", "{} us is no time until an answer", (predicted_us,)))
        more.put(more.calls_gone, call_id, None)
        self.decisions.append(Send(call_id, to, why, self.partition, predicted_us))
        return Accepted(self.now_us)
