"""Problems as JSON texts, and what is said of one that cannot be read."""

import json

import pytest

from kfl.core.errors import KflError
from kfl.scheduling import read_problem


def device(**fields):
    """A device that can be scheduled, with other fields."""
    return {"id": "a", "gain": 1e-9, "payload_bits": 1e5, **fields}


def of(*devices, **top):
    """A problem of these devices, or of one."""
    return json.dumps({**top, "devices": list(devices) or [device()]})


def said(text, **changes):
    """The sentence that refuses a text."""
    with pytest.raises(KflError) as refused:
        read_problem(text, **changes)
    return str(refused.value)
