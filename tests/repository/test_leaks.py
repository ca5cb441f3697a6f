"""What a test leaves open is blamed on its module."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parents[1] / "conftest.py"

LEAVING = """
import socket

def test_that_leaves_a_socket_open():
    ring = [socket.socket()]
    ring.append(ring)

def test_that_is_the_last_of_its_module():
    pass
"""

CLOSING = """
import gc

def test_that_is_the_next_to_collect_garbage():
    gc.collect()
"""


def test_what_is_left_open_fails_the_module_that_left_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function")
    pytester.makepyfile(test_first=LEAVING, test_second=CLOSING)

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["*ResourceWarning: unclosed <socket.socket*", "ERROR test_first.py::*last_of_its_module*"]
    )
