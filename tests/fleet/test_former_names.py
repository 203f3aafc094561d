"""Projects of earlier versions name `kfl.deploy`: its modules still work for one release, and say where they went."""

import importlib
import sys

import pytest

import kfl_fleet
from kfl.cli import main as command
from kfl.cli.main import main

FORMER = {
    "kfl.deploy:DeviceSetup": "kfl_fleet:DeviceSetup",
    "kfl.deploy.client:app": "kfl_fleet.device.client:app",
    "kfl.deploy.demo:device": "kfl_fleet.device.simulated:device",
    "kfl.deploy.local_fleet:LocalFleet": "kfl_fleet.local.fleet:LocalFleet",
    "kfl.deploy.secure:ServerSum": "kfl_fleet.secure:ServerSum",
    "kfl.deploy.server:app": "kfl_fleet.server.app:app",
    "kfl.deploy.starter:write_project": "kfl_fleet.project:write_project",
    "kfl.deploy.status:read_status": "kfl_fleet.server.status:read_status",
}


def resolved(address):
    module, name = address.split(":")
    return getattr(importlib.import_module(module), name)


def test_former_names_find_the_same_objects_with_a_warning():
    for former, now in FORMER.items():
        importlib.import_module(now.split(":")[0])
        module = former.split(":")[0]
        for loaded in [name for name in sys.modules if name == module]:
            del sys.modules[loaded]
        with pytest.warns(DeprecationWarning, match=f"now kfl_fleet: take {now.split(':')[1]} from"):
            assert resolved(former) is resolved(now)
    assert set(kfl_fleet.__all__) >= {"DeviceSetup", "ServerConfig"}


def test_deploy_names_the_package_when_it_is_not_installed(capsys, monkeypatch):
    monkeypatch.setattr(command, "entry_points", lambda group: [])
    assert main(["deploy", "up"]) == 2
    assert capsys.readouterr().err == "kfl: kfl deploy is in the package kfl-fleet: pip install 'kfl[fleet]'.\n"
