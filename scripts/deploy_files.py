"""Reads the files in deploy/ for check_deploy.py."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

BINARY = sys.argv[1]
DEPLOY = Path("deploy")
KUBERNETES = DEPLOY / "kubernetes"
# Values, examples, alternatives, and objects that need custom resource definitions: they are not
# part of the kustomization, and some are not Kubernetes objects.
NOT_APPLIED = {
    "autoscaler-checks.yaml", "envoy.yaml", "kustomization.yaml", "prometheus-adapter.yaml", "redis-exporter.yaml", "secret.example.yaml", "servicemonitor.yaml", "sidecar.yaml",
}  # fmt: skip
NO_SCHEMA = {"envoy.yaml", "kustomization.yaml", "prometheus-adapter.yaml", "servicemonitor.yaml"}


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifests(name=None):
    """Every object in the manifests, or in one of them, with its file."""
    files = [KUBERNETES / name] if name else sorted(set(KUBERNETES.glob("*.yaml")) - {KUBERNETES / file for file in NO_SCHEMA})
    return [(path, document) for path in files for document in documents(path)]


def pods():
    for path, document in manifests():
        if document["kind"] == "Deployment":
            yield path, document["spec"]["template"]["spec"]


def autoscalers():
    return [(path, document["spec"]) for path, document in manifests() if document["kind"] == "HorizontalPodAutoscaler"]


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def pacegate_containers():
    for path, pod in pods():
        for container in containers(pod):
            if "pacegate" in container["image"]:
                yield path, pod, container


def configurations():
    """Every configuration that is shipped, as (file, text)."""
    for path in (DEPLOY / "docker/pacegate.yaml", DEPLOY / "systemd/pacegate.yaml"):
        yield path, path.read_text()
    for path, document in manifests():
        if document["kind"] == "ConfigMap":
            yield path, document["data"]["pacegate.yaml"]


def pacegate(*arguments, environment=None):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PACEGATE_")}
    return subprocess.run([BINARY, *arguments], capture_output=True, text=True, env=inherited | (environment or {}))


def port(address):
    return int(str(address).rsplit(":", 1)[1])


def workspace():
    return tomllib.loads(Path("Cargo.toml").read_text())["workspace"]


def dashboard():
    return json.loads((DEPLOY / "grafana/pacegate.json").read_text())


def alerts():
    return [rule for group in documents(DEPLOY / "prometheus/alerts.yml")[0]["groups"] for rule in group["rules"]]


def expressions():
    """Every PromQL expression that is shipped, with its file."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield DEPLOY / "grafana/pacegate.json", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable.get("definition", "").startswith("query_result("):
            yield DEPLOY / "grafana/pacegate.json", variable["definition"].removeprefix("query_result(").removesuffix(")")
    for name in ("alerts.yml", "rules.yml"):
        path = DEPLOY / "prometheus" / name
        for group in documents(path)[0]["groups"]:
            yield from ((path, rule["expr"]) for rule in group["rules"])
    path = KUBERNETES / "prometheus-adapter.yaml"
    for rule in documents(path)[0]["rules"]["custom"]:
        yield path, rule["seriesQuery"]
        yield path, rule["metricsQuery"]
