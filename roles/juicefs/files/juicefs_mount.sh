# Become the process of a mount: the words are its command line.
# JuiceFS 1.2 and later hands the mount over through the socket /tmp/fuse_fd_comm.PID, and goes on where something else lies there. It reads
# the handles of open files from /tmp/statePID.json, and hangs where that is a pipe. Every account can create both names, so they are made
# root's first: a folder, which JuiceFS replaces by its socket, and an empty state. JuiceFS moves the state to NAME.bak once it has read it,
# which the folder there makes impossible: so the name stays root's, also for a process that starts after a crash.
# The unit checks afterwards that the socket is root's.
state=/tmp/state$$.json
/usr/bin/python3 -I "${0%/*}/juicefs_claim.py" folder "/tmp/fuse_fd_comm.$$" folder "$state.bak" file "$state" || exit 1
exec "$@"
