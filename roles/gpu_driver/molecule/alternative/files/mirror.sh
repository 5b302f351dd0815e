set -eu
mkdir -p /srv/fake/etc /srv/fake/proc/sys/kernel
printf 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n' > /srv/fake/etc/os-release
echo 6.1.0-28-amd64 > /srv/fake/proc/sys/kernel/osrelease
export GNUPGHOME=/root/mirror-key
install -d -m 0700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-generate-key 'Mirror of the test' ed25519 sign never 2> /dev/null
package() { # name, version, repository
    file=pool/main/$1_$(echo "$2" | tr : _).deb
    printf 'Package: %s\nVersion: %s\nPriority: optional\nSection: misc\nMaintainer: Advanced Micro Devices (AMD) <gpudriverdevsupport@amd.com>\nArchitecture: all\nFilename: %s\nSize: 1000\nSHA256: %s\nDescription: metadata of %s\n\n' \
        "$1" "$2" "$file" "$(echo "$file" | sha256sum | cut -d' ' -f1)" "$1" >> "$3/dists/jammy/main/binary-amd64/Packages"
}
for repository in amdgpu/6.4.4/ubuntu rocm/apt/6.4.4; do
    here=/srv/mirror/$repository
    mkdir -p "$here/dists/jammy/main/binary-amd64"
    : > "$here/dists/jammy/main/binary-amd64/Packages"
    case $repository in
        amdgpu/*)
            package amdgpu-dkms 1:6.12.12.60404-2202139.22.04 "$here"
            package amdgpu-dkms 1:6.14.14.30100200-2226257.22.04 "$here"
            package linux-headers-6.1.0-28-amd64 6.1.119-1 "$here" ;;
        *) package amd-smi-lib 25.5.1.60404-129~22.04 "$here"; package rocminfo 1.0.0.60404-129~22.04 "$here" ;;
    esac
    cd "$here/dists/jammy"
    size=$(stat -c %s main/binary-amd64/Packages)
    sum=$(sha256sum main/binary-amd64/Packages | cut -d' ' -f1)
    printf 'Origin: repo.radeon.com\nSuite: jammy\nCodename: jammy\nArchitectures: amd64\nComponents: main\nDate: %s\nSHA256:\n %s %s main/binary-amd64/Packages\n' \
        "$(LC_ALL=C date -Ru)" "$sum" "$size" > Release
    gpg --batch --quiet --yes --clearsign --output InRelease Release
done
mkdir -p /srv/mirror/rocm
gpg --armor --export > /srv/mirror/rocm/rocm.gpg.key
chmod -R a+rX /srv/mirror
gpg --list-keys --with-colons | awk -F: '$1 == "fpr" {print $10; exit}' > /srv/mirror/fingerprint
