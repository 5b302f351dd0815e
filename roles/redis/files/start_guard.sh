# Refuse to start a primary whose data are gone: it would be empty, and every replica would empty itself within a second to be like it.
# $1 is the data folder; $2 is a file that a former start has left, on the system's disk.
[ -e "$1/appendonlydir" ] || [ -e "$1/appendonly.aof" ] && exit 0
fix="mount the disk of $1, or restore a backup (playbooks/day2/restore_redis.yml); to begin empty: rm -f $2"
if [ -e "$2" ]; then
    echo "Redis has held data here, and $1 has none now. Not started, because replicas would follow. Fix: $fix" >&2
    exit 1
fi
# With an append-only file stated and none there, Redis starts empty and overwrites dump.rdb.
[ ! -e "$1/dump.rdb" ] && exit 0
echo "$1 has a dump.rdb and no append-only file; a start would lose it. Not started. Fix: restore_redis with redis_restore_file=$1/dump.rdb, or move it away" >&2
exit 1
