"""Executes a Dockerfile without Docker: check_image.py DOCKERFILE WORK CACHE [ARG=VALUE...]

Build stages run in a throw-away overlay of this machine's root directory, with its Rust toolchain in
place of the base image's. The last stage becomes a root directory with the copied files, glibc and
certificates, as its distroless base image has. Its entry point then runs in it as the image's user,
and its health check must succeed. Runs in mount and process namespaces of its own (scripts/check-image).
"""

import ctypes
import fcntl
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time

# What gcr.io/distroless/cc contains of interest: the C library, its loader and certificates.
LIBRARIES = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"]


def main():
    dockerfile, work, cache = map(pathlib.Path, sys.argv[1:4])
    arguments = dict(each.split("=", 1) for each in sys.argv[4:])
    stages = parse(dockerfile.read_text())
    context = pathlib.Path.cwd()
    ignored = (dockerfile.parent / (dockerfile.name + ".dockerignore")).read_text().split("\n")
    roots = {}
    for stage in stages[:-1]:
        root = overlay(work / f"stage-{stage['name']}")
        roots[stage["name"]] = root
        execute(stage, root, context, ignored, cache, dict(arguments), roots)
    image = work / "image"
    distroless(image)
    settings = execute(stages[-1], image, context, ignored, cache, dict(arguments), roots)
    try_image(image, settings)
    print(f"ok      {dockerfile}: every step ran, the image starts and its health check succeeds")


def parse(text):
    """The stages of a Dockerfile, each with its instructions."""
    text = re.sub(r"(?m)^\s*#.*\n", "", text)
    text = re.sub(r"\\\n\s*", " ", text)
    stages = []
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            words = rest.split()
            stages.append({"name": words[2] if "AS" in words else str(len(stages)), "steps": []})
        else:
            stages[-1]["steps"].append((instruction, rest.strip()))
    return stages


def overlay(directory):
    """This machine's root directory, with writes going to `directory`."""
    for name in ("upper", "scratch", "root"):
        (directory / name).mkdir(parents=True)
    options = f"lowerdir=/,upperdir={directory}/upper,workdir={directory}/scratch"
    root = directory / "root"
    mount("-t", "overlay", "overlay", "-o", options, root)
    mount("-t", "proc", "proc", root / "proc")
    mount("--rbind", "/dev", root / "dev")
    return root


def distroless(image):
    for name in ("tmp", "proc", "dev", "etc/ssl/certs", "lib64"):
        (image / name).mkdir(parents=True)
    (image / "tmp").chmod(0o1777)
    for library in LIBRARIES:
        found = next(pathlib.Path("/lib").glob(f"*-linux-gnu/{library}"), None)
        if found:
            inside(image, found.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(found, inside(image, found))
    for loader in pathlib.Path("/lib64").glob("ld-linux-*"):
        shutil.copy(loader, image / "lib64" / loader.name)
    (image / "etc/passwd").write_text("nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
    mount("-t", "proc", "proc", image / "proc")
    mount("--rbind", "/dev", image / "dev")


def execute(stage, root, context, ignored, cache, arguments, roots):
    """Runs the instructions of one stage in `root`; returns what they declare."""
    settings = {"WORKDIR": "/", "USER": "0:0", "environment": {}}
    for instruction, rest in stage["steps"]:
        print(f"        {stage['name']}: {instruction} {rest[:100]}", flush=True)
        if instruction == "ARG":
            name, _, default = rest.partition("=")
            arguments.setdefault(name, default)
        elif instruction == "ENV":
            settings["environment"].update(dict([rest.split("=", 1)]))
        elif instruction == "WORKDIR":
            settings["WORKDIR"] = rest
            inside(root, rest).mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            copy(rest, root, settings["WORKDIR"], context, ignored, roots)
        elif instruction == "RUN":
            run(rest, root, settings, cache, arguments)
        elif instruction in ("USER", "ENTRYPOINT", "CMD", "HEALTHCHECK", "EXPOSE"):
            settings[instruction] = rest
        else:
            sys.exit(f"the instruction {instruction} is not supported by this script")
    return settings


def copy(rest, root, directory, context, ignored, roots):
    words = shlex.split(rest)
    flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    *sources, to = [word for word in words if not word.startswith("--")]
    base = roots[flags["from"]] if "from" in flags else context
    to = inside(root, os.path.join(directory, to))
    for source in sources:
        path = inside(base, source)
        if "from" not in flags and is_ignored(source, ignored):
            sys.exit(f"COPY {source}: excluded by the .dockerignore file")
        place = to / path.name if to.is_dir() and path.is_file() else to
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))
        else:
            shutil.copy(path, place)
        if owner := flags.get("chown"):
            os.chown(place, *map(int, owner.split(":")))


def is_ignored(source, rules):
    """Whether the .dockerignore file excludes a path: the last rule that matches decides."""
    result = False
    for rule in filter(None, map(str.strip, rules)):
        if not rule.startswith("#") and fnmatch.fnmatch(source, rule.lstrip("!/").rstrip("/")):
            result = not rule.startswith("!")
    return result


def run(rest, root, settings, cache, arguments):
    """A RUN step; cache mounts are directories of this machine that outlive the build."""
    while match := re.match(r"--mount=(\S+)\s+", rest):
        options = dict(each.split("=", 1) for each in match[1].split(","))
        rest = rest[match.end():]
        if options["target"].endswith("/target"):
            inside(root, options["target"]).mkdir(parents=True, exist_ok=True)
            mount("--bind", cache, inside(root, options["target"]))
    # The toolchain of this machine is the user's, not the base image's.
    environment = {**os.environ, **arguments, **settings["environment"]}
    environment.pop("CARGO_TARGET_DIR", None)
    command = ["chroot", root, "sh", "-ec", f"cd {settings['WORKDIR']}; {rest}"]
    subprocess.run(command, check=True, env=environment)


def try_image(image, settings):
    """Starts the image's command as its user and waits until its health check succeeds."""
    entry, command = json.loads(settings["ENTRYPOINT"]), json.loads(settings["CMD"])
    health = json.loads(settings["HEALTHCHECK"].partition("CMD ")[2])
    own_network()
    user, group = map(int, settings["USER"].split(":"))

    def enter():
        os.chroot(image)
        os.chdir(settings["WORKDIR"])
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)

    environment = {"PATH": "/usr/local/bin", "PACEGATE_ADMIN_KEY": "change-me-before-use"}
    service = subprocess.Popen([*entry, *command], preexec_fn=enter, env=environment)
    try:
        for _ in range(300):
            if service.poll() is not None:
                sys.exit(f"the image's command ended with {service.returncode}")
            if subprocess.run(health, preexec_fn=enter, env=environment, capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            sys.exit("the health check of the image never succeeded")
    finally:
        service.terminate()
        if service.wait(60) != 0:
            sys.exit(f"the image's command ended with {service.returncode} after SIGTERM")


def own_network():
    """A network with a loopback interface alone, so that the image's ports are free."""
    new_network = 0x40000000  # CLONE_NEWNET
    if ctypes.CDLL(None, use_errno=True).unshare(new_network) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        set_flags, up = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))


def inside(root, path):
    return root / str(path).lstrip("/")


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
