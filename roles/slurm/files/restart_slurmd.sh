# Restart slurmd if it does not run, or runs with another configuration than that of the controllers. Jobs continue during the restart.
#   restart_slurmd.sh NODE_DIGEST apply|check
# NODE_DIGEST is the digest of the settings that slurmd reads at its start; empty if no controller was configured in this run. With `check`
# nothing is changed. Prints `changed` if something has to be done. An interrupted run is completed by the next one.
applied_script=/usr/local/lib/primus/slurm/applied.sh applied=/run/primus-slurmd/applied
current() { sh $applied_script slurmd show; }
if ! systemctl is-enabled --quiet slurmd; then
    echo changed
    [ "$2" = check ] || systemctl enable --quiet slurmd
fi
# The controllers inform running nodes of a new configuration, which takes a moment.
if [ -n "$1" ] && [ "$2" != check ] && systemctl is-active --quiet slurmd; then
    for _ in $(seq 50); do current | grep -q "^restart $1 " && break; sleep 0.2; done
fi
if systemctl is-active --quiet slurmd && [ "$(current)" = "$(cat $applied 2> /dev/null)" ]; then
    if [ -z "$1" ] || grep -q "^restart $1 " $applied; then exit 0; fi
fi
echo changed
[ "$2" != check ] || exit 0
systemctl daemon-reload
systemctl reset-failed slurmd 2> /dev/null
systemctl restart slurmd && systemctl is-active --quiet slurmd && [ -e $applied ] && exit 0
echo "slurmd did not get the configuration from the controllers. Fix: open the port of slurmctld to this host, and check that both have the same munge key; see the following log lines" >&2
{ journalctl --unit slurmd --lines 5 --no-pager --output cat; tail -n 5 /var/log/slurm/slurmd.log; } >&2 2> /dev/null
exit 1
