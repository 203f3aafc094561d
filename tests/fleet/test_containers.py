"""Images, compose files and Kubernetes manifests of a new project, each held to a real linter or schema.

No Docker engine and no cluster is needed, and none is there in our own machines: nothing here starts a container. What
runs inside them, the project's own scripts, is started for real.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from kfl_fleet.local.processes import free_ports
from kfl_fleet.project.new import TORCH
from kfl_fleet.project.project import make_missing, server_names
from tests.fleet.conftest import installed_project

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
KUBERNETES = ("1.28", "1.32")
"""The oldest version that numbers pods, and a current one."""


def ran(*words, **options):
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, **options)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return installed_project(tmp_path_factory.mktemp("containers") / "my-fleet", devices=5)


@pytest.fixture(scope="module")
def compose(project):
    return yaml.safe_load((project.folder / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def manifests():
    files = sorted((ROOT / "examples" / "fleet" / "kubernetes").glob("*.yaml"))
    return [each for path in files for each in yaml.safe_load_all(path.read_text())]


# ── Images ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which", ["ours", "project"])
def test_hadolint_has_nothing_to_say(project, which):
    path = ROOT / "Dockerfile" if which == "ours" else project.folder / "Dockerfile"
    done = ran(PROGRAMS / "hadolint", "--no-color", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("which", ["ours", "project"])
def test_an_image_holds_what_it_needs_and_no_secret(project, which):
    folder = ROOT if which == "ours" else project.folder
    text = (folder / "Dockerfile").read_text()
    copied = [word for words in re.findall(r"^COPY (?!--from)(.*)$", text, re.M) for word in words.split()[:-1]]
    assert copied
    for name in copied:
        assert (folder / name).exists(), name
    ignored = (folder / ".dockerignore").read_text().splitlines()
    assert ignored[[line[:1] for line in ignored].index("*")] == "*", "what is not asked for stays out"
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    assert {name.rstrip("/") for name in copied} == allowed
    assert not allowed & {"keys", "run", "local", "flower", "state"}
    assert re.findall(r"^USER (.*)$", text, re.M) == ["10001:10001"]
    assert "download.pytorch.org/whl/cpu" in text


def test_the_sources_in_our_image_make_the_whole_package(tmp_path):
    """What the Dockerfile copies is enough to build from, and a new project's files are in the package."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    done = ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    template = ROOT / "src" / "kfl_fleet" / "project" / "template"
    written = {f"kfl_fleet/project/template/{path.relative_to(template)}" for path in template.rglob("*.in")}
    assert len(written) > 25
    assert written <= names


def test_images_have_the_pytorch_that_the_tests_ran_with():
    assert f"torch=={TORCH}+cpu" in (ROOT / "constraints.txt").read_text().splitlines()


def test_shellcheck_has_nothing_to_say(project):
    scripts = sorted(project.folder.glob("scripts/*.sh"))
    done = ran(PROGRAMS / "shellcheck", "-x", *scripts, cwd=project.folder)
    assert len(scripts) >= 8
    assert done.returncode == 0, done.stdout


# ── What runs inside ─────────────────────────────────────────────────────────


def test_a_container_is_well_when_its_superlink_answers(project, tmp_path):
    make_missing(project)
    (port,) = free_ports(1)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "SUPERLINK_PORT": str(port), "DATABASE": f"{tmp_path}/x.db"}
    script, healthy = project.folder / "scripts" / "container.sh", project.folder / "scripts" / "healthy.sh"
    with (tmp_path / "log").open("wb") as log:
        superlink = subprocess.Popen([script, "superlink"], env=environment, stdout=log, stderr=log)
    try:
        until, seen = time.monotonic() + 60, []
        while time.monotonic() < until and superlink.poll() is None:
            seen.append(ran(healthy, env=environment).returncode)
            if seen[-1] == 0:
                break
            time.sleep(0.2)
        assert seen[-1] == 0, (tmp_path / "log").read_text()
        assert seen[0] != 0, "it was not well before it listened"
        assert (tmp_path / "x.db").exists()
    finally:
        superlink.terminate()
        assert superlink.wait(30) is not None
    assert ran(healthy, env=environment).returncode != 0


def test_a_device_is_well_while_the_server_hears_of_it(project, tmp_path):
    (tmp_path / "role").write_text("device")
    online = tmp_path / "online"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "KFL_ONLINE_FILE": str(online)}
    healthy = project.folder / "scripts" / "healthy.sh"
    assert ran(healthy, env=environment).returncode != 0
    online.touch()
    assert ran(healthy, env=environment).returncode == 0
    os.utime(online, (time.time() - 600,) * 2)
    assert ran(healthy, env=environment).returncode != 0


