"""Filters of warnings on their way to a worker, and on from there: its calls make calls, too."""

from __future__ import annotations

import warnings

from rmgr.client.specs import filters_of_warnings
from rmgr.runner import filters


class Mine(UserWarning):
    """A category of the program."""


def test_a_worker_passes_on_what_it_was_given() -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error", Mine)
        warnings.filterwarnings("ignore", message="told", category=DeprecationWarning, module="here", lineno=7)
        given = filters.current()
        filters.apply(given)
        assert filters.current() == given
        filters.apply(filters.current())
        assert [kind for kind in (Mine, UserWarning) if issubclass(kind, warnings.filters[1][2])] == [Mine]


def test_a_program_that_ignores_nothing_is_not_taken_for_one_with_the_usual_filters() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()
        given = filters_of_warnings()
        filters.apply(filters.USUAL)
        warnings.warn("outdated", DeprecationWarning, stacklevel=1)
        assert not shown
        filters.apply(given)
        warnings.warn("outdated", DeprecationWarning, stacklevel=1)
    assert len(shown) == 1
