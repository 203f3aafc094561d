"""The workloads of `benchmarks.engine` in other people's simulators."""
