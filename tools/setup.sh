#!/usr/bin/env bash
# Install what `make lab` and `make test` need: distribution packages, .venv, the package and its pinned dependencies.
#   tools/setup.sh         for the lab
#   tools/setup.sh tests   for the lab and the tests, including torch
# Exits at once if nothing is missing. apt, pip and proxies are used as this machine configures them.
#   PRIMUS_SETUP_PACKAGES=skip   install no distribution packages (the lab needs a container engine)
set -euo pipefail
cd "$(dirname "$0")/.."

# make puts .venv first in PATH, but .venv itself must be created with the machine's Python.
PATH=${PATH//$PWD\/.venv\/bin:/}
# Container engine and its network, image builder, and programs that the tests and the Makefile call.
PACKAGES=(aardvark-dns ca-certificates git iproute2 iptables make mmdebstrap netavark nftables openssh-client podman runc uidmap)
MODE=${1:-lab}
STAMP=.venv/.primus-setup-$MODE
# Not installed if Docker runs on this machine.
PODMAN_PACKAGES=' aardvark-dns iptables netavark nftables podman runc uidmap '

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n  fix: %s\n' "$1" "$2" >&2; exit 3; }

# Checksum of everything that the result depends on. If it changes, setup runs again.
wanted_stamp() { { printf '%s\n' "$PWD" "${PRIMUS_SETUP_PACKAGES:-}"; cat pyproject.toml constraints.txt tools/setup.sh; } | sha256sum; }

is_done() {
    [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$(wanted_stamp)" ] && [ -x .venv/bin/primus-bootstrap ] && .venv/bin/python -S -c '' &&
        { [ "${PRIMUS_SETUP_PACKAGES:-}" = skip ] || { has_command mmdebstrap && { has_command podman || has_command docker; } && has_test_packages; }; }
}

# Search sbin as well: not every user has it in PATH.
has_command() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" > /dev/null 2>&1; }

has_test_packages() { [ "$MODE" != tests ] || { has_command sshd && has_command visudo && has_browser && has_kubernetes; }; }

# Ubuntu ships Chromium only as a snap; the browser test is skipped there.
has_browser() { has_command chromium || grep -q '^ID=ubuntu' /etc/os-release; }

# Debian 12 has a Kubernetes source package and the compiler for it. Elsewhere the Kubernetes tests need KUBEBUILDER_ASSETS.
has_kubernetes() {
    [ -n "${KUBEBUILDER_ASSETS:-}" ] || ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release ||
        { has_command etcd && has_command etcdctl && has_command gcc && [ -x /usr/lib/go-1.19/bin/go ]; }
}

is_installed() { [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2> /dev/null)" = installed ]; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Print a Python that ansible-core 2.19 supports and that has venv.
find_python() {
    local candidate
    for candidate in python3 python3.11 python3.12 python3.13; do
        if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

missing_packages() {
    local package docker=no
    ! has_command podman && has_command docker && docker info > /dev/null 2>&1 && docker=yes
    for package in "${PACKAGES[@]}"; do
        [ $docker = no ] || [ "${PODMAN_PACKAGES/ $package /}" = "$PODMAN_PACKAGES" ] || continue
        is_installed "$package" || echo "$package"
    done
    find_python > /dev/null || python_packages
    [ "$MODE" != tests ] || has_command visudo || echo sudo
    [ "$MODE" != tests ] || has_command sshd || echo openssh-server
    [ "$MODE" != tests ] || has_browser || echo chromium
    [ "$MODE" != tests ] || has_kubernetes || printf '%s\n' etcd-server etcd-client gcc golang-1.19-go libc6-dev xz-utils
}

# The default Python of Debian 12, Debian 13 and Ubuntu 24.04 is new enough. Ubuntu 22.04 needs the python3.11 package.
python_packages() {
    if apt-cache show python3.11-venv > /dev/null 2>&1; then echo python3.11-venv; else echo python3-venv; fi
}

install_packages() {
    local missing available=() package
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || has_command sudo || die "these packages are missing, and installing them needs root or sudo: ${missing[*]}" \
        "run as root: apt-get install ${missing[*]} (or continue without a lab: PRIMUS_SETUP_PACKAGES=skip)"
    say "installing from the distribution: ${missing[*]}"
    [[ " ${missing[*]} " != *' openssh-server '* ]] || keep_stopped ssh.service ssh.socket
    [[ " ${missing[*]} " != *' etcd-server '* ]] || keep_stopped etcd.service
    as_root apt-get update --quiet=2 || say 'apt-get update failed in part; using the existing package lists'
    for package in "${missing[@]}"; do
        # Ubuntu 22.04 has no netavark; its podman uses another network backend.
        if apt-cache show "$package" > /dev/null 2>&1; then available+=("$package"); fi
    done
    [ ${#available[@]} -gt 0 ] || die "apt knows none of these packages: ${missing[*]}" 'check the sources in /etc/apt, then run this again'
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends "${available[@]}" > .cache/setup-apt.log 2>&1 9>&- ||
        { tail -n 20 .cache/setup-apt.log >&2; die 'apt-get install failed' 'see the lines above and .cache/setup-apt.log'; }
}

# The tests call the program; its service must not start on this machine.
keep_stopped() {
    as_root mkdir -p /etc/systemd/system
    local unit
    for unit; do
        [ -e "/etc/systemd/system/$unit" ] || as_root ln -s /dev/null "/etc/systemd/system/$unit"
    done
    say "masked, because only the tests use it: $* (to run it: systemctl unmask $*)"
}

make_environment() {
    local python
    python=$(find_python) || die "no Python 3.11 to 3.13 with venv found ($(python3 --version 2>&1))" \
        'apt-get install python3-venv (Debian 12 and 13, Ubuntu 24.04) or python3.11-venv (Ubuntu 22.04)'
    if ! .venv/bin/python -c 'import pip' 2> /dev/null; then
        say "creating .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    local wanted=.
    if [ "$MODE" = tests ]; then
        install_torch
        wanted='.[dev,workloads]'
    fi
    say 'installing Python packages into .venv'
    # --quiet twice prints errors only.
    timeout 1800 .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable "$wanted" --constraint constraints.txt ||
        die 'pip could not install the packages' 'see the lines above; check the index, proxy and certificate settings of pip'
}

# Installed first and alone, so that no other package can pull in another build of torch.
install_torch() {
    local torch attempt
    torch=$(grep '^torch==' constraints.txt)
    ! .venv/bin/python -m pip show --quiet torch 2> /dev/null || return 0
    say "installing $torch (about 200 MB)"
    for attempt in 1 2 3; do
        ! timeout 1800 .venv/bin/pip install "$torch" > .cache/setup-torch.log 2>&1 9>&- || return 0
        say "attempt $attempt of 3 failed: $(tail -n 1 .cache/setup-torch.log)"
        sleep $((attempt * 5))
    done
    die "pip could not install $torch" 'see .cache/setup-torch.log; check the index, proxy and certificate settings of pip'
}

! is_done || exit 0
mkdir -p .cache
exec 9> .cache/setup.lock
flock --timeout 1800 9 || die 'another setup has been running for 30 minutes' "find it with: fuser $PWD/.cache/setup.lock"
! is_done || exit 0
if [ "${PRIMUS_SETUP_PACKAGES:-}" = skip ]; then
    say "not installing distribution packages (PRIMUS_SETUP_PACKAGES=skip)"
elif has_command apt-get && has_command dpkg-query; then
    install_packages
else
    die "the lab needs Debian or Ubuntu; apt was not found" \
        'use Debian 12, Debian 13, Ubuntu 22.04 or Ubuntu 24.04, or continue without a lab: PRIMUS_SETUP_PACKAGES=skip'
fi
make_environment
wanted_stamp > "$STAMP"
[ "$MODE" = lab ] || cp "$STAMP" .venv/.primus-setup-lab
say 'done'
