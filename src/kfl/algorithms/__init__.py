"""How devices learn: each algorithm is one module and one line here."""

from kfl.algorithms.base import Algorithm, Cost, Rejection, Upload
from kfl.algorithms.kfl import Kfl
from kfl.algorithms.local import Local

ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in (Kfl, Local)}
"""Algorithms by the word that selects them."""

__all__ = ["ALGORITHMS", "Algorithm", "Cost", "Kfl", "Local", "Rejection", "Upload"]
