# Check whether this host (named $1) can mount with FUSE: exit code 0, or 3 with a verdict if it cannot. Exit code 1 if a program other than
# unit $3 uses port $2 (0 = no port).
group=$(systemctl show --property ControlGroup --value "$3" 2> /dev/null)
for pid in $(ss -Hltnp "sport = :$2" | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u); do
    if [ -n "$group" ] && grep -q "$group" "/proc/$pid/cgroup"; then continue; fi
    echo "port $2 on $1 is in use by $(cat "/proc/$pid/comm") ($pid). Fix: stop it, or set juicefs_metrics_port to another port." >&2
    exit 1
done
[ -c /dev/fuse ] || modprobe fuse 2> /dev/null
reason=
# A mount needs CAP_SYS_ADMIN, which is bit 21 (capabilities(7)).
[ $((0x$(sed -n 's/^CapEff:\t//p' /proc/self/status) >> 21 & 1)) = 1 ] || reason='root has no CAP_SYS_ADMIN on this host (a container), so nothing can be mounted'
[ -c /dev/fuse ] || reason='this host has no /dev/fuse, so nothing can be mounted'
[ -n "$reason" ] || exit 0
cat << EOF
{"verdicts": [{"check": "juicefs.mounted", "host": "$1", "verdict": "skipped", "expected": "mounted", "found": "", "reason": "$reason",
 "fix": "modprobe fuse; for a container, --device /dev/fuse --cap-add SYS_ADMIN", "source": "roles/juicefs", "schema": "primus.verdict/1"}]}
EOF
exit 3
