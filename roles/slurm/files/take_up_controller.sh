# Let slurmctld run with the configuration that is there: restart it where it must be, else let it read again and tell the nodes.
# $1 is this host's name, $2 `look` where nothing may be changed. A run that was killed between writing and this is finished by the next.
marks=/usr/local/lib/primus/slurm/marks.sh noted=/run/primus-slurmctld/applied
# Which configuration the nodes were last told of; it outlives a restart, which tells them nothing.
told=/var/lib/primus/slurmctld_told
differs() { [ "$(sh $marks slurmctld show | grep "^$1 ")" != "$(grep "^$1 " $noted 2> /dev/null)" ]; }
current() { sh $marks slurmctld show | grep '^reread '; }
# Slurm's own answer: whether the controller of this name is up.
up() { timeout 10 scontrol ping 2> /dev/null | grep -E "at $1(\.[^ ]*)? is UP" > /dev/null; }
fail() {
    echo "$1. Fix: $2" >&2
    { journalctl --unit slurmctld --lines 5 --no-pager --output cat; tail -n 5 /var/log/slurm/slurmctld.log; } >&2 2> /dev/null
    exit 1
}

if ! systemctl is-enabled --quiet slurmctld; then
    echo stale
    [ "$2" = look ] || systemctl enable --quiet slurmctld
fi

start=no
if ! systemctl is-active --quiet slurmctld || differs restart; then start=yes; fi
if [ $start = no ] && ! differs reread && [ "$(current)" = "$(cat $told 2> /dev/null)" ]; then exit 0; fi
echo stale
[ "$2" != look ] || exit 0

if [ $start = yes ]; then
    systemctl daemon-reload
    systemctl reset-failed slurmctld 2> /dev/null
    systemctl restart slurmctld || fail 'slurmctld does not start' 'see the lines below'
fi
for _ in $(seq 40); do up "$1" && break; sleep 0.5; done
up "$1" || fail 'slurmctld does not answer within 20 s' 'see the lines below'
# Also after a restart: the nodes' daemons have the former configuration until they are told.
timeout 60 scontrol reconfigure || fail 'the configuration is not taken' 'see the lines below'
sh $marks slurmctld note
mkdir -p /var/lib/primus
current > $told
