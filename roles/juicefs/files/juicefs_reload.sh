# Reload the unit of a mount. $1 is its main process, $2 the record of the checksums of its files, the rest the command line in the unit.
# juicefs_mount.sh must be in the same folder.
# If only the password changed, JuiceFS replaces the process that serves files. Otherwise a new main process takes over the mount with its open
# files. If that is not possible, the script fails before it changes anything.
main=$1 applied=$2
shift 2
point=
for word; do url=$point point=$word; done
fail() { echo "the new process cannot take over the mount: $1" >&2; exit 1; }
served() { timeout 5 cat "$point/.config" 2> /dev/null | tr ',' '\n' | sed -n 's/.*"Pid": *\([0-9][0-9]*\).*/\1/p' | head -n 1; }
# The old process writes its open files to this path, and the new one reads them. Only root can replace it (juicefs_mount.sh). It is emptied
# afterwards: a process that starts after a crash must not reopen files from long ago.
empty_state() { /usr/bin/python3 -I "${0%/*}/juicefs_claim.py" folder "/tmp/state$main.json.bak" file "/tmp/state$main.json"; }
empty_state || exit 1
if sha256sum --status --check "$applied" 2> /dev/null; then
    former=$(served)
    kill -HUP "$main" || exit 1
    for _ in $(seq 100); do
        sleep 1
        pid=$(served)
        [ -z "$pid" ] || [ "$pid" = "$former" ] || { empty_state; exit; }
    done
    fail 'the process that serves files was not replaced after 100 s'
fi

# With other FUSE options, the new process would mount over the existing mount. Only the program, the metadata engine and the ports may differ.
# JuiceFS rewrites its command line, with spaces between the words.
options() { tr ' \0' '\n\n' | grep -v -e '^$' -e '://' -e '^--no-agent$' -e '^--metrics=' | sed 1d; }
[ "$(options < "/proc/$main/cmdline")" = "$(printf '%s\n' "$@" | options)" ] || fail 'its options changed'
timeout 5 cat "$point/.config" 2> /dev/null | grep -q '"CommPath": *"[^"]' || fail 'the running program is older than 1.2'
timeout 30 "$1" status "$url" > /dev/null || fail "the metadata engine does not answer at $url"

/bin/sh "${0%/*}/juicefs_mount.sh" "$@" &
new=$!
# Before the old main process ends, because systemd would end the mount with it.
systemd-notify --pid="$new" || { kill "$new"; fail 'systemd did not accept a new main process'; }
waited=0
# Several hundred MiB may have to be written first.
until pid=$(served) && [ -n "$pid" ] && [ "$(awk '{print $4}' "/proc/$pid/stat" 2> /dev/null)" = "$new" ]; do
    kill -0 "$new" 2> /dev/null || fail 'the new process ended'
    waited=$((waited + 1))
    [ "$waited" -le 100 ] || fail "the new process does not serve $point after $waited s"
    sleep 1
done
[ "$(stat -c '%u %F' "/tmp/fuse_fd_comm.$new")" = '0 socket' ] || { kill "$new"; fail "/tmp/fuse_fd_comm.$new is not a socket of root"; }
empty_state || exit 1
echo "process $new took over $point from $main"
