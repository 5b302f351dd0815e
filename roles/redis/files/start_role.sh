# Write the file $1, which redis.conf includes: the primary that this host follows; empty if this host ($2) is the primary itself.
# A host that was the primary before it failed must not continue as one, so the sentinels decide (script $3), not the inventory.
# Before the first start of the group, nobody knows a primary: then it is $4. $5 is the port; $6 and the rest are the start guard of a primary.
set -eu
file=$1 own=$2 ask=$3 first=$4 port=$5
shift 5
primary=$(/bin/sh "$ask")
primary=${primary:-$first}
if [ "$primary" = "$own" ]; then
    /bin/sh "$@"
    : > "$file"
else
    echo "replicaof $primary $port" > "$file"
fi
