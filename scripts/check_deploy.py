"""Compares the files in deploy/ with schemas, with the program, with the documents and each other.

Usage: check_deploy.py BINARY, from the root of the repository; scripts/check-deploy prepares the
environment. Every check yields its problems as "file: reason".
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml
from deploy_files import (
    DEPLOY, KUBERNETES, NOT_APPLIED, alerts, autoscalers, configurations, containers, dashboard, documents, expressions, manifests, pods, port,
    pacegate, pacegate_containers, workspace,
)  # fmt: skip
from google.protobuf import json_format
from envoy.config.bootstrap.v3 import bootstrap_pb2

# Registers the types that the configuration names in its `@type` fields.
from envoy.extensions.filters.http.ratelimit.v3 import rate_limit_pb2  # noqa: F401
from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2  # noqa: F401
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401

# The oldest supported Kubernetes version, and the newest with a schema.
KUBERNETES_VERSIONS = ("1.31", "1.37")
# Maximum time for requests in flight during a graceful shutdown (DRAIN_TIMEOUT), in seconds.
DRAIN_TIMEOUT = 30


def everything_parses():
    """all files: YAML and JSON parse"""
    for path in sorted(DEPLOY.rglob("*")):
        try:
            if path.suffix in (".yaml", ".yml"):
                documents(path)
            elif path.suffix == ".json":
                json.loads(path.read_text())
        except (yaml.YAMLError, json.JSONDecodeError) as error:
            yield f"{path}: {error}"


def kubernetes_schemas():
    """kubernetes: every object matches its strict schema, in the oldest and the newest version"""
    for path, document in manifests():
        for version in KUBERNETES_VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                reason = getattr(error, "message", str(error))
                yield f"{path}: {document['kind']} in {version}: {'.'.join(map(str, getattr(error, 'path', [])))}: {reason}"


def kustomization():
    """kubernetes: the kustomization lists every manifest that must be applied"""
    path = KUBERNETES / "kustomization.yaml"
    listed = set(documents(path)[0]["resources"])
    wanted = {file.name for file in KUBERNETES.glob("*.yaml")} - NOT_APPLIED
    for name in sorted(listed ^ wanted):
        yield f"{path}: {name} is {'missing' if name in listed else 'not listed in the resources'}"


def hardened_pods():
    """kubernetes: pods run unprivileged, on a read-only file system, with time for a graceful shutdown"""
    for path, pod in pods():
        security = pod["securityContext"]
        if not security.get("runAsNonRoot") or security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{path}: securityContext: runAsNonRoot and the seccomp profile RuntimeDefault are required"
        if pod.get("enableServiceLinks") is not False:
            yield f"{path}: enableServiceLinks: must be false, or the variables of the service `pacegate` prevent startup"
        for container in containers(pod):
            own = container["securityContext"]
            if not own.get("readOnlyRootFilesystem") or own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{path}: {container['name']}: must set readOnlyRootFilesystem, forbid allowPrivilegeEscalation and drop ALL capabilities"
            if "memory" not in container["resources"]["limits"]:
                yield f"{path}: {container['name']}: resources.limits.memory is missing"
        configured = dict(configurations())
        drain = re.search(r"drain_delay: (\d+)s", configured.get(path, configured[KUBERNETES / "configmap.yaml"]))
        least = int(drain[1] if drain else 1) + DRAIN_TIMEOUT
        if pod["terminationGracePeriodSeconds"] <= least:
            yield f"{path}: terminationGracePeriodSeconds: must be above {least} (drain_delay plus {DRAIN_TIMEOUT} s for requests in flight)"


def scaling():
    """kubernetes: one autoscaler is applied, and its target does not set replicas"""
    applied = documents(KUBERNETES / "kustomization.yaml")[0]["resources"]
    if len([path for path, _ in autoscalers() if path.name in applied]) != 1:
        yield f"{KUBERNETES}/kustomization.yaml: must list exactly one autoscaler"
    deployments = {document["metadata"]["name"]: (path, document) for path, document in manifests() if document["kind"] == "Deployment"}
    for autoscaler_path, autoscaler in autoscalers():
        name = autoscaler["scaleTargetRef"]["name"]
        path, deployment = deployments.get(name, (None, None))
        if not deployment:
            yield f"{autoscaler_path}: unknown Deployment {name}"
        elif "replicas" in deployment["spec"]:
            yield f"{path}: replicas: every `kubectl apply` would override {autoscaler_path.name}"


def redis_user():
    """redis: redis.conf and docs/operating.md define the same user"""
    users = [re.findall(r"^(?:# )?(user pacegate .*)$", Path(path).read_text(), re.M) for path in (DEPLOY / "redis.conf", "docs/operating.md")]
    if users[0] != users[1] or len(users[0]) != 1:
        yield f"{DEPLOY}/redis.conf: {users[0]}, but docs/operating.md has {users[1]}"


def probes():
    """kubernetes: probed paths are in the OpenAPI document, and every named port exists"""
    paths = json.loads(pacegate("openapi").stdout)["paths"]
    for path, pod in pods():
        for container in containers(pod):
            ports = {item["name"] for item in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                probed = container.get(probe, {}).get("httpGet") or container.get(probe, {}).get("tcpSocket")
                if probed and "path" in probed and probed["path"] not in paths:
                    yield f"{path}: {probe}: the service has no path {probed['path']}"
                if probed and probed["port"] not in ports:
                    yield f"{path}: {probe}: the container {container['name']} has no port {probed['port']}"
    monitor = documents(KUBERNETES / "servicemonitor.yaml")[0]["spec"]
    service = manifests("service.yaml")[0][1]
    for endpoint in monitor["endpoints"]:
        if endpoint["port"] not in {item["name"] for item in service["spec"]["ports"]} or endpoint["path"] not in paths:
            yield f"{KUBERNETES}/servicemonitor.yaml: the service has no port {endpoint['port']}, or the program has no path {endpoint['path']}"
    if monitor["selector"]["matchLabels"] != service["metadata"]["labels"]:
        yield f"{KUBERNETES}/servicemonitor.yaml: does not select the service `pacegate`"


def ports():
    """all files: ports match the configuration"""
    server = yaml.safe_load(manifests("configmap.yaml")[0][1]["data"]["pacegate.yaml"])["server"]
    wanted = {"http": port(server["http"]), "grpc": port(server["grpc"])}
    deployment = manifests("deployment.yaml")[0][1]["spec"]["template"]["spec"]["containers"][0]
    opened = {item["name"]: item["containerPort"] for item in deployment["ports"]}
    if opened != wanted:
        yield f"{KUBERNETES}/deployment.yaml: ports {opened}, but the configuration listens on {wanted}"
    for path, service in manifests("service.yaml"):
        for item in service["spec"]["ports"]:
            if item["port"] != wanted.get(item["targetPort"]):
                yield f"{path}: {service['metadata']['name']}: port {item['port']} does not match {item['targetPort']}"
    policy = manifests("network.yaml")[0][1]["spec"]["ingress"]
    for item in (item for rule in policy for item in rule["ports"]):
        if item["port"] not in wanted:
            yield f"{KUBERNETES}/network.yaml: ingress to {item['port']}, which the container does not expose"
    for cluster in documents(KUBERNETES / "envoy.yaml")[0]["static_resources"]["clusters"]:
        address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        if cluster["name"] == "pacegate" and address["port_value"] != wanted["grpc"]:
            yield f"{KUBERNETES}/envoy.yaml: uses port {address['port_value']}, but gRPC is on {wanted['grpc']}"
    server = yaml.safe_load((DEPLOY / "docker/pacegate.yaml").read_text())["server"]
    inside = sorted((port(server["http"]), port(server["grpc"])))
    published = sorted(port(item) for item in documents(DEPLOY / "docker/compose.yaml")[0]["services"]["pacegate"]["ports"])
    exposed = sorted(map(int, re.search(r"^EXPOSE (.*)$", (DEPLOY / "docker/Dockerfile").read_text(), re.M)[1].split()))
    scraped = documents(DEPLOY / "prometheus/prometheus.yml")[0]["scrape_configs"][0]["dns_sd_configs"][0]["port"]
    for path, found in (("docker/compose.yaml", published), ("docker/Dockerfile", exposed)):
        if found != inside:
            yield f"{DEPLOY}/{path}: ports {found}, but docker/pacegate.yaml listens on {inside}"
    if scraped != port(server["http"]):
        yield f"{DEPLOY}/prometheus/prometheus.yml: scrapes port {scraped}, but metrics are on {port(server['http'])}"
    for path, _, container in pacegate_containers():
        if "--http" in container["args"] and port(container["args"][container["args"].index("--http") + 1]) != container["ports"][0]["containerPort"]:
            yield f"{path}: {container['name']}: --http does not match its containerPort"


def configurations_are_valid():
    """all files: `pacegate config check` accepts every configuration with its environment variables"""
    compose = documents(DEPLOY / "docker/compose.yaml")[0]["services"]["pacegate"]["environment"]
    compose = {name: re.sub(r"\$\{[^}]*\}", "secret", value) for name, value in compose.items()}
    secret = manifests("secret.example.yaml")[0][1]["stringData"]
    for path, text in configurations():
        variables = {DEPLOY / "docker": compose, KUBERNETES: secret}.get(path.parent, {})
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            checked = pacegate("config", "check", file.name, environment=variables)
        if checked.returncode != 0:
            yield f"{path}: {checked.stderr.strip().replace(file.name, 'the configuration')}"


def options():
    """all files: every command-line option of Pacegate exists"""
    lines = [(path, container["args"]) for path, _, container in pacegate_containers()]
    compose = documents(DEPLOY / "docker/compose.yaml")[0]["services"]["pacegate"]
    lines += [(DEPLOY / "docker/compose.yaml", compose["command"]), (DEPLOY / "docker/compose.yaml", compose["healthcheck"]["test"][2:])]
    lines += [(DEPLOY / "docker/Dockerfile", json.loads(re.search(r"^CMD (.*)$", (DEPLOY / "docker/Dockerfile").read_text(), re.M)[1]))]
    healthcheck = re.search(r"^HEALTHCHECK [^[]*CMD (.*)$", (DEPLOY / "docker/Dockerfile").read_text(), re.M)[1]
    lines += [(DEPLOY / "docker/Dockerfile", json.loads(healthcheck)[1:])]
    unit = DEPLOY / "systemd/pacegate.service"
    lines += [(unit, re.search(r"^ExecStart=\S+ (.*)$", unit.read_text(), re.M)[1].split())]
    for path, (command, *arguments) in lines:
        known = set(re.findall(r"--[a-z0-9-]+", pacegate(command, "--help").stdout))
        for option in (argument for argument in arguments if argument.startswith("--") and argument not in known):
            yield f"{path}: `pacegate {command}` has no option {option}"


def images():
    """all files: images have versions, and Pacegate's is the current one"""
    version = workspace()["package"]["version"]
    used = [(path, container["image"]) for path, pod in pods() for container in containers(pod)]
    used += [(DEPLOY / "docker/compose.yaml", item["image"]) for item in documents(DEPLOY / "docker/compose.yaml")[0]["services"].values()]
    used += [(DEPLOY / "docker/Dockerfile", name) for name in re.findall(r"^FROM (\S+)", (DEPLOY / "docker/Dockerfile").read_text(), re.M)]
    used += [(KUBERNETES / "kustomization.yaml", f"{item['newName']}:{item['newTag']}") for item in documents(KUBERNETES / "kustomization.yaml")[0]["images"]]
    for path, image in used:
        name, _, tag = image.rpartition(":")
        if not name or "/" in tag or tag in ("", "latest"):
            yield f"{path}: {image} has no version"
        elif name.split("/")[-1] == "pacegate" and tag != version:
            yield f"{path}: {image}, but the program is {version}"


