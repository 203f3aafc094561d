"""One thread per test process, one hypothesis profile, and tests that share a fixture on one worker."""

import os
import signal

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts its background jobs deaf to Ctrl-C, and their children inherit that. The commands that the tests
# interrupt must hear it, however the tests themselves were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a failure is a change of the code, never of the draw. Slow machines are no failure.
settings.register_profile("kfl", derandomize=True, deadline=None, database=None)
settings.load_profile("kfl")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file that share a module-scoped fixture on one worker, so that it is made once."""
    for item in items:
        shared = getattr(item, "_fixtureinfo", None)
        definitions = shared.name2fixturedefs.values() if shared else ()
        if any(one.scope == "module" for chain in definitions for one in chain) and not list(
            item.iter_markers("xdist_group")
        ):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