def test_a_role_that_does_not_exist_is_a_sentence(project, tmp_path):
    done = ran(project.folder / "scripts" / "container.sh", "miner", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.startswith("miner is no role")
    assert done.stderr.count("\n") == 1


def test_among_containers_the_certificate_names_superlink_and_proxy(project, monkeypatch):
    assert server_names(project) == ["fleet.test"]
    monkeypatch.setenv("SUPERLINK_HOST", "superlink")
    assert server_names(project) == ["fleet.test", "superlink", "proxy"]
    assert project.address == "superlink:8000"


# ── compose ──────────────────────────────────────────────────────────────────


def test_compose_files_fit_the_compose_specification(project):
    names = [project.folder / name for name in ("compose.yaml", "compose.device.yaml")]
    done = ran(PROGRAMS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *names)
    assert done.returncode == 0, done.stdout


def test_devices_reach_the_proxy_and_nothing_else(compose):
    networks = {name: set(service["networks"]) for name, service in compose["services"].items()}
    devices = {name for name in networks if name.startswith("device-")}
    assert devices == {"device-0", "device-1", "device-2"}, "three to try, however large the fleet"
    assert {name for name in networks if "fleet" in networks[name]} == devices | {"proxy"}
    assert all(networks[name] == {"fleet"} for name in devices)
    assert networks["superlink"] == {"server"}
    assert compose["networks"]["server"]["internal"] is True
    open_ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert open_ports.pop("proxy") == ["8443:8443"]
    assert all(port.startswith("127.0.0.1:") for ports in open_ports.values() for port in ports)


def test_every_container_is_locked_down_and_comes_back(compose):
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == {"run": "on-failure", "keys": "no"}.get(name, "unless-stopped"), name
        if "kfl" not in str(service["image"]) and not service["image"].startswith("${KFL_IMAGE"):
            assert "test" in service["healthcheck"], name
            assert not service["image"].endswith(":latest")
        for volume in service.get("volumes", []):
            source, _, mode = volume.partition(":")
            if source.startswith("./"):
                assert mode.endswith(":ro") or name == "keys", (name, volume)


def test_each_device_gets_its_own_key_and_every_secret_is_a_file(compose, project):
    for name, service in compose["services"].items():
        given = {one if isinstance(one, str) else one["source"] for one in service.get("secrets", [])}
        if name.startswith("device-"):
            assert given == {"ca.crt", name}
        assert given <= set(compose["secrets"])
    assert all(secret["file"] == f"keys/{name}" for name, secret in compose["secrets"].items())
    declared = set(compose["volumes"])
    used = {v.split(":")[0] for s in compose["services"].values() for v in s.get("volumes", []) if v[0] not in "./"}
    assert used == declared


@pytest.mark.parametrize(
    ("service", "file", "before", "after"),
    [
        ("proxy", "proxy/nginx.conf", "https://127.0.0.1:8000", "https://superlink:8000"),
        ("prometheus", "watch/prometheus.yml", "127.0.0.1:9464", "superexec:9464"),
    ],
)
def test_containers_use_the_projects_own_files_under_other_names(compose, project, service, file, before, after):
    (command,) = compose["services"][service]["command"]
    (expression,) = re.findall(r"sed '([^']*)'", command)
    text = (project.folder / file).read_text()
    assert before in text
    changed = ran("sed", expression, project.folder / file).stdout
    assert changed == text.replace(before, after)


# ── Kubernetes ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_fit_the_schemas_of_kubernetes(manifests, version):
    kinds = []
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)
        kinds.append(manifest["kind"])
    assert sorted(set(kinds)) == ["Namespace", "NetworkPolicy", "Service", "StatefulSet"]
    broken = json.loads(json.dumps(next(m for m in manifests if m["kind"] == "StatefulSet")))
    broken["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_pods_keep_the_restricted_standard(manifests):
    sets = {m["metadata"]["name"]: m["spec"]["template"]["spec"] for m in manifests if m["kind"] == "StatefulSet"}
    for pod in sets.values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= set(container["resources"])
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claims = {"data", "state"}
            assert mounted <= {volume["name"] for volume in pod["volumes"]} | claims
    names = {container["name"] for container in sets["server"]["containers"]}
    assert names == {"superlink", "superexec", "run", "proxy"}
    ours = [c for pod in sets.values() for c in pod["containers"] if c["name"] in ("superlink", "superexec", "device")]
    assert all(container["startupProbe"]["exec"]["command"] == ["scripts/healthy.sh"] for container in ours)


def test_only_the_proxys_port_is_reached_from_everywhere(manifests):
    policies = {m["metadata"]["name"]: m["spec"] for m in manifests if m["kind"] == "NetworkPolicy"}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    from_everywhere = [rule for rule in policies["server"]["ingress"] if "from" not in rule]
    assert [port["port"] for rule in from_everywhere for port in rule["ports"]] == [8443]
    services = [m for m in manifests if m["kind"] == "Service" and m["spec"].get("clusterIP") != "None"]
    assert [[port["port"] for port in service["spec"]["ports"]] for service in services] == [[8443]]
    reached = [port["port"] for rule in policies["devices"]["egress"] for port in rule["ports"]]
    assert sorted(set(reached)) == [53, 8443]
