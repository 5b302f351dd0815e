# Create the missing folders: $2 to mount on, $3 for the cache, $4 for secrets. With $1 = look, change nothing.
# ansible.builtin.file cannot do this: it opens the mount point, which fails on a stale mount.
mode=$1
create() {
    [ -d "$1" ] || grep -q " $1 fuse" /proc/mounts || {
        echo "creates $1"
        [ "$mode" = look ] || install -d -o root -g root -m "$2" "$1"
    }
}
create "$2" 0755
create "$3" 0700
create "$4" 0700
