#!/usr/bin/env bash
# Print the files that differ from the main branch, one per line: committed, uncommitted and untracked files.
#   tools/changed.sh [COMMIT]   compare with COMMIT instead
# On main itself, compare with the first parent of HEAD. Exits with 1 if there is no commit to compare with.
set -euo pipefail
cd "$(dirname "$0")/.."

base_commit() {
    local main base
    for main in origin/main main; do
        base=$(git merge-base HEAD "$main" 2> /dev/null) || continue
        [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse --verify --quiet 'HEAD^1') || return 1
        printf '%s\n' "$base"
        return 0
    done
    return 1
}

base=${1:-$(base_commit)} || exit 1
[ $# -gt 0 ] || echo "changed since ${base:0:12}:" >&2
git diff --name-only --no-renames "$base"
git ls-files --others --exclude-standard
