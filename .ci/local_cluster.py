"""A router with two shards for programs of this folder, with docshard from the private PostgreSQL (`.ci/test install`)."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
# The programs themselves: those in .pgrx/bin change the user, as these programs' user does.
PROGRAMS = next((TOP / ".pgrx").glob("pg*/lib/postgresql/*/bin"), None)
ENVIRONMENT = {**os.environ, "PG_BINDIR": str(PROGRAMS)}


def run(*command, **options):
    """What a command prints; an error if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def psql(url, sql):
    return run(PROGRAMS / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql)


@contextlib.contextmanager
def cluster(folder):
    """The router's URL, while the servers run in the folder."""
    run(TOP / ".ci/cluster", "start", folder, 2, env=ENVIRONMENT)
    try:
        urls = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines() if "=" in line)
        router = urls["ROUTER_URL"]
        psql(router, "CREATE EXTENSION docshard CASCADE")
        for name in ("SHARD0", "SHARD1"):
            psql(router, f"SELECT docshard.add_shard('{urls[name + '_URL']}')")
        yield router
    finally:
        run(TOP / ".ci/cluster", "remove", folder)


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
