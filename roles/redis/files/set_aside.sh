# Stop unit $1, which becomes a replica, and move its data in folder $2 aside, because a new replica deletes its data.
set -eu
systemctl stop "$1"
aside=$2/before-following-$(date -u +%Y%m%dT%H%M%SZ)
install -d -o redis -g redis -m 0750 "$aside"
for name in appendonlydir appendonly.aof dump.rdb; do
    [ ! -e "$2/$name" ] || mv "$2/$name" "$aside/"
done
echo "data set aside in $aside"
