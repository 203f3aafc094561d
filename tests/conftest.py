"""One thread per test process: the models are small, and processes run side by side."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
