# Finds Python and runs the program that stdin brings: a line with the interpreter's name (empty: python3), a line with the
# program's length in characters, the program, its options. Kept to what every POSIX shell knows: the role `preflight` and
# `primus-bootstrap probe` both send it as their command.
read -r wanted
python=$(command -v "${wanted:-python3}" || command -v /usr/libexec/platform-python) || { echo "no ${wanted:-python3} on this host" >&2; exit 127; }
exec "$python" -I -S -c 'import sys
if sys.version_info < (3, 9): sys.exit("python %d.%d is older than 3.9" % sys.version_info[:2])
exec(compile(sys.stdin.read(int(sys.stdin.readline())), "probe_host.py", "exec"))'
