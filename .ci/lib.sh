# Shared by the scripts of this folder and of docs/demo: paths, and functions that run PostgreSQL's programs.
# Source it; it defines names and functions, and chooses the version of PostgreSQL.
# shellcheck shell=bash disable=SC2034

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The versions of PostgreSQL that docshard supports, the newest first.
pg_supported=(18 17 15)
cargo_pgrx_version=0.18.1
rust_minimum=1.95

# cargo-pgrx has its configuration in the project, so that a user's ~/.pgrx is never changed. A cargo-pgrx of the required
# version may be installed there. Cargo searches for subcommands in the order of PATH if its own folder is in it.
# DOCSHARD_PGRX_HOME names another folder, for another PostgreSQL of the same version: see test_checked.
export PGRX_HOME=${DOCSHARD_PGRX_HOME:-$top/.pgrx}
export PATH=$top/.pgrx/tools/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
# build.rs does this for the library alone: then the library's dependencies are not built once more.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND=1
# pgrx-tests panics without USER, and containers often lack it.
USER=${USER:-$(id -un)}
export USER

am_root() { [ "$(id -u)" = 0 ]; }

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

supported() { [[ " ${pg_supported[*]} " == *" $1 "* ]]; }

# True if apt can install a package.
apt_offers() { apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [0-9]' >/dev/null; }

# The newest supported PostgreSQL that is installed with its server headers, or else that apt offers.
newest_pg() {
  local major
  for major in "${pg_supported[@]}"; do
    if [ -x "/usr/lib/postgresql/$major/bin/postgres" ] && [ -f "/usr/include/postgresql/$major/server/postgres.h" ]; then
      echo "$major"
      return
    fi
  done
  for major in "${pg_supported[@]}"; do
    if apt_offers "postgresql-server-dev-$major"; then
      echo "$major"
      return
    fi
  done
}

# Sets pg_major and pg_bindir: the installation that PG_CONFIG or PG_BINDIR names, the version PG, or the newest one. Without
# any pg_major is empty: not every script needs it.
choose_pg() {
  if [ -n "${PG_CONFIG:-}" ]; then
    pg_bindir=$("$PG_CONFIG" --bindir) || die "PG_CONFIG=$PG_CONFIG is no pg_config"
  else
    pg_bindir=${PG_BINDIR:-}
  fi
  if [ -n "$pg_bindir" ]; then
    [ -x "$pg_bindir/pg_config" ] || die "there is no pg_config in $pg_bindir"
    pg_major=$("$pg_bindir/pg_config" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
    if [ -n "${PG:-}" ] && [ "$PG" != "$pg_major" ]; then die "$pg_bindir has PostgreSQL $pg_major, not PG=$PG"; fi
  else
    pg_major=${PG:-$(newest_pg)}
    pg_bindir=/usr/lib/postgresql/$pg_major/bin
  fi
  if [ -n "$pg_major" ] && ! supported "$pg_major"; then
    die "docshard does not support PostgreSQL $pg_major, only ${pg_supported[*]}"
  fi
  # The files that .ci/package builds for this version.
  package_dir=$top/target/package/$pg_major
}

as_root() {
  if am_root; then
    "$@"
  else
    command -v sudo >/dev/null || die "this needs root, and there is no sudo: $*"
    sudo "$@"
  fi
}

# PostgreSQL refuses to run as root: its programs then run as the user postgres, from a folder that it can enter.
as_pg() {
  if am_root; then
    (cd / && exec setpriv --reuid=postgres --regid=postgres --init-groups "$@")
  else
    "$@"
  fi
}

# Creates FOLDER and prints the folder for files that servers must reach. That is FOLDER itself, unless root runs this in a place
# that the user postgres cannot enter (such as a clone in /root): then it is a new folder in /var/tmp, to which FOLDER/var
# points.
server_folder() {
  local folder=$1 other
  mkdir -p "$folder"
  folder=$(cd "$folder" && pwd)
  if ! am_root || as_pg test -x "$folder" 2>/dev/null; then
    echo "$folder"
    return
  fi
  other=/var/tmp/docshard-$(id -u)-$(cksum <<<"$folder" | cut -d' ' -f1)
  mkdir -p "$other"
  # Any user may create files in /var/tmp: use the folder only if it belongs to this user and is no link.
  if [ ! -O "$other" ] || [ -L "$other" ]; then die "$other belongs to another user: remove it"; fi
  chmod 755 "$other"
  ln -sfn "$other" "$folder/var"
  echo "$other"
}

# Makes the PostgreSQL in BINDIR that of PGRX_HOME: its programs are then in PGRX_HOME/bin, and cargo-pgrx finds it. Each version has its
# own folder of programs; `bin` is the one in use.
use_pg() {
  local bindir=$1 config="[configs]" folder
  "$top/.ci/pg_wrappers" "$PGRX_HOME/bin$pg_major" "$bindir"
  [ -L "$PGRX_HOME/bin" ] || rm -rf "$PGRX_HOME/bin"
  ln -sfn "bin$pg_major" "$PGRX_HOME/bin"
  # Written directly, as `cargo pgrx init` would create a cluster too, which root cannot in a folder of its own; and only
  # if it changes, as its time stamp decides whether PostgreSQL's bindings are generated anew. So it lists all versions.
  for folder in "$PGRX_HOME"/bin[0-9]*; do config+=$(printf '\npg%s = "%s/pg_config"' "${folder##*/bin}" "$folder"); done
  if [ "$(cat "$PGRX_HOME/config.toml" 2>/dev/null || true)" != "$config" ]; then
    echo "$config" > "$PGRX_HOME/config.toml"
  fi
}

# True if PID is the postmaster of the cluster in DATA. A pid file may outlive its server, and its number be reused:
# a postmaster's working directory is its data directory.
is_postmaster() {
  local pid=$1 data=$2
  [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$(readlink -f "$data")" ]
}

postmaster_pid() {
  local data=$1 pid
  pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null) || return 1
  is_postmaster "$pid" "$data" && echo "$pid"
}

# Creates a folder for the tests' servers, which create thousands of files each. It is in memory if there is enough of it, which
# is much faster.
servers_folder() {
  local room memory folder parent=/tmp
  room=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)
  memory=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  if [ "${room:-0}" -ge $((8 << 20)) ] && [ "${memory:-0}" -ge $((12 << 20)) ]; then parent=/dev/shm; fi
  # The servers run as another user if we are root.
  folder=$(mktemp -d "$parent/docshard.XXXXXX")
  chmod 711 "$folder"
  echo "$folder"
}

# Runs the lints over all code, including tests: lint [CARGO-OPTION…]
lint() {
  cargo clippy "$@" --workspace --all-targets --no-default-features \
    --features "docshard/pg$pg_major,docshard/pg_test,docshard/fault_points,docshard-gateway/fault_points,docshard-tests/fault_points" -- -D warnings
}

# Stores how many seconds a part of the tests took, for `make test-parts`: took PART SECONDS
took() {
  mkdir -p "$top/target/test-times"
  echo "$2" > "$top/target/test-times/$1"
}

choose_pg
