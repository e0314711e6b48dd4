"""A router with two shards, and gateways, for programs of this folder. Without other words docshard is that of the private PostgreSQL (`.ci/test install`)."""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
# The programs themselves: those in .pgrx/bin change the user, as these programs' user does.
PROGRAMS = next((TOP / ".pgrx").glob("pg*/lib/postgresql/*/bin"), None)
ENVIRONMENT = {**os.environ, "PG_BINDIR": str(PROGRAMS)}
# The longest time in which gateways start, in seconds.
PATIENCE = 30


def run(*command, **options):
    """What a command prints; an error if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def psql(url, sql):
    return run(PROGRAMS / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql)


@contextlib.contextmanager
def cluster(folder, programs=PROGRAMS):
    """The router's URL, while the servers run in the folder, with the PostgreSQL whose programs are given."""
    run(TOP / ".ci/cluster", "start", folder, 2, env={**os.environ, "PG_BINDIR": str(programs)})
    try:
        urls = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines() if "=" in line)
        router = urls["ROUTER_URL"]
        psql(router, "CREATE EXTENSION docshard CASCADE")
        for name in ("SHARD0", "SHARD1"):
            psql(router, f"SELECT docshard.add_shard('{urls[name + '_URL']}')")
        yield router
    finally:
        run(TOP / ".ci/cluster", "remove", folder)


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def gateways(router, program, folder, number=1):
    """The port of the first of several gateways with ports side by side, while they run. Clients have no user, and the rights of a superuser."""
    processes = []
    try:
        # A port is free only if the gateway can take it.
        for _ in range(8):
            port = random.randrange(15000, 30000)
            for each in range(number):
                with (folder / f"gateway-{each}.log").open("w") as log:
                    options = ["--router", router, "--listen", f"127.0.0.1:{port + each}", "--anonymous-role", "postgres"]
                    processes.append(subprocess.Popen([program, *options], stdin=subprocess.DEVNULL, stderr=log))
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and all(process.poll() is None for process in processes):
                if all(listens(port + each) for each in range(number)):
                    yield port
                    return
                time.sleep(0.05)
            while processes:
                processes.pop().kill()
        raise RuntimeError(f"the gateways do not start: {folder}/gateway-*.log")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def install(program, *packages):
    """Debian's packages, if a program is missing."""
    if shutil.which(program) is None:
        run("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages)


def python(folder, *packages):
    """The python of a virtual environment in the folder, with these packages."""
    if not (folder / "venv").exists():
        if subprocess.run(["python3", "-c", "import ensurepip"], stderr=subprocess.DEVNULL).returncode:
            run("apt-get", "install", "-y", "-q", "--no-install-recommends", "python3-venv")
        run("python3", "-m", "venv", folder / "venv")
    run(folder / "venv/bin/pip", "install", "-q", *packages)
    return folder / "venv/bin/python"
