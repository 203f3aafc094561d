"""One thread per test process: the models are small, and processes run side by side."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts its background jobs deaf to Ctrl-C, and their children inherit that. The commands that the tests
# interrupt must hear it, however the tests themselves were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