def dockerfile():
    """docker: copied files exist and reach the builder, all crates do, and the last user is not root"""
    path = DEPLOY / "docker/Dockerfile"
    text = path.read_text()
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    copied = [source for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M) for source in line.split()[:-1]]
    for source in copied:
        if not Path(source).exists() or f"!{source}" not in ignored:
            yield f"{path}: COPY {source}: missing, or excluded by Dockerfile.dockerignore"
    for member in workspace()["members"]:
        if member.split("/")[0] not in copied:
            yield f"{path}: workspace member {member} is not copied"
    stages = re.findall(r"^FROM .* AS (\w+)$", text, re.M)
    for stage in re.findall(r"--from=(\w+)", text):
        if stage not in stages:
            yield f"{path}: unknown stage {stage}"
    user = re.findall(r"^USER (\S+)$", text.rsplit("\nFROM ", 1)[1], re.M)
    if not user or user[-1].split(":")[0] in ("0", "root"):
        yield f"{path}: the last USER is root"
    if workspace()["package"]["rust-version"] not in re.search(r"^FROM rust:(\S+)", text, re.M)[1]:
        yield f"{path}: the compiler version differs from Cargo.toml"
    if re.search(r"^ARG PROFILE=(\w+)$", text, re.M)[1] not in tomllib.loads(Path("Cargo.toml").read_text())["profile"]:
        yield f"{path}: the profile is not in Cargo.toml"


