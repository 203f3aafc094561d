"""A program of a fleet ends at the first signal, and at the latest at the second one."""

import logging
import signal
import subprocess
import sys

import pytest

from kfl_fleet.retry import Clock, Retry
from kfl_fleet.stopping import SIGNALS, StopRequested, stopping_on_signals


class SignalingStream:
    """Gets a signal in the middle of a write."""

    def __init__(self, number):
        self.number = number

    def write(self, _):
        signal.raise_signal(self.number)

    def flush(self):
        pass


def test_stop_passes_through_a_log_write():
    for number in SIGNALS:
        log = logging.Logger("stopping")
        log.addHandler(logging.StreamHandler(SignalingStream(number)))
        before = signal.getsignal(number)
        with pytest.raises(StopRequested), stopping_on_signals():
            log.warning("what is lost")
        assert signal.getsignal(number) is before


def test_second_signal_ends_a_program_whose_cleanup_hangs():
    program = (
        "import time\n"
        "from kfl_fleet.stopping import stopping_on_signals\n"
        "with stopping_on_signals():\n"
        "    try:\n"
        "        print('ready', flush=True); time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaning', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        for line in ("ready\n", "cleaning\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


def test_retry_grows_to_its_limit_and_ends_at_its_time():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    clock = Clock(lambda: now[0], sleep)
    attempts = list(Retry(1.0, factor=3.0, most_s=5.0).pauses(12.0, clock))
    assert slept == [1.0, 3.0, 5.0, 3.0] and attempts == [0, 1, 2, 3, 4]
    slept.clear()
    assert list(Retry(1.0).pauses(0.0, clock)) == [0] and not slept
    jittered = Retry(1.0, jitter=0.5).pauses(now[0] + 20.0, clock)
    assert len(list(jittered)) > 10 and len({*slept}) > 5 and all(0.5 <= pause <= 1.5 for pause in slept[:-1])
