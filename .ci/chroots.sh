# Clean Debians in folders, for tests that this machine's own release cannot run. Sourced by root, after lib.sh.
# shellcheck shell=bash disable=SC2034

chroots=${CACHE:-$top/.chroots}
mkdir -p "$chroots"
chroots=$(cd "$chroots" && pwd)

# This machine's own release. Debian's sid reports the name of the next release; set SUITE there.
own_suite=${SUITE:-$(. /etc/os-release && echo "${VERSION_CODENAME:-}")}

# The Debian that has each supported version of PostgreSQL.
declare -A suites=([15]=bookworm [17]=trixie [18]=sid)

# Prints the address of the mirror that apt uses for this machine's release.
debian_mirror() {
  local mirror
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $own_suite" | sed -n 1p)
  [ -n "$mirror" ] || die "apt has no mirror of Debian $own_suite"
  echo "$mirror"
}

# Makes FOLDER a minimal Debian of the release SUITE, unless it exists: make_debian SUITE FOLDER
make_debian() {
  local suite=$1 folder=$2 mirror
  [ ! -d "$folder" ] || return 0
  mirror=$(debian_mirror)
  command -v debootstrap >/dev/null || apt-get install -y -q debootstrap
  rm -rf "$folder.new"
  debootstrap --variant=minbase "$suite" "$folder.new" "$mirror"
  # The package lists of a mirror's copy may have expired.
  echo 'Acquire::Check-Valid-Until "false";' > "$folder.new/etc/apt/apt.conf.d/90unexpired"
  # Packages must not start services, nor create a cluster on port 5432.
  printf '#!/bin/sh\nexit 101\n' > "$folder.new/usr/sbin/policy-rc.d"
  chmod +x "$folder.new/usr/sbin/policy-rc.d"
  mkdir -p "$folder.new/etc/postgresql-common"
  echo 'create_main_cluster = false' > "$folder.new/etc/postgresql-common/createcluster.conf"
  mv "$folder.new" "$folder"
}
