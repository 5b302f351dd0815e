# Usage: fetch_key.sh URL FINGERPRINT FILE apply|check
# Download the key at URL to FILE, if it has the FINGERPRINT. `check` changes nothing.
set -eu
fingerprint_of() { gpg --batch --show-keys --with-colons "$1" 2> /dev/null | awk -F: '$1 == "pub" {first = 1} $1 == "fpr" && first {print $10; first = 0}'; }
[ ! -e "$3" ] || [ "$(fingerprint_of "$3")" != "$2" ] || exit 0
echo "downloads $1"
[ "$4" != check ] || exit 0
export GNUPGHOME=$(mktemp -d)
trap 'rm -rf "$GNUPGHOME" "$3.new"' EXIT
# Every host has Python, but not every host has curl.
python3 -c 'import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1], timeout=60).read())' "$1" > "$3.new" || {
    echo "$1 cannot be downloaded. Fix: allow this host to reach it, or set gpu_driver_repo_url to a mirror" >&2
    exit 1
}
found=$(fingerprint_of "$3.new")
[ "$found" = "$2" ] || {
    echo "the key of $1 has the fingerprint ${found:-(none)} and not $2. Fix: use a mirror with the vendor's key, or set gpu_driver_key_fingerprint to the fingerprint of your mirror's key" >&2
    exit 1
}
chmod 0644 "$3.new"
mv "$3.new" "$3"
