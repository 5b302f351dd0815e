# Make the folders that are missing: $2 to mount on, $3 for the cache, $4 for secrets. A stale mount is not looked into: it would answer with an error.
mode=$1
make() {
    [ -d "$1" ] || grep -q " $1 fuse" /proc/mounts || {
        echo "makes $1"
        [ "$mode" = look ] || install -d -o root -g root -m "$2" "$1"
    }
}
make "$2" 0755
make "$3" 0700
make "$4" 0700
