# Let slurmd run with the controllers' configuration: restart it where it runs with another, or not at all. Jobs go on meanwhile.
# $1 is the node_digest that the controllers have (empty where this run did not ask them), $2 `look` where nothing may be changed.
marks=/usr/local/lib/primus/slurm/marks.sh noted=/run/primus-slurmd/applied
now() { sh $marks slurmd show; }
if ! systemctl is-enabled --quiet slurmd; then
    echo stale
    [ "$2" = look ] || systemctl enable --quiet slurmd
fi
# The controllers tell running nodes of a new configuration; it takes a moment.
if [ -n "$1" ] && [ "$2" != look ] && systemctl is-active --quiet slurmd; then
    for _ in $(seq 50); do now | grep -q "^restart $1 " && break; sleep 0.2; done
fi
if systemctl is-active --quiet slurmd && [ "$(now)" = "$(cat $noted 2> /dev/null)" ]; then
    if [ -z "$1" ] || grep -q "^restart $1 " $noted; then exit 0; fi
fi
echo stale
[ "$2" != look ] || exit 0
systemctl daemon-reload
systemctl reset-failed slurmd 2> /dev/null
systemctl restart slurmd && systemctl is-active --quiet slurmd && [ -e $noted ] && exit 0
echo "slurmd has no configuration from the controllers. Fix: see the lines below; the controllers' port must be open to this host, and munge's key the same." >&2
{ journalctl --unit slurmd --lines 5 --no-pager --output cat; tail -n 5 /var/log/slurm/slurmd.log; } >&2 2> /dev/null
exit 1
