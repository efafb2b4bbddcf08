"""Refused tasks are told once, whoever says it first: their Submitter, or the node that they were handed to."""

from __future__ import annotations

from rmgr.client.submission.refusals import Refusals
from rmgr.errors import KeyExists
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.outcome import Outcome


def ended(index: int, reason: Reason) -> Outcome:
    return Outcome(index=index, state=State.FAILED, reason=reason, error="the output key 'out' exists already")


def test_what_was_refused_here_is_not_told_again_by_the_node() -> None:
    refusals, why = Refusals(), KeyExists("taken")
    refusals.add({3: why}, is_early=True)
    assert refusals.take() == {3: why}
    refusals.add({3: why}, is_early=True)  # the claim was tried again
    refusals.read([ended(3, Reason.OUTPUT_EXISTS)])
    assert refusals.take() == {}


def test_what_only_the_node_has_refused_is_told_with_its_words() -> None:
    refusals = Refusals()
    refusals.read([ended(4, Reason.EXCEPTION), ended(5, Reason.OUTPUT_EXISTS)])
    found = refusals.take(5)
    assert {index: (type(why), str(why).splitlines()[0]) for index, why in found.items()} == {
        5: (KeyExists, "the output key 'out' exists already")
    }
    assert refusals.take(5) == refusals.take() == {}


def test_the_latest_are_kept() -> None:
    refusals, why = Refusals(), KeyExists("taken")
    refusals.add(dict.fromkeys(range(30_000), why))
    assert list(refusals.take()) == list(range(10_000, 30_000))
