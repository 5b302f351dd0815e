# Restart slurmctld if its configuration requires it, else let it reread the configuration and inform the nodes.
#   restart_slurmctld.sh HOSTNAME apply|check
# With `check` nothing is changed. Prints `changed` if something has to be done. It compares the files with what the running slurmctld has
# read, so it also completes a run that was interrupted between writing the files and restarting.
applied_script=/usr/local/lib/primus/slurm/applied.sh applied=/run/primus-slurmctld/applied
# The configuration that the nodes received last. Unlike $applied, it survives a restart, which does not inform the nodes.
informed=/var/lib/primus/slurmctld_told
differs() { [ "$(sh $applied_script slurmctld show | grep "^$1 ")" != "$(grep "^$1 " $applied 2> /dev/null)" ]; }
current() { sh $applied_script slurmctld show | grep '^reread '; }
is_up() { timeout 10 scontrol ping 2> /dev/null | grep -E "at $1(\.[^ ]*)? is UP" > /dev/null; }
fail() {
    echo "$1. Fix: $2" >&2
    { journalctl --unit slurmctld --lines 5 --no-pager --output cat; tail -n 5 /var/log/slurm/slurmctld.log; } >&2 2> /dev/null
    exit 1
}

if ! systemctl is-enabled --quiet slurmctld; then
    echo changed
    [ "$2" = check ] || systemctl enable --quiet slurmctld
fi

restart=no
if ! systemctl is-active --quiet slurmctld || differs restart; then restart=yes; fi
if [ $restart = no ] && ! differs reread && [ "$(current)" = "$(cat $informed 2> /dev/null)" ]; then exit 0; fi
echo changed
[ "$2" != check ] || exit 0

if [ $restart = yes ]; then
    systemctl daemon-reload
    systemctl reset-failed slurmctld 2> /dev/null
    systemctl restart slurmctld || fail 'slurmctld does not start' 'correct what the following log lines name, then apply the phase slurm again'
fi
for _ in $(seq 40); do is_up "$1" && break; sleep 0.5; done
is_up "$1" || fail 'slurmctld does not answer within 20 s' 'correct what the following log lines name, then apply the phase slurm again'
# Also after a restart: the daemons of the nodes keep the previous configuration until they are informed.
timeout 60 scontrol reconfigure || fail 'scontrol reconfigure failed' 'correct what the following log lines name, then apply the phase slurm again'
sh $applied_script slurmctld record
mkdir -p /var/lib/primus
current > $informed
