# What unit $1 (slurmctld or slurmd) would read if it started now, as lines of sums; at its start the unit notes them.
#   marks.sh UNIT show | note
# slurmd has its configuration from the controllers: `note` waits until it has fetched it, and notes nothing where it does not come.
unit=$1 folder=/run/primus-$1
digest() { sed -n "s/^# primus .*$1=\([0-9a-f]*\).*/\1/p" "$2" 2> /dev/null | head -n 1; }

if [ "$unit" = slurmctld ]; then
    show() {
        echo "restart $(digest restart_digest /etc/slurm/slurm.conf) $(cat /etc/systemd/system/slurmctld.service.d/10-primus.conf | sha256sum)"
        echo "reread $(cat /etc/slurm/slurm.conf /etc/slurm/gres.conf /etc/slurm/topology.conf /etc/slurm/cgroup.conf /etc/slurm/job_container.conf 2> /dev/null | sha256sum)"
    }
else
    show() {
        echo "restart $(digest node_digest /run/slurm/conf/slurm.conf) $(cat /etc/systemd/system/slurmd.service.d/10-primus.conf /etc/primus/slurm_node.json 2> /dev/null | sha256sum)"
    }
fi

case $2 in
    show) show ;;
    note)
        umask 022
        if [ "$unit" = slurmd ]; then
            for _ in $(seq 150); do [ -e /run/slurm/conf/slurm.conf ] && break; sleep 0.2; done
            [ -e /run/slurm/conf/slurm.conf ] || exit 0
        fi
        show > "$folder/applied"
        ;;
esac
