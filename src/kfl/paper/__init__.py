"""The paper, figure by figure: experiments, tables, plots and the verdict on every claim.

>>> figure = FIGURES["fig2a"]()
>>> figure.title, len(list(runs(figure, FULL)))
('MNIST, equal models, m = 2', 110)
"""

from kfl.paper.claims import claims
from kfl.paper.figures import FIGURES, GROUPS, chosen
from kfl.paper.judging import Claim, Finding, judge
from kfl.paper.results import Store
from kfl.paper.setting import FULL, QUICK, Figure, Line, Panel, Scale, runs
from kfl.paper.verdict import Verdict

__all__ = [
    "FIGURES",
    "FULL",
    "GROUPS",
    "QUICK",
    "Claim",
    "Figure",
    "Finding",
    "Line",
    "Panel",
    "Scale",
    "Store",
    "Verdict",
    "chosen",
    "claims",
    "judge",
    "runs",
]
