# Print the digests of the files that slurmctld or slurmd would read if it started now, or record them at its start.
#   applied.sh slurmctld|slurmd show|record
# slurmd gets its configuration from the controllers: `record` waits until it is there, and writes nothing if it does not come.
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
    record)
        umask 022
        if [ "$unit" = slurmd ]; then
            for _ in $(seq 150); do [ -e /run/slurm/conf/slurm.conf ] && break; sleep 0.2; done
            [ -e /run/slurm/conf/slurm.conf ] || exit 0
        fi
        show > "$folder/applied"
        ;;
esac
