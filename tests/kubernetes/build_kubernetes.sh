#!/usr/bin/env bash
# Kubernetes from the distribution's source, into a folder of programs. Debian 12 has the source of 1.20.2 and a Go that compiles it, and
# nothing has to come from anywhere else. Four to five minutes on two cores, and 2.5 GB meanwhile.
#   build_kubernetes.sh WORK_FOLDER PROGRAM_FOLDER
# apt packages: golang-1.19-go gcc libc6-dev xz-utils
set -euo pipefail
WORK=$(realpath -m "$1")
PROGRAMS=$(realpath -m "$2")
VERSION=1.20.2
SOURCE=$WORK/go/src/k8s.io/kubernetes
export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$WORK/go GOCACHE=$WORK/cache GO111MODULE=off CGO_ENABLED=0

say() { printf 'kubernetes: %4d s  %s\n' "$SECONDS" "$*" >&2; }

# The machine's own mirror, its sources switched on for this folder only: apt's own lists stay as they are.
fetch() {
    local lists=$WORK/apt options
    mkdir -p "$lists"/{lists/partial,cache/archives/partial,sources} "$WORK/fetched" "$SOURCE" "$PROGRAMS"
    cp /etc/apt/sources.list.d/*.sources "$lists/sources/" 2> /dev/null || true
    sed -i 's/^Types:.*/Types: deb deb-src/' "$lists"/sources/*.sources 2> /dev/null || true
    { grep -hs '^deb ' /etc/apt/sources.list /etc/apt/sources.list.d/*.list || true; } | sed 'p; s/^deb /deb-src /' > "$lists/sources/plain.list"
    options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$lists/sources" -o "Dir::State::lists=$lists/lists"
        -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update --quiet=2
    cd "$WORK/fetched"
    apt-get "${options[@]}" source --quiet=2 --download-only kubernetes > /dev/null
    apt-get "${options[@]}" download --quiet=2 golang-github-modern-go-reflect2-dev > /dev/null
    # Debian numbers it 1.20.5+really1.20.2.
    ls kubernetes_*"$VERSION".orig.tar.gz > /dev/null || { echo "the distribution has no source of kubernetes $VERSION" >&2; exit 3; }
    tar --directory "$SOURCE" --strip-components=1 --extract --file kubernetes_*"$VERSION".orig.tar.gz
}

# reflect2 1.0.1, which the source carries, ends in SIGSEGV when compiled by Go 1.18 and later: the API server dies at the first request
# for a custom resource. Debian's own package of 1.0.2 does not.
replace_reflect2() {
    local vendored=$SOURCE/vendor/github.com/modern-go/reflect2
    dpkg --extract "$WORK"/fetched/golang-github-modern-go-reflect2-dev_*.deb "$WORK/reflect2"
    rm -rf "$vendored"
    cp -r "$WORK/reflect2/usr/share/gocode/src/github.com/modern-go/reflect2" "$vendored"
    rm -f "$vendored"/*_test.go
}

# The tarball comes without the generated OpenAPI definitions. Same inputs as KUBE_OPENAPI_DIRS in build/root/Makefile.generated_files.
generate_openapi() {
    cd "$SOURCE"
    nice -n 5 go build -o "$WORK/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    local packages
    packages=$(find -L vendor/k8s.io pkg cmd plugin -name '*.go' -not -path '*/testdata/*' -not -path 'vendor/k8s.io/code-generator/*' \
        -not -path 'vendor/k8s.io/sample-apiserver/*' -print0 | { xargs -0 grep -l '+k8s:openapi-gen=' || true; } | xargs -n1 dirname | LC_ALL=C sort -u |
        sed 's|^|k8s.io/kubernetes/|' | paste -sd,)
    nice -n 5 "$WORK/openapi-gen" --logtostderr -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
        -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$WORK/violations"
}

build() {
    cd "$SOURCE"
    local flags='-s -w' package program
    # Without modules the import path carries `vendor`; without it, -X is ignored in silence and the version is v0.0.0-master.
    for package in component-base/version client-go/pkg/version; do
        package=k8s.io/kubernetes/vendor/k8s.io/$package
        flags+=" -X $package.gitVersion=v$VERSION -X $package.gitMajor=1 -X $package.gitMinor=20 -X $package.gitTreeState=clean"
        flags+=" -X $package.buildDate=2021-01-13T00:00:00Z"
    done
    for program in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet kubeadm kube-proxy; do
        nice -n 5 go build -ldflags "$flags" -o "$PROGRAMS/$program" "./cmd/$program"
        say "$program"
    done
    # The one program that the source has in C; every pod has one.
    gcc -Os -static -DVERSION=3.2 -o "$PROGRAMS/pause" build/pause/linux/pause.c
}

fetch
say 'source is here'
replace_reflect2
generate_openapi
say 'definitions generated'
build
