#!/usr/bin/env bash
# Run the Molecule scenarios of roles on two local hosts, Debian 12 and 13.
#   tools/molecule.sh all | rest | changed | ROLE...
# rest: all roles except those that passed on the same code before (each pass is recorded with its commit in the cache folder).
# changed: the roles that differ from the main branch (all roles if there is nothing to compare with).
# Each role gets fresh hosts and runs its scenarios on them, default first. PRIMUS_MOLECULE_KEEP=1 reuses the existing
# hosts and leaves them running, which is faster while writing a role.
set -euo pipefail
cd "$(dirname "$0")/.."

LAB=${PRIMUS_MOLECULE_LAB:-molecule}
KEEP=${PRIMUS_MOLECULE_KEEP:-}
LIMIT_S=${PRIMUS_MOLECULE_LIMIT_S:-900}
FOLDER=$PWD/.cache/molecule/$LAB
BIN=$PWD/.venv/bin
PASSED=${XDG_CACHE_HOME:-$HOME/.cache}/primus-bootstrap/molecule
# A change in one of these tests all roles. plugins/module_utils has links to the files of core.
SHARED='^(\.config/molecule/|primus_bootstrap/lab/|constraints\.txt|plugins/|primus_bootstrap/core/(atomic_files|child_processes|commands)\.py)'

die() { printf 'molecule.sh: %s\n  fix: %s\n' "$1" "$2" >&2; exit 3; }

all_roles() { find roles -mindepth 4 -maxdepth 4 -path '*/molecule/*/molecule.yml' 2> /dev/null | cut -d/ -f2 | sort -u; }

# Print the roles whose tasks or scenarios include a role.
users_of() { grep -rlE "^ +(name: |ansible.builtin.(include|import)_role: *\{name: )$1( *[,}]|\$)" roles --include='*.yml' | cut -d/ -f2 | sort -u; }

# Print the roles that differ from a commit (default: the main branch), and the roles that include them.
roles_since() {
    local files role
    files=$(tools/changed.sh "$@") || return 1
    if grep -qE "$SHARED" <<< "$files"; then
        echo 'molecule: a shared file changed; testing all roles' >&2
        all_roles
        return
    fi
    # gpu_env and primus_cli install primus_bootstrap/launch, and primus_cli also the workloads; launch/watch runs the watchers.
    files=$(sed -n -e 's,^roles/\([^/]*\)/.*,\1,p' -e 's,^primus_bootstrap/launch/safe_files.py$,juicefs\nprimus_cli\nprimus_exporter\nprimus_watch,p' -e 's,^primus_bootstrap/launch/watch/.*,primus_cli\nprimus_watch\nworkload,p' -e 's,^primus_bootstrap/launch/.*,gpu_env\nprimus_cli,p' -e 's,^workloads/.*,primus_cli,p' <<< "$files" | sort -u)
    comm -12 <(all_roles) <({ echo "$files"; for role in $files; do users_of "$role"; done; } | sort -u)
}

changed_roles() {
    roles_since && return
    echo 'molecule: no commit to compare with; testing all roles' >&2
    all_roles
}

remaining_roles() {
    local role commit words since
    for role in $(all_roles); do
        if read -r commit words 2> /dev/null < "$PASSED/$role" && since=$(roles_since "$commit" 2> /dev/null) && ! grep -qx "$role" <<< "$since"; then
            echo "molecule: $role passed $words, on ${commit:0:12}" >&2
        else
            echo "$role"
        fi
    done
}

# With uncommitted changes there is no commit to record.
note_pass() {
    [ -z "$(git status --porcelain)" ] || return 0
    mkdir -p "$PASSED" && echo "$(git rev-parse HEAD) at $(date -u '+%F %R') in $2 s" > "$PASSED/$1"
}

lab() { timeout 1800 "$BIN/primus-bootstrap" lab "$@" --name "$LAB" --dir "$FOLDER"; }

run_scenario() {
    local role=$1 scenario=$2 started=$SECONDS log=$FOLDER/$1-$2.log
    export MOLECULE_EPHEMERAL_DIRECTORY=$FOLDER/tmp/$role-$scenario
    if (cd "roles/$role" && NO_COLOR=1 ANSIBLE_NOCOLOR=1 MOLECULE_COMMAND_BORDERS=0 timeout "$LIMIT_S" "$BIN/molecule" test --destroy never --scenario-name "$scenario") > "$log" 2>&1; then
        printf 'molecule: %-24s pass  %4d s\n' "$role/$scenario" $((SECONDS - started))
    else
        sed 's/^/    /' "$log" | tail -n 60
        printf 'molecule: %-24s FAIL  %4d s, full log: %s\n' "$role/$scenario" $((SECONDS - started)) "$log"
        return 1
    fi
}

run_role() {
    local role=$1 scenario failed=0 started=$SECONDS
    # Remove the state (`prepared`) and the hosts.yaml of the previous hosts, which an earlier release may have written.
    [ -n "$KEEP" ] || { lab down > /dev/null 2>&1; rm -rf "$FOLDER/tmp" "$FOLDER/hosts.yaml"; }
    lab up --nodes 2 --release all --bare > "$FOLDER/lab.log" 2>&1 || { cat "$FOLDER/lab.log" >&2; die 'the hosts did not start' 'see the lines above'; }
    # `default` runs first, so that the alternative also tests the change from one to the other.
    for scenario in default $(cd "roles/$role/molecule" && ls -d -- */molecule.yml | cut -d/ -f1 | grep -vx default); do
        run_scenario "$role" "$scenario" || failed=1
    done
    [ $failed = 1 ] || note_pass "$role" $((SECONDS - started))
    return $failed
}

[ $# -gt 0 ] || die 'no role given' 'tools/molecule.sh all, rest, changed, or role names'
[ -x "$BIN/molecule" ] || die 'molecule is not installed' 'make setup'
case $1 in
    all) roles=$(all_roles) ;;
    rest) roles=$(remaining_roles) ;;
    changed) roles=$(changed_roles) ;;
    *) roles=$* ;;
esac
for role in $roles; do
    [ -d "roles/$role/molecule" ] || die "roles/$role has no scenarios" "choose from: $(all_roles | tr '\n' ' ')"
done
[ -n "$roles" ] || { echo 'molecule: no role to test'; exit 0; }

mkdir -p "$FOLDER"
exec 9> "$FOLDER/molecule.lock"
flock --timeout 3600 9 || die "another run has held $FOLDER/molecule.lock for an hour" 'stop it, or use another lab: PRIMUS_MOLECULE_LAB=name'
export PRIMUS_MOLECULE_HOSTS=$FOLDER/hosts.yaml PATH=$BIN:$PATH
[ -n "$KEEP" ] || trap 'lab down > /dev/null 2>&1 9>&-' EXIT
status=0
for role in $roles; do
    run_role "$role" || status=1
done
exit $status
