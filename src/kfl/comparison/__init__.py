"""Anything beside anything: labelled experiments on the same seeds, in one table and one plot."""

from kfl.comparison._compare import Comparison, compare
from kfl.comparison._folder import COMPARISON, read_entries
from kfl.comparison.tables import columns, sentences, title_of

__all__ = [
    "COMPARISON",
    "Comparison",
    "columns",
    "compare",
    "read_entries",
    "sentences",
    "title_of",
]
