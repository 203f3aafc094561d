"""The hand-written network for cohorts on a GPU: forward, backward and momentum, with convolutions as CUDA kernels.

Without it the paper's CNN takes 3 to 5 times as long on an H200 (docs/engine.md): the general path leaves convolutions
to cuDNN. Once that path has these kernels, this package can go.
"""
