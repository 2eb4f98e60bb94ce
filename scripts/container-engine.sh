#!/usr/bin/env bash
# Sees to it that there are a container engine and the base image of localnet/Dockerfile, for the test of the network in containers.
# Says on its last line why not, if it cannot be. An engine that it starts is told in $1, a file for its process id.

set -uo pipefail
BASE=$(sed -n 's/^FROM \(debian:[^ ]*\)$/\1/p' "$(dirname "$0")/../localnet/Dockerfile" | tail -n 1)
readonly BASE

why_not() {
    echo "$1"
    exit 1
}

[[ -n $BASE ]] || why_not "localnet/Dockerfile names no base image"

if ! command -v docker >/dev/null || ! { docker compose version || command -v docker-compose; } >/dev/null 2>&1; then
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || why_not "docker and compose are not installed"
    apt-get update -q >/dev/null &&
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends docker.io docker-compose iptables >/dev/null ||
        why_not "docker and compose could not be installed"
fi

if ! docker info >/dev/null 2>&1; then
    [[ $(id -u) == 0 ]] && command -v dockerd >/dev/null || why_not "no container engine answers, and none can be started"
    log=$(mktemp)
    setsid dockerd >"$log" 2>&1 </dev/null &
    engine=$!
    for _ in $(seq 60); do
        docker info >/dev/null 2>&1 && break
        kill -0 "$engine" 2>/dev/null || break
        sleep 0.5
    done
    if ! docker info >/dev/null 2>&1; then
        kill "$engine" 2>/dev/null
        why_not "the container engine does not start here: $(tail -n 1 "$log")"
    fi
    if [[ -n ${1:-} ]]; then echo "$engine" >"$1"; fi
fi

docker image inspect "$BASE" >/dev/null 2>&1 && exit
timeout 120 docker pull --quiet "$BASE" >/dev/null 2>&1 && exit

# No registry can be reached: a stand-in under its name, from the distribution's packages as they are today.
[[ $(id -u) == 0 ]] || why_not "the image $BASE cannot be pulled"
if ! command -v debootstrap >/dev/null; then
    command -v apt-get >/dev/null && apt-get update -q >/dev/null &&
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap >/dev/null ||
        why_not "the image $BASE cannot be pulled, and debootstrap cannot be installed"
fi
root=$(mktemp -d)
log=$(mktemp)
trap 'rm -rf "$root" "$log"' EXIT
mirror=$(awk '/^URIs/ { print $2; exit }' /etc/apt/sources.list.d/debian.sources 2>/dev/null)
debootstrap --variant=minbase --include=ca-certificates bookworm "$root" ${mirror:+"$mirror"} >"$log" 2>&1 ||
    why_not "the image $BASE can be neither pulled nor made from packages: $(tail -n 1 "$log")"
tar -C "$root" --exclude='var/cache/apt/archives/*.deb' --exclude='var/lib/apt/lists/*_*' -c . |
    docker import --change 'CMD ["bash"]' - "$BASE" >/dev/null || why_not "the image $BASE could not be imported"
