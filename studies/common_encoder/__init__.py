"""Does knowledge on a common encoder share? In closed form, in one upload; rivals and twins stand on it too.

python -m studies.common_encoder heads       all conditions, seeds 0 to 4; about an hour on two cores
python -m studies.common_encoder curves      accuracy against bits, reports, joules and ε
python -m studies.common_encoder networks    methods that train, on the same encoder
python -m studies.common_encoder table       tables and pictures of what was run
"""
