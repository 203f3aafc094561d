"""The hand-written network for cohorts on a GPU: forward, backward and momentum, with convolutions as CUDA kernels.

It waits for its gate: where `benchmarks.rounds --device cuda` shows the general path within 1.5 times of it, it goes.
"""
