#!/usr/bin/env bash
# Run the linters.
#   tools/lint.sh all       all files: `make lint` and `make test-all`
#   tools/lint.sh changed   files that differ from the main branch: `make test`. Types and imports are checked in all
#                           files, because a change can break another file; caches keep that fast.
#   tools/lint.sh quick     like changed, without ansible-lint: `make test-quick`
# All linters run, even if one fails. Exits with 1 if one failed.
# Caches: ~/.cache/primus-bootstrap/lint. ansible-lint results are cached by the contents of the role.
set -euo pipefail
cd "$(dirname "$0")/.."

MODE=${1:-all}
case $MODE in
    all | changed | quick) ;;
    *) printf 'lint.sh: unknown mode %s\n  fix: tools/lint.sh all, changed or quick\n' "$MODE" >&2; exit 2 ;;
esac
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/primus-bootstrap/lint
PATH=$PWD/.venv/bin:$PATH
status=0
mkdir -p "$CACHE/ansible"

# Run a linter; print its findings and duration.
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

# Print the changed files that exist; all files if there is nothing to compare with.
files() {
    if [ "$MODE" = all ]; then git ls-files --cached --others --exclude-standard; else tools/changed.sh 2> /dev/null || git ls-files; fi |
        sort -u | while read -r file; do [ ! -f "$file" ] || printf '%s\n' "$file"; done
}

# ansible-lint runs on one role at a time, and on all playbooks and all inventories together.
ansible_parts() { sed -nE -e 's,^(roles/[^/]+)/.*,\1,p' -e 's,^(playbooks)/.*,\1,p' -e 's,^(inventory)/.*,\1,p' -e 's,^constraints\.txt$|^\.ansible-lint$,every,p' | sort -u; }
every_part() { echo playbooks; echo inventory; ls -d roles/*; }
# Cache key of one part: its files, the options of all roles, the linter's version and settings.
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
