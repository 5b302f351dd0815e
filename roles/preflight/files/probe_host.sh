# Find Python and run the program on stdin: a line with the interpreter's name (empty: python3), a line with the program's length in
# characters, the program, its options. POSIX shell only: the role `preflight` and `primus-bootstrap probe` send it as their command.
read -r interpreter
python=$(command -v "${interpreter:-python3}" || command -v /usr/libexec/platform-python) || { echo "no ${interpreter:-python3} on this host" >&2; exit 127; }
exec "$python" -I -S -c 'import sys
if sys.version_info < (3, 9): sys.exit("python %d.%d is older than 3.9" % sys.version_info[:2])
exec(compile(sys.stdin.read(int(sys.stdin.readline())), "probe_host.py", "exec"))'
