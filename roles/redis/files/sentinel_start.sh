# Write the file $1, which Sentinel reads at its start and rewrites while it runs: the settings in $2, and what Sentinel has recorded about the
# group (name $3): its identity, the epochs, and the hosts that are still in the group ($4, separated by commas). The current primary is what script $5 prints;
# before the first start $6. $7 is the port of Redis, $8 the quorum.
set -eu
state=$1 settings=$2 name=$3 hosts=$4 ask=$5 first=$6 port=$7 quorum=$8
primary=$(/bin/sh "$ask")
pattern=$(echo "$hosts" | sed 's/[.]/[.]/g; s/,/|/g')
umask 077
{
    echo "sentinel monitor $name ${primary:-$first} $port $quorum"
    cat "$settings"
    [ ! -e "$state" ] || grep -E "^sentinel (myid|current-epoch|config-epoch|leader-epoch|known-(replica|sentinel) $name ($pattern)) " "$state" || true
} > "$state.new"
chown --reference="$(dirname "$state")" "$state.new"
mv "$state.new" "$state"
