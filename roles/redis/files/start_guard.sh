# Fail the start of a primary whose data are missing: it would be empty, and its replicas would delete their data within a second.
# $1 is the data folder; $2 is the marker that an earlier start has left on the system disk.
[ -e "$1/appendonlydir" ] || [ -e "$1/appendonly.aof" ] && exit 0
fix="mount the disk of $1, or restore a backup (playbooks/day2/restore_redis.yml); to start empty: rm -f $2"
if [ -e "$2" ]; then
    echo "Redis had data here, and $1 is empty now. Not started, because replicas would delete their data. Fix: $fix" >&2
    exit 1
fi
# With appendonly configured and no append-only file, Redis starts empty and overwrites dump.rdb.
[ ! -e "$1/dump.rdb" ] && exit 0
echo "$1 has a dump.rdb and no append-only file; a start would overwrite it. Not started. Fix: run restore_redis.yml with redis_restore_file=$1/dump.rdb, or move the file away" >&2
exit 1
