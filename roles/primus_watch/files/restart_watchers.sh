# Restart the watchers that run with another unit or program than the one that is there: at its start each notes their sums.
# $1 is `look` where nothing may be changed. A run that was killed in between is finished by the next one.
status=0
for unit in $(systemctl list-units --plain --no-legend --state=active 'primus-watch@*.service' | cut -d ' ' -f 1); do
    if sha256sum --status --check "/run/primus-watch-applied/$unit" 2> /dev/null; then continue; fi
    echo "stale $unit"
    [ "$1" != look ] || continue
    systemctl restart "$unit" || {
        journalctl --unit "$unit" --lines 8 --no-pager --output cat >&2
        status=1
    }
done
exit "$status"
