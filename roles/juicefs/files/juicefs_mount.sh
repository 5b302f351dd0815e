# Become the process of a mount: the words are its command line.
# JuiceFS 1.2 and later hands the mount over through the socket /tmp/fuse_fd_comm.PID, and goes on where something else lies there. It reads
# the handles of open files from /tmp/statePID.json, and hangs where that is a pipe. Every account can create both names, so they are made
# root's first: a folder, which JuiceFS replaces by its socket, and an empty state. The unit checks afterwards that the socket is root's.
/usr/bin/python3 -I "${0%/*}/juicefs_claim.py" folder "/tmp/fuse_fd_comm.$$" file "/tmp/state$$.json" || exit 1
exec "$@"
