"""What a program has set of its interpreter, on its way to a worker, and on from there: its calls make calls, too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.places import ROOT

_FRESH = "from rmgr.runner import settings\nimport rmgr\nassert settings.current() == (), settings.current()\n"
_ALL = "import csv, decimal, locale, logging, numpy, socket, sys\n"
_GIVEN = {
    "recursion": "sys.setrecursionlimit(4321)",
    "int digits": "sys.set_int_max_str_digits(0)",
    "decimal": "decimal.setcontext(decimal.Context(60, decimal.ROUND_UP, -99, 99, 0, 1, [], [decimal.Inexact]))",
    "csv": "csv.field_size_limit(10)",
    "socket": "socket.setdefaulttimeout(0.5)",
    "locale": "locale.setlocale(locale.LC_NUMERIC, 'C.UTF-8')",
    "numpy": "numpy.seterr(all='raise'); numpy.set_printoptions(precision=3, nanstr='no\\0number')",
    "warnings": "logging.captureWarnings(True)",
    "logging": "logging.disable(10); logging.basicConfig(level=20, format='$name', style='$', datefmt='%H', stream=sys.stdout)",
}


def run(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", _GIVEN)
def test_a_worker_has_what_it_was_given_and_passes_it_on(name: str) -> None:
    told = run(f"{_FRESH}{_ALL}assert settings.current() == ()\n{_GIVEN[name]}\nprint(settings.current())")
    assert eval(told)[0][0] == {"warnings": "logging"}.get(name, name)
    assert run(f"{_FRESH}settings.apply({told.strip()})\n{_ALL}print(settings.current())") == told


def test_what_a_node_does_not_have_is_left() -> None:
    given = (("locale", '"xx_XX.UTF-8"'), ("of a newer client", "1"), ("recursion", '"many"'), ("csv", "77"))
    assert run(f"{_FRESH}settings.apply({given})\nimport csv\nprint(csv.field_size_limit())") == "77\n"


def test_handlers_that_do_not_write_to_a_stream_of_the_process_stay() -> None:
    text = """
import io, logging, logging.handlers, os, sys
root = logging.getLogger()
root.addHandler(logging.FileHandler(os.devnull))
root.addHandler(logging.StreamHandler(io.StringIO()))
root.addHandler(logging.NullHandler())
filtered = logging.StreamHandler()
filtered.addFilter(lambda record: False)
root.addHandler(filtered)
assert settings.current() == (), settings.current()
for n in range(1000):
    logging.getLogger(f"logger {n}").setLevel(10)
root.setLevel(10)
(_, text), = settings.current()
assert len(text) < 2048 and text.startswith('[0, false, [["", 10, true, false, []], ["logger 0", 10,'), text
root.addHandler(logging.StreamHandler())
root.handlers[-1].setFormatter(logging.Formatter("%(name)s" * 300))
(_, text), = settings.current()
assert len(text) < 2048 and text.startswith('[0, false, [["logger 0", 10,'), text
"""
    run(_FRESH + text)


def test_a_style_of_the_programs_own_becomes_the_usual_one_and_the_rest_travels() -> None:
    text = """
import logging, sys
class Style(logging.PercentStyle): pass
logging.basicConfig(level=10, stream=sys.stdout)
vars(logging.root.handlers[0].formatter)['_style'] = Style("%(message)s!")
(_, text), = settings.current()
assert text == '[0, false, [["", 10, true, false, [["stdout", 0, "%(levelname)s:%(name)s:%(message)s", null, "%"]]]]]', text
"""
    run(_FRESH + text)
