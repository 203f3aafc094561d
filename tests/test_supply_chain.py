"""The vendored script is the release that it says it is."""

import hashlib
from importlib.resources import files

PLOTLY_VERSION = "4.1.1"
PLOTLY_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
"""Of plotly.js-cartesian-dist-min in this version; a new one is a change of these two lines."""


def test_the_vendored_plotly_is_the_one_we_looked_at():
    content = (files("kfl.report") / "assets" / "plotly-cartesian.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == PLOTLY_SHA256
    assert f"v{PLOTLY_VERSION}".encode() in content[:200]
