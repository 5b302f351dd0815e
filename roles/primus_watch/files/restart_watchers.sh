# Restart the watchers whose unit or program changed: each records checksums of both when it starts.
#   restart_watchers.sh apply|check
# With `check` nothing is changed. Prints `changed` for each watcher to restart. An interrupted run is completed by the next one.
status=0
for unit in $(systemctl list-units --plain --no-legend --state=active 'primus-watch@*.service' | cut -d ' ' -f 1); do
    if sha256sum --status --check "/run/primus-watch-applied/$unit" 2> /dev/null; then continue; fi
    echo "changed $unit"
    [ "$1" != check ] || continue
    systemctl restart "$unit" || {
        journalctl --unit "$unit" --lines 8 --no-pager --output cat >&2
        status=1
    }
done
exit "$status"