def compose():
    """docker: the mounts of compose.yaml exist, and no secret has a default"""
    path = DEPLOY / "docker/compose.yaml"
    for service in documents(path)[0]["services"].values():
        for mount in (item.split(":")[0] for item in service.get("volumes", [])):
            if mount.startswith(".") and not (path.parent / mount).exists():
                yield f"{path}: {mount} is missing"
    example = dict(re.findall(r"^(\w+)=(.*)$", (path.parent / "env.example").read_text(), re.M))
    for name, rest in re.findall(r"\$\{(\w+)([^}]*)\}", path.read_text()):
        if not rest.startswith(":?") or example.get(name) != "":
            yield f"{path}: ${{{name}{rest}}} must be required, and be in env.example without a value"


def envoy():
    """kubernetes: envoy.yaml matches Envoy's bootstrap message"""
    path = KUBERNETES / "envoy.yaml"
    try:
        json_format.ParseDict(documents(path)[0], bootstrap_pb2.Bootstrap())
    except json_format.ParseError as error:
        yield f"{path}: {error}"


def metrics():
    """metrics: every queried metric is in the table of docs/operating.md"""
    table = re.findall(r"^\| `((?:pacegate|process)_\w+)`", Path("docs/operating.md").read_text(), re.M)
    known = set(table) | {name + suffix for name in table for suffix in ("_bucket", "_count", "_sum")}
    for path, expression in expressions():
        for name in re.findall(r"(?<![\w:])(?:pacegate|process)_\w+(?![\w:])", expression):
            if name not in known:
                yield f"{path}: {name} is not in the table of docs/operating.md"
    adapter = {rule["name"]["as"] for rule in documents(KUBERNETES / "prometheus-adapter.yaml")[0]["rules"]["custom"]}
    for path, autoscaler in autoscalers():
        for metric in autoscaler["metrics"]:
            if metric["type"] == "Pods" and metric["pods"]["metric"]["name"] not in adapter:
                yield f"{path}: prometheus-adapter.yaml does not define {metric['pods']['metric']['name']}"


