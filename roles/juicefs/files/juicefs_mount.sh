# Become the process of a mount: the words are its command line.
# JuiceFS 1.2 and later hands the mount over through the socket /tmp/fuse_fd_comm.PID, and goes on where something else lies there. In /tmp
# every account can put a folder in the place of that name, and then a socket of its own. This file is root's, and /tmp is sticky: nobody
# but root can replace it, until JuiceFS does. The unit checks afterwards that the socket is root's.
socket=/tmp/fuse_fd_comm.$$
rm -rf -- "$socket"
set -C
: > "$socket" || { echo "$socket is made by somebody else at this moment; see: ls -ld $socket" >&2; exit 1; }
exec "$@"
