# Have the key of URL $1 in file $3, if its fingerprint is $2. $4 is `look` where nothing may be changed.
set -eu
whose() { gpg --batch --show-keys --with-colons "$1" 2> /dev/null | awk -F: '$1 == "pub" {first = 1} $1 == "fpr" && first {print $10; first = 0}'; }
[ ! -e "$3" ] || [ "$(whose "$3")" != "$2" ] || exit 0
echo "fetches $1"
[ "$4" != look ] || exit 0
export GNUPGHOME=$(mktemp -d)
trap 'rm -rf "$GNUPGHOME" "$3.new"' EXIT
# Every host has Python; not every one has curl.
python3 -c 'import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=60).read())' "$1" > "$3.new" || {
    echo "$1 cannot be fetched. Fix: see that this host reaches it, or name a mirror with gpu_driver_repo_url" >&2
    exit 1
}
found=$(whose "$3.new")
[ "$found" = "$2" ] || {
    echo "the key of $1 has the fingerprint ${found:-(none)} and not $2. Fix: look what that server gives out; a mirror has to keep the vendor's own key" >&2
    exit 1
}
chmod 0644 "$3.new"
mv "$3.new" "$3"