def promql():
    """metrics: every expression is valid PromQL, also while rules fall back to `local`"""
    stand_ins = {"$__rate_interval": "1m", "<<.LabelMatchers>>": 'namespace="n"', "<<.GroupBy>>": "pod", "$job": ".*", "$instance": ".*", "$rule": ".*"}
    # Both counters then have series with the same labels, which breaks expressions over several
    # names.
    labels = '{job="pacegate",instance="a",namespace="n",pod="p",rule="r",algorithm="gcra",reason="LOCAL_FALLBACK"}'
    history = [{"series": f"pacegate_{decided}_total{labels}", "values": "0+1x20"} for decided in ("allowed", "blocked")]
    with tempfile.TemporaryDirectory() as directory:
        rules, tests = Path(directory, "rules.yml"), Path(directory, "tests.yml")
        # promtool evaluates rules up to the last time with an expectation.
        until = [{"expr": "time()", "eval_time": "3m", "exp_samples": [{"labels": "{}", "value": 180}]}]
        tests.write_text(json.dumps({"rule_files": [rules.name], "tests": [{"interval": "15s", "input_series": history, "promql_expr_test": until}]}))
        for path, expression in expressions():
            for name, value in stand_ins.items():
                expression = expression.replace(name, value)
            rules.write_text(json.dumps({"groups": [{"name": "one", "rules": [{"record": "one", "expr": expression}]}]}))
            result = subprocess.run(["promtool", "test", "rules", str(tests)], capture_output=True, text=True)
            if result.returncode != 0:
                yield f"{path}: {expression}: {' '.join(result.stderr.split()) or ' '.join(result.stdout.split())}"


