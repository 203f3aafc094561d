"""Does it share? Methods that upload something beside twins that upload nothing, in the same conditions.

>>> import tempfile
>>> from pathlib import Path
>>> from kfl import Experiment
>>> from kfl.sharing import Condition, Study, answers, chosen
>>> tiny = Experiment(devices=10, rounds=2, widths=(8,), samples_per_device=20)
>>> study = Study([Condition("digits", "Digits", tiny)], chosen(["kfl", "local"]), seeds=(0, 1))
>>> answer, = answers(study, study.play(Path(tempfile.mkdtemp())))
>>> answer.best_twin, answer["kfl"].bits_up
('local', 20480.0)
"""

from kfl.sharing.answer import Answer, Standing, answers
from kfl.sharing.conditions import Condition
from kfl.sharing.methods import LABELS, METHODS, STANDARD, TWINS, chosen
from kfl.sharing.study import Study, unfit
from kfl.sharing.tables import columns, page, sentences

__all__ = [
    "LABELS",
    "METHODS",
    "STANDARD",
    "TWINS",
    "Answer",
    "Condition",
    "Standing",
    "Study",
    "answers",
    "chosen",
    "columns",
    "page",
    "sentences",
    "unfit",
]
