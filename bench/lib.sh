# Common functions of the benchmarks. Each benchmark sources this after .ci/lib.sh; the first argument is its name.
# shellcheck shell=bash disable=SC2154

here=$top/bench
export PATH=$pg_bindir:$PATH PGCONNECT_TIMEOUT=10 PGOPTIONS='-c client_min_messages=warning'

# A folder for this run's files. At the end, also after an error, all processes that the run has started are ended, the folder is
# removed, and `clean_up` is called, which the benchmark defines before it starts servers. So an error in a pipe or in a measurement
# leaves no server running.
clean_up() { :; }
work=$(mktemp -d "/tmp/docshard-$1.XXXXXX")
finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  jobs -p | xargs -r kill 2>/dev/null || true
  rm -rf "$work"
  clean_up
  exit $status
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# positive NUMBERS…: ends the benchmark if one of them is not positive.
positive() {
  local number
  for number in "$@"; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || die "$number is not a positive number"
  done
}

# Shows the progress.
say() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }

# sql URL PSQL-OPTIONS…
sql() { timeout 1800 psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$@" </dev/null; }

# median FILE [COLUMN]
median() {
  awk -v c="${2:-1}" '{print $c}' "$1" | sort -n |
    awk '{v[NR] = $1} END {if (NR % 2) print v[(NR + 1) / 2]; else print (v[NR / 2] + v[NR / 2 + 1]) / 2}'
}
