"""The paper, again: its figures and claims, its bounds, the twin study, and studies of energy. Not part of the wheel.

    python -m reproduction figures fig2a | claims | bound RUN | twins | energy NAME
    python -m reproduction.known_settings --help      and the other modules that have a `main`

>>> from reproduction.figures import FIGURES
>>> from reproduction.setting import FULL, runs
>>> figure = FIGURES["fig2a"]()
>>> figure.title, len(list(runs(figure, FULL)))
('MNIST, equal models, m = 2', 110)
"""
