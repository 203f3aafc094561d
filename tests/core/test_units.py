import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfl.core.units import db_to_linear, dbm_to_watt


def test_known_values() -> None:
    assert dbm_to_watt(30) == 1.0
    assert dbm_to_watt(23) == pytest.approx(0.19952623149688797)
    assert dbm_to_watt(-174) == pytest.approx(3.9810717055349565e-21)
    assert db_to_linear(3) == pytest.approx(1.9952623149688795)


@given(st.floats(-300, 300))
def test_there_and_back(value: float) -> None:
    assert 10 * math.log10(db_to_linear(value)) == pytest.approx(value, abs=1e-9)
    assert 10 * math.log10(dbm_to_watt(value)) + 30 == pytest.approx(value, abs=1e-9)
