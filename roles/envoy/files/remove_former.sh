# Remove files of certificates, keys and filters below $2 that are none of $3…: what runs has taken up those. $1 is `look` where nothing may change.
mode=$1 base=$2
shift 2
for file in "$base"/tls/* "$base"/wasm/*; do
    [ -f "$file" ] || continue
    for kept in "$@"; do [ "$file" != "$kept" ] || continue 2; done
    echo "$file"
    [ "$mode" = look ] || rm -f "$file"
done
