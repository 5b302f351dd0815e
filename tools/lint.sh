#!/usr/bin/env bash
# Run the linters.
#   tools/lint.sh all       everything: `make lint`, and part of `make test-all`
#   tools/lint.sh changed   part of `make test`: files that differ from the main branch. Types and imports are checked
#                           everywhere, since a change here can break a file there; their caches make that quick.
#   tools/lint.sh quick     as changed, without ansible-lint: part of `make test-quick`
# Every linter runs, also when another has found something. Ends with 1 if one did.
# Caches: ~/.cache/primus-bootstrap/lint. A pass of ansible-lint is kept under the contents of the role that passed.
set -euo pipefail
cd "$(dirname "$0")/.."

MODE=${1:-all}
case $MODE in
    all | changed | quick) ;;
    *) printf 'lint.sh: %s is no mode\n  fix: tools/lint.sh all, changed or quick\n' "$MODE" >&2; exit 2 ;;
esac
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/primus-bootstrap/lint
PATH=$PWD/.venv/bin:$PATH
status=0
mkdir -p "$CACHE/ansible"

# Run a linter, print how long it took and what it found, and go on.
lint() {
    local started=$SECONDS found name=$1
    [ "$name" != ruff ] || name="ruff $2"
    if found=$("$@" 2>&1); then
        printf 'lint: %-12s pass %3d s\n' "$name" $((SECONDS - started))
    else
        printf '%s\n' "$found"
        printf 'lint: %-12s FAIL %3d s\n' "$name" $((SECONDS - started))
        status=1
    fi
}

# The files that differ and still exist; all files where nothing can be compared.
files() {
    if [ "$MODE" = all ]; then git ls-files --cached --others --exclude-standard; else tools/changed.sh 2> /dev/null || git ls-files; fi |
        sort -u | while read -r file; do [ ! -f "$file" ] || printf '%s\n' "$file"; done
}

# The parts that ansible-lint is run on: a role each, and all playbooks and inventories together.
ansible_parts() { sed -nE -e 's,^(roles/[^/]+)/.*,\1,p' -e 's,^(playbooks)/.*,\1,p' -e 's,^(inventory)/.*,\1,p' -e 's,^constraints\.txt$|^\.ansible-lint$,every,p' | sort -u; }
every_part() { echo playbooks; echo inventory; ls -d roles/*; }
# What the verdict on a part depends on: its files, the options of all roles, the linter's version and settings.
part_key() { { echo "$1"; cat .ansible-lint ansible.cfg constraints.txt; git ls-files --cached --others --exclude-standard "$1" roles/*/meta/argument_specs.yml | xargs -d '\n' sha256sum 2> /dev/null; } | sha256sum | cut -d' ' -f1; }

lint_ansible() {
    local part parts=() keys=() key wanted
    wanted=$(ansible_parts)
    if grep -qx every <<< "$wanted"; then wanted=$(every_part); fi
    for part in $wanted; do
        [ -d "$part" ] || continue
        key=$CACHE/ansible/$(part_key "$part")
        if [ "$MODE" = all ] || [ ! -e "$key" ]; then parts+=("$part") keys+=("$key"); fi
    done
    [ ${#parts[@]} -gt 0 ] || { echo 'lint: ansible-lint: nothing to do'; return 0; }
    if [ "$MODE" = all ]; then lint ansible-lint; else lint ansible-lint "${parts[@]}"; fi
    [ $status = 1 ] || touch "${keys[@]}"
    find "$CACHE/ansible" -type f -mtime +60 -delete
}

mapfile -t all_files < <(files)
mapfile -t python < <(printf '%s\n' "${all_files[@]}" | grep -E '\.py$' || true)
mapfile -t yaml < <(printf '%s\n' "${all_files[@]}" | grep -E '\.ya?ml$' || true)
if [ ${#python[@]} -gt 0 ]; then
    lint ruff check --quiet --force-exclude --cache-dir "$CACHE/ruff" "${python[@]}"
    lint ruff format --quiet --check --force-exclude --cache-dir "$CACHE/ruff" "${python[@]}"
fi
# Also without a changed file: one that was removed can be missed elsewhere.
lint mypy --no-error-summary --cache-dir "$CACHE/mypy"
lint lint-imports --cache-dir "$CACHE/imports"
[ ${#yaml[@]} = 0 ] || lint yamllint --strict "${yaml[@]}"
[ "$MODE" = quick ] || lint_ansible < <(printf '%s\n' "${all_files[@]}")
exit $status
