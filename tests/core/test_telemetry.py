"""What tools would send home by themselves is off in this process and in children, and on where the user says so."""

import os
import subprocess
import sys

import pytest

from kfl.core.telemetry import SILENCED, hush

pytest.importorskip("flwr")
CI = ("CI", "PYTEST_CURRENT_TEST", "GITHUB_ACTIONS")
"""MLflow is silent where it believes to be tested."""


def bare(**more):
    """An environment in which nothing is set about telemetry."""
    unsaid = {each.variable for each in SILENCED} | set(CI)
    return {**{key: value for key, value in os.environ.items() if key not in unsaid}, **more}


def told(code, **more):
    words = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(words, env=bare(**more), capture_output=True, text=True, check=True).stdout.split()


def test_flowers_programs_find_it_off_and_a_users_own_word_is_kept(tmp_path):
    from kfl_fleet._flower.app_folder import flower_environment

    found = flower_environment(tmp_path, {})
    assert {name: found[name] for name in hush({})} == hush({})
    assert flower_environment(tmp_path, {"FLWR_TELEMETRY_ENABLED": "1"})["FLWR_TELEMETRY_ENABLED"] == "1"


def test_flower_itself_is_silent_when_we_import_it():
    code = "import kfl_fleet._flower.names, flwr.supercore.telemetry as t; print(t.FLWR_TELEMETRY_ENABLED)"
    assert told(code) == ["0"]
    assert told(code, FLWR_TELEMETRY_ENABLED="1") == ["1"]


def test_trackers_are_silent_when_we_make_them():
    pytest.importorskip("mlflow.telemetry", reason="before MLflow 3 there is none")
    pytest.importorskip("wandb")
    code = (
        "from kfl.report.trackers import make_trackers; make_trackers(['mlflow', 'wandb'])\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled; from wandb.env import error_reporting_enabled\n"
        "print(is_telemetry_disabled(), error_reporting_enabled())"
    )
    assert told(code) == ["True", "False"]
    assert told(code, MLFLOW_DISABLE_TELEMETRY="false", WANDB_ERROR_REPORTING="true") == ["False", "True"]


def test_a_devices_worker_inherits_it():
    """The device function may import anything."""
    code = (
        'import os, kfl_fleet.device.node as node; node.main([\'{"superlink": "nowhere", "root_certificates": "none", '
        '"key": "none", "number": 0, "state": "."}\']); print(os.environ[\'WANDB_ERROR_REPORTING\'])'
    )
    assert told(code) == ["false"]
