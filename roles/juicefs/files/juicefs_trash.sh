# Restrict the trash of the volume on $1 to root: mount an empty folder over it that only root can enter. With $2 = look, change nothing.
# JuiceFS shows deleted files with their owners and modes in a folder that every account can enter, and it ignores chmod there.
# The inode number is that of JuiceFS's own folder. No account can create a folder with it, so nothing of a user is covered, and no link is followed.
trash=$1/.trash
[ "$(timeout 20 stat --format %i "$trash" 2> /dev/null)" = 9223372032828243968 ] || exit 0
echo closes
[ "$2" = look ] || timeout 20 mount -t tmpfs -o ro,nosuid,nodev,noexec,size=4k,nr_inodes=1,mode=0500 juicefs-trash-closed "$trash"
