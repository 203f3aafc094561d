"""`kfl schedule --play` and `kfl report --live` as a user starts and ends them."""

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
    words = [sys.executable, "-c", START, "schedule", "--play", "--port", "0"]
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
        assert main(["schedule", "--play", "--port", str(port)]) == 2
    assert f"port is {port}, but must be a free port" in capsys.readouterr().err
    assert main(["schedule", "--play", "--port", "70000"]) == 2
    assert "from 0 to 65535" in capsys.readouterr().err


def test_words_that_do_not_go_together_are_one_sentence(capsys, tmp_path):
    run = str(tmp_path)
    for words, sentence in (
        (["schedule", "--port", "0"], "left out without --play"),
        (["schedule", "--play", "p.json"], "left out with --play"),
        (["report", run, "--port", "0"], "left out without --live"),
        (["report", run, run, "--live"], "one folder with --live"),
        (["report", run, "--live", "--out", "x.html"], "left out with --live"),
        (["watch", run, "--port", "70000"], "kfl watch RUN is now kfl report RUN --live."),
        (["playground", "--port", "70000"], "kfl playground is now kfl schedule --play."),
    ):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
