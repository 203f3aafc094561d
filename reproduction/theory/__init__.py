"""What the paper proves, evaluated: Theorem 1 as printed, its constants estimated, and Proposition 2 for a run.

>>> from reproduction.theory.theorem1 import Constants, equal_counts, pattern_schedule, theorem1
>>> constants = Constants(
...     body_smoothness=2.0, head_smoothness=1.0, cross_sensitivity=0.5, body_gradient=1.0, head_gradient=1.0,
...     feature_gradient=2.0, feature_norm=2.0, body_rate=0.01, head_rate=0.02, local_steps=5,
...     knowledge_weight=1 / 32, initial_gap=2.3,
... )
>>> counts = equal_counts(devices=100, classes=10, classes_per_device=2, samples=600)
>>> late, early = (theorem1(constants, counts, pattern_schedule(name, 200, 100)) for name in ("ascend", "descend"))
>>> late.total < early.total  # the bound as printed favors late rounds
True
"""
