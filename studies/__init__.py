"""Programs that produce the results under docs/results and in the docs: `python -m studies.<name>`.

Speed and memory, as ratios measured in one run, are the business of `benchmarks`.
"""
