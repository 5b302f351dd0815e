# Become the process of a mount: the words are its command line.
# JuiceFS 1.2 and later hands the mount over through the socket /tmp/fuse_fd_comm.PID, and goes on where something else lies there. In /tmp
# every account can put a folder in the place of that name, and then a socket of its own. This folder is root's, and /tmp is sticky: nobody
# but root can replace it, until JuiceFS does. The unit checks afterwards that the socket is root's.
socket=/tmp/fuse_fd_comm.$$
rm -rf -- "$socket"
mkdir -m 0700 -- "$socket" || { echo "somebody else makes $socket at this moment; see: ls -ld $socket" >&2; exit 1; }
exec "$@"
