# Restart unit $1 if it does not run, or if its files changed since it started. The unit records their checksums in $3 before it loads its data,
# and in $2 when it serves. If it is still loading with the current files, wait for it, at most $4 seconds. With $5 = look, change nothing.
# With a value in `stale`, which sentinel_strangers.sh sets, restart it in any case.
# A run that is killed between a change and the restart leaves a difference, which the next run finds.
is_loading() { case $(unit_state "$1") in *SubState=start*) true ;; *) false ;; esac; }
if [ -z "${stale:-}" ] && systemctl is-active --quiet "$1" && sha256sum --status --check "$2" 2> /dev/null; then exit 0; fi
if ! is_loading "$1" || ! sha256sum --status --check "$3" 2> /dev/null; then
    echo stale
    [ "$5" != look ] || exit 0
    systemctl reset-failed "$1" 2> /dev/null
    systemctl restart --no-block "$1"
fi
[ "$5" != look ] || exit 0
wait_for_start "$1" "$4"
