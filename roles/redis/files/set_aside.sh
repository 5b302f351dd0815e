# Stop unit $1, which is to follow a primary from now on, and set aside what it holds in folder $2: following would remove it.
set -eu
systemctl stop "$1"
aside=$2/before-following-$(date -u +%Y%m%dT%H%M%SZ)
install -d -o redis -g redis -m 0750 "$aside"
for name in appendonlydir appendonly.aof dump.rdb; do
    [ ! -e "$2/$name" ] || mv "$2/$name" "$aside/"
done
echo "what this host held is in $aside"
