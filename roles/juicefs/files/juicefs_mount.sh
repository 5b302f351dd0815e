# Become the process of a mount; the arguments are its command line.
# JuiceFS 1.2 and later hands the mount over through the socket /tmp/fuse_fd_comm.PID, and continues without it if the path is taken. It reads
# the handles of open files from /tmp/statePID.json, and hangs if that is a pipe. Every account can create both paths, so this script replaces
# them by root's first: a folder, which JuiceFS replaces by its socket, and an empty state. JuiceFS renames the state to NAME.bak after reading
# it. The folder NAME.bak prevents that, so the path stays root's, also for a process that starts after a crash.
# The unit checks afterwards that root owns the socket.
state=/tmp/state$$.json
/usr/bin/python3 -I "${0%/*}/juicefs_claim.py" folder "/tmp/fuse_fd_comm.$$" folder "$state.bak" file "$state" || exit 1
exec "$@"
