"""The files of deploy/: valid by the schemas of Kubernetes and systemd, and of this version."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from docs.pages import blocks
from docs.test_examples import parse
from notifyq.cli.arguments import with_dsn
from notifyq.cli.options import duration
from notifyq.config import parse_size
from support.database import ROOT, Connection

DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs/operations/kubernetes.md"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/shop/bin/notifyq"
_SECONDS = re.compile(r"^TimeoutStopSec=(\d+)$", re.MULTILINE)


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, document


OBJECTS = {(it["kind"], it["metadata"]["name"]): it for _, it in documents() if "metadata" in it}
_RUN = {"Deployment", "Job"}
[KUSTOMIZATION] = [it for _, it in documents() if it["kind"] == "Kustomization"]


def containers() -> list[dict[str, Any]]:
    specs = [it["spec"]["template"]["spec"] for (kind, _), it in OBJECTS.items() if kind in _RUN]
    return [it for spec in specs for it in [*spec.get("initContainers", ()), *spec["containers"]]]


def parsed(args: list[str]) -> None:
    parse(with_dsn(args))


@pytest.mark.parametrize(
    "document",
    [it for it in OBJECTS.values() if "keda.sh" not in it["apiVersion"]],
    ids=lambda it: f"{it['kind']}-{it['metadata']['name']}",
)
def test_an_object_fits_the_schema_of_kubernetes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


def test_the_schema_refuses_what_is_wrong() -> None:
    broken = {**OBJECTS["PodDisruptionBudget", "notifyq-worker"], "spec": {"maxUnavailable": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.31", strict=True)


def test_all_files_are_resources() -> None:
    files = {name for name, it in documents() if it["kind"] != "Kustomization"}
    assert set(KUSTOMIZATION["resources"]) == files


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kustomize_builds_them() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, check=True
    ).stdout
    found = {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(built)}
    assert found.keys() == OBJECTS.keys()
    images = set(re.findall(r"image: (\S+)", built))
    assert images == {"registry.example/shop-worker:1"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kustomize_builds_the_overlay_of_the_page(tmp_path: Path) -> None:
    [block] = blocks(PAGE, "yaml")
    (tmp_path / "kustomization.yaml").write_text(block.text)
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "notifyq")
    built = subprocess.run(
        ["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True
    ).stdout
    found = {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(built)}
    assert {it["metadata"]["namespace"] for it in found.values()} == {"shop"}
    [worker] = found["Deployment", "notifyq-worker"]["spec"]["template"]["spec"]["containers"]
    assert worker["image"] == "registry.example/shop-worker:2"
    assert worker["args"][:2] == ["worker", "billing.work:app"]


@pytest.mark.parametrize("container", containers(), ids=lambda it: it["name"])
def test_the_arguments_of_a_container_exist(container: dict[str, Any]) -> None:
    shell, _, script = container.get("command", ("", "", ""))
    lines = script.split(" || ") if shell else [shlex.join(["notifyq", *container["args"]])]
    for line in lines:
        program, *args = shlex.split(line)
        assert program == "notifyq"
        parsed(args)


def test_a_worker_has_the_time_and_the_memory_that_it_uses() -> None:
    spec = OBJECTS["Deployment", "notifyq-worker"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    given = dict(it.removeprefix("--").split("=") for it in container["args"][2:])
    assert spec["terminationGracePeriodSeconds"] > duration(given["grace"]).total_seconds() + 5
    limit = parse_size(container["resources"]["limits"]["memory"].removesuffix("i"))
    assert parse_size(given["max-memory"]) < limit
    assert container["ports"] == [{"name": "metrics", "containerPort": int(given["metrics-port"])}]
    probes = [container[f"{it}Probe"] for it in ("startup", "readiness", "liveness")]
    assert [it["httpGet"]["path"] for it in probes] == ["/readyz", "/readyz", "/healthz"]
    assert all(it["timeoutSeconds"] > 5 for it in probes)


def test_names_meet() -> None:
    labels = OBJECTS["Deployment", "notifyq-worker"]["spec"]["template"]["metadata"]["labels"]
    budget = OBJECTS["PodDisruptionBudget", "notifyq-worker"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    dashboard = OBJECTS["Deployment", "notifyq-dashboard"]["spec"]["template"]["metadata"]["labels"]
    assert OBJECTS["Service", "notifyq-dashboard"]["spec"]["selector"] == dashboard
    scaled = OBJECTS["ScaledObject", "notifyq-worker"]["spec"]
    assert ("Deployment", scaled["scaleTargetRef"]["name"]) in OBJECTS
    [trigger] = scaled["triggers"]
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in OBJECTS


def test_the_page_makes_each_secret() -> None:
    page = PAGE.read_text(encoding="utf-8")
    references = [
        it["valueFrom"]["secretKeyRef"] for container in containers() for it in container["env"]
    ]
    references += OBJECTS["TriggerAuthentication", "notifyq-reader"]["spec"]["secretTargetRef"]
    for reference in references:
        made = re.search(rf"create secret generic {reference['name']} (.*)", page)
        assert made is not None, reference
        # Not as a literal: every user of the machine sees the arguments of a process.
        assert made[1].startswith("--from-env-file=")
        assert f"`{reference['key']}=" in page


async def test_the_number_of_workers_follows_the_backlog(connection: Connection) -> None:
    [trigger] = OBJECTS["ScaledObject", "notifyq-worker"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert await connection.fetchval(query) == 0
    await connection.execute("select messages.publish('default', '1') from generate_series(1, 3)")
    await connection.execute("set role notifyq_reader")
    assert await connection.fetchval(query) == 3


@pytest.mark.parametrize("unit", UNITS, ids=lambda it: it.stem)
def test_the_command_of_a_unit_exists(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    [command] = re.findall(rf"^ExecStart={PROGRAM} (.*)$", text, re.MULTILINE)
    args = shlex.split(command)
    parsed(args)
    if "--grace" in args:
        [seconds] = map(int, _SECONDS.findall(text))
        assert seconds > duration(args[args.index("--grace") + 1]).total_seconds() + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda it: it.stem)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    there = tmp_path / unit.name  # with a program that is there
    there.write_text(unit.read_text(encoding="utf-8").replace(PROGRAM, sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(there)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
