"""Does knowledge on a common encoder share? Everything in closed form, in one upload; rivals and twins on it too.

python -m studies.common_encoder run       all conditions, seeds 0 to 4; about an hour on two cores
python -m studies.common_encoder table     tables and pictures of what was run
"""
