# The Debian of each supported version of PostgreSQL, as chroots with this checkout and this machine's Rust. Sourced by root, after lib.sh, by
# scripts whose arguments are versions, none for all of them. Sets `versions`. Then `open_debian VERSION` and `within VERSION COMMAND…`.
#
# The version of this machine's Debian needs no chroot. The others get one, made by debootstrap once, into which the checkout and the
# Rust toolchain are mounted. Builds of different Debians do not mix: each has its own target/ and .pgrx/.
#
# The script is run again in a mount and a process namespace of its own: however it ends, nothing remains mounted or running.
# shellcheck shell=bash disable=SC2034
am_root || die "this needs root, for debootstrap and chroot"
. "$top/.ci/chroots.sh"
export CACHE=$chroots

if [ "${1:-}" != --inside ]; then
  for version in "$@"; do supported "$version" || die "docshard does not support PostgreSQL $version"; done
  unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$@" </dev/null &
  namespaces=$!
  # The first process of a namespace gets only this signal, and its end ends all others.
  trap 'kill -KILL "$namespaces" 2>/dev/null; exit 130' INT TERM HUP
  wait "$namespaces"
  exit
fi
shift
versions=("$@")
[ $# -gt 0 ] || versions=(15 17 18)
unset PG PG_BINDIR PG_CONFIG SUITE

root_of() { if [ "${suites[$1]}" != "$own_suite" ]; then echo "$chroots/${suites[$1]}"; fi; }

# bind FROM TO
bind() {
  mkdir -p "$2"
  mount --bind "$1" "$2"
}

# Makes a version's Debian usable: open_debian VERSION
open_debian() {
  local root folder build=$chroots/${suites[$1]}.build
  root=$(root_of "$1")
  [ -n "$root" ] || return 0
  make_debian "${suites[$1]}" "$root"
  chmod 755 "$root"
  # A mount point, which `unshare` needs as its root: see test_deb.
  bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  # This machine may reach registries by certificates of its own.
  if [ -f /etc/ssl/certs/ca-certificates.crt ]; then cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/machine-certificates.crt"; fi
  # Servers of this machine's Debian and of that one see each other's files.
  bind /tmp "$root/tmp"
  bind "$top" "$root$top"
  bind "$chroots" "$root$chroots"
  # The real data and the conformance cases. Their tests do nothing without them.
  folder=$(dirname "$top")/shared
  if [ -d "$folder" ]; then bind "$folder" "$root$folder"; fi
  # The repository of a worktree is in another folder.
  if [ -f "$top/.git" ]; then
    folder=$(git -C "$top" rev-parse --path-format=absolute --git-common-dir)
    bind "$folder" "$root$folder"
  fi
  for folder in "${CARGO_HOME:-$HOME/.cargo}" "${RUSTUP_HOME:-$HOME/.rustup}"; do
    if [ -d "$folder" ]; then bind "$folder" "$root$folder"; fi
  done
  mkdir -p "$build/target" "$build/pgrx" "$top/target" "$top/.pgrx"
  bind "$build/target" "$root$top/target"
  bind "$build/pgrx" "$root$top/.pgrx"
  if [ -d "$top/.pgrx/tools" ]; then bind "$top/.pgrx/tools" "$root$top/.pgrx/tools"; fi
  within "$1" bash -c 'command -v git make debootstrap >/dev/null && exit
    apt-get update -q && apt-get install -y -q --no-install-recommends git make debootstrap'
}

# Runs a command in the checkout, in a version's Debian: within VERSION COMMAND…
within() {
  local version=$1 root
  shift
  root=$(root_of "$version")
  local environment=(env PG="$version" SUITE="${suites[$version]}" DEBIAN_FRONTEND=noninteractive)
  if [ -z "$root" ]; then
    "${environment[@]}" "$@"
  else
    if [ -f "$root/etc/machine-certificates.crt" ]; then
      local name
      for name in SSL_CERT_FILE PIP_CERT REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS CURL_CA_BUNDLE; do
        environment+=("$name=/etc/machine-certificates.crt")
      done
    fi
    # shellcheck disable=SC2016
    chroot "$root" "${environment[@]}" LC_ALL=C.UTF-8 bash -c 'cd "$0" && exec "$@"' "$top" "$@"
  fi
}
