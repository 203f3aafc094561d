"""The hand-written network for cohorts on a GPU: forward, backward and momentum, with convolutions as CUDA kernels.

It waits for its gate: where `benchmarks.rounds --device cuda --without fused` takes at most 1.5 times as long, it goes.
"""
