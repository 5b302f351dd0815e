export PODMAN_IGNORE_CGROUPSV1_WARNING=1
mkdir -p image/bin image/lib image/lib64
cp -L /bin/sh /bin/ls image/bin/
for file in $(ldd /bin/sh /bin/ls | grep -o '/lib[^ ]*' | sort -u); do mkdir -p "image$(dirname "$file")"; cp -L "$file" "image$file"; done
tar -C image -c . | podman import --quiet - localhost/test:1 > /dev/null 2>&1
podman run --rm localhost/test:1 /bin/sh -c 'echo inside'
podman run --rm --device=nvidia.com/gpu=all localhost/test:1 /bin/ls /dev/fakegpu0
id=$(podman run --detach localhost/test:1 /bin/sh -c 'i=0; while [ $i -lt 60000 ]; do echo "a line of some sixty characters, so that many make three MiB"; i=$((i + 1)); done')
podman wait "$id" > /dev/null
log=$(podman inspect --format '{{.HostConfig.LogConfig.Path}}' "$id")
[ "$(stat -c %s "$log")" -le 1100000 ] && echo bounded
podman rm --force "$id" > /dev/null
podman rmi --force localhost/test:1 > /dev/null
podman images --quiet | wc -l
