# Reload of the unit of a mount: $1 is its main process, $2 the record of what that has read, the rest the command line that the unit states.
# It lies beside juicefs_mount.sh.
# Where nothing but the password changed, the process that serves files is replaced. Otherwise a fresh one takes the mount over with its open
# files, and becomes the main process. It fails before anything is changed where that cannot be.
main=$1 applied=$2
shift 2
point=
for word; do url=$point point=$word; done
fail() { echo "the mount is not taken over: $1" >&2; exit 1; }
served() { timeout 5 cat "$point/.config" 2> /dev/null | tr ',' '\n' | sed -n 's/.*"Pid": *\([0-9][0-9]*\).*/\1/p' | head -n 1; }
# The process that ends writes its open files to this name, and the next one reads them. It is root's alone (juicefs_mount.sh). Afterwards
# it is emptied: a process that starts after a crash must not take up files that were open long ago.
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

# Other options of FUSE would be mounted on top of the mount that is there. Only the program, the metadata engine, and the ports that it
# listens on may differ. JuiceFS writes its command line anew, with spaces between the words.
options() { tr ' \0' '\n\n' | grep -v -e '^$' -e '://' -e '^--no-agent$' -e '^--metrics=' | sed 1d; }
[ "$(options < "/proc/$main/cmdline")" = "$(printf '%s\n' "$@" | options)" ] || fail 'its options changed'
timeout 5 cat "$point/.config" 2> /dev/null | grep -q '"CommPath": *"[^"]' || fail 'the program that runs is older than 1.2'
timeout 30 "$1" status "$url" > /dev/null || fail "the metadata engine does not answer at $url"

/bin/sh "${0%/*}/juicefs_mount.sh" "$@" &
new=$!
# Before the former main process ends: systemd would end the mount with it.
systemd-notify --pid="$new" || { kill "$new"; fail 'systemd does not take another main process'; }
waited=0
# Several hundred MiB may have to be written first.
until pid=$(served) && [ -n "$pid" ] && [ "$(awk '{print $4}' "/proc/$pid/stat" 2> /dev/null)" = "$new" ]; do
    kill -0 "$new" 2> /dev/null || fail 'the fresh process ended'
    waited=$((waited + 1))
    [ "$waited" -le 100 ] || fail "the fresh process does not serve $point after $waited s"
    sleep 1
done
[ "$(stat -c '%u %F' "/tmp/fuse_fd_comm.$new")" = '0 socket' ] || { kill "$new"; fail "/tmp/fuse_fd_comm.$new is no socket of root's"; }
empty_state || exit 1
echo "process $new took $point over from $main"
