"""`kfl playground` as a user starts and ends it."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from kfl.cli.main import main

# A shell starts background jobs with SIGINT ignored; a terminal does not.
START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from kfl.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(end):
    words = [sys.executable, "-c", START, "playground", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", process.stdout.readline())[0]
            with urllib.request.urlopen(url + "?devices=5&rounds=2", timeout=30) as reply:
                assert b"kfl playground" in reply.read()
            os.kill(process.pid, end)
            told, wrong = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, wrong) == (0, "")
    assert "The playground is closed." in told


def test_a_port_that_is_taken_is_one_sentence(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["playground", "--port", str(port)]) == 2
    assert f"port is {port}, but must be a free port" in capsys.readouterr().err
    assert main(["playground", "--port", "70000"]) == 2
    assert "from 0 to 65535" in capsys.readouterr().err
