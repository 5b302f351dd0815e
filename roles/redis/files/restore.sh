# Restore file $3 (empty: the newest in folder $4) as the data of unit $1 in folder $2. The former data are set aside, not deleted.
# The newest backup is not used if it is older than $5 hours or empty, unless $3 names it. If loading takes more than $6 seconds, the script
# fails and the start continues. With $7 = look, change nothing.
set -eu
unit=$1 data=$2 file=$3 backups=$4 most_h=$5 wait_s=$6 mode=$7 named=$3
fail() { echo "$1. Fix: $2" >&2; exit 1; }

[ -n "$file" ] || file=$(ls -1 "$backups"/dump-*.rdb 2> /dev/null | sort | tail -n 1)
[ -n "$file" ] && [ -f "$file" ] || fail "there is no backup ${file:-in $backups}" "set redis_restore_file to a backup on this host"
found=$(redis-check-rdb "$file") || fail "$file is damaged" "restore an older backup with redis_restore_file"
keys=$(echo "$found" | sed -n 's/.* \([0-9]*\) keys read.*/\1/p')
age_h=$((($(date +%s) - $(stat -c %Y "$file")) / 3600))
what="$file, $age_h h old, ${keys:-an unknown number of} keys"
others="others: $(ls -1 "$backups"/dump-*.rdb 2> /dev/null | sort | tail -n 6 | tr '\n' ' ')"
if [ -z "$named" ]; then
    [ "$age_h" -le "$most_h" ] || fail "the newest backup is $what, and more than $most_h h would be lost" "to use it anyway, set redis_restore_file to it; $others"
    [ "$keys" != 0 ] || fail "the newest backup is $what: it is empty" "set redis_restore_file to an older one; $others"
fi
echo "$what"
[ "$mode" != look ] || exit 0

# Redis loads the append-only file, so the backup becomes its base: a folder with a manifest from Redis 7 on, one file before.
aside=$data/before-restore-$(date -u +%Y%m%dT%H%M%SZ)
major=$(redis-server --version | sed -n 's/.*v=\([0-9]*\).*/\1/p')
new=$data/restore.new
rm -rf "$new"
install -d -o redis -g redis -m 0750 "$new"
if [ "$major" -ge 7 ]; then
    install -d -o redis -g redis -m 0750 "$new/appendonlydir"
    install -o redis -g redis -m 0640 "$file" "$new/appendonlydir/appendonly.aof.1.base.rdb"
    echo 'file appendonly.aof.1.base.rdb seq 1 type b' > "$new/appendonlydir/appendonly.aof.manifest"
    chown redis:redis "$new/appendonlydir/appendonly.aof.manifest"
else
    install -o redis -g redis -m 0640 "$file" "$new/appendonly.aof"
fi

systemctl stop "$unit"
install -d -o redis -g redis -m 0750 "$aside"
for name in appendonlydir appendonly.aof dump.rdb; do
    [ ! -e "$data/$name" ] || mv "$data/$name" "$aside/"
done
mv "$new"/* "$data/"
rmdir "$new"
echo "restored $file"
echo "the former data are in $aside"
systemctl start --no-block "$unit"
wait_for_start "$unit" "$wait_s"