def grafana():
    """grafana: panels have unique ids, do not overlap, and use the selected data source"""
    path = DEPLOY / "grafana/pacegate.json"
    panels, taken = dashboard()["panels"], {}
    if len({panel["id"] for panel in panels}) != len(panels):
        yield f"{path}: two panels have the same id"
    for panel in panels:
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        if grid["x"] + grid["w"] > 24 or cells & taken.keys():
            yield f"{path}: {panel['title']} exceeds the grid, or overlaps {taken.get(min(cells & taken.keys(), default=None))}"
        taken |= dict.fromkeys(cells, panel["title"])
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]} | {"__rate_interval", "__all"}
    for name in set(re.findall(r"\$\{?(\w+)", path.read_text())) - variables:
        yield f"{path}: unknown variable ${name}"
    sources = {item["uid"] for item in (source for panel in panels for source in [panel.get("datasource"), *(t["datasource"] for t in panel.get("targets", []))]) if item}
    if sources != {"${datasource}"}:
        yield f"{path}: panels use {sources} instead of the selected data source"


def runbook():
    """prometheus: every alert has a runbook line, a section in docs/runbook.md and two tests"""
    sections = set(re.findall(r"^## (\w+)$", Path("docs/runbook.md").read_text(), re.M))
    tested = {test["name"] for test in documents(DEPLOY / "prometheus/alerts_test.yml")[0]["tests"]}
    path = DEPLOY / "prometheus/alerts.yml"
    for rule in alerts():
        name, notes = rule["alert"], rule["annotations"]
        for missing in {"summary", "description", "runbook", "runbook_url"} - notes.keys():
            yield f"{path}: {name}: {missing} is missing"
        if not notes.get("runbook_url", "").endswith(f"/docs/runbook.md#{name.lower()}") or name not in sections:
            yield f"{path}: {name}: runbook_url does not lead to a section of docs/runbook.md"
        for test in {f"{name} fires", f"{name} is quiet"} - tested:
            yield f"{DEPLOY}/prometheus/alerts_test.yml: missing test `{test}`"
    for name in sections - {rule["alert"] for rule in alerts()}:
        yield f"docs/runbook.md: unknown alert {name}"


CHECKS = [
    everything_parses, kubernetes_schemas, kustomization, hardened_pods, scaling, probes, ports, configurations_are_valid, options, images, dockerfile, compose,
    envoy, redis_user, metrics, promql, grafana, runbook,
]  # fmt: skip


def main():
    failed = False
    for check in CHECKS:
        try:
            problems = list(check())
        except (LookupError, TypeError, AttributeError, OSError) as error:
            problems = [f"deploy: a required field or file is missing: {error!r}"]
        failed |= bool(problems)
        print(f"{'FAILED' if problems else 'ok':<8}{check.__doc__}", *problems, sep="\n          ")
        if problems and check is everything_parses:
            break
    sys.exit(failed)


main()
