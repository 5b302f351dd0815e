# Remove certificates, keys and filters below $2 that are not among $3…, the files that Envoy uses now. With `look` as $1, only print them.
mode=$1 base=$2
shift 2
for file in "$base"/tls/* "$base"/wasm/*; do
    [ -f "$file" ] || continue
    for used in "$@"; do [ "$file" != "$used" ] || continue 2; done
    echo "$file"
    [ "$mode" = look ] || rm -f "$file"
done
