"""What kfl is made of: the lock agrees with the tested versions, and the vendored script is the one it says it is."""

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLOTLY_VERSION = "4.1.1"
PLOTLY_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
"""Of plotly.js-cartesian-dist-min in this version; a new one is a change of these two lines."""


def test_the_vendored_plotly_is_the_one_we_looked_at():
    content = (files("kfl.report") / "assets" / "plotly-cartesian.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == PLOTLY_SHA256
    assert f"v{PLOTLY_VERSION}".encode() in content[:200]


def test_the_lock_has_the_tested_versions_with_hashes_and_names_no_place():
    lock = ROOT / "requirements.lock"
    if not lock.exists():
        pytest.skip("not a clone of the repository")
    text = lock.read_text()
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+) ", text, re.M))
    tested = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    plain = {re.sub("[-_.]+", "-", name).lower(): version for name, version in tested.items() if name != "torch"}
    assert locked == plain, "make lock writes it anew"
    blocks = re.split(r"^(?=\S)", text, flags=re.M)[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)
    assert not re.search(r"://|--index|--find-links|@ ", text)
