#!/usr/bin/env bash
# Tries the archive and the container image of an architecture. umoci unpacks the image as a
# container engine does; then its program runs in it as the image's user, with a read-only root, a
# volume and nothing else of this machine's files. It sends a message, and is started again on the
# same volume.
#
# Usage: packaging/static_test.sh amd64|arm64, after packaging/build.sh. Needs root, umoci, curl,
# Python and, for the other architecture, qemu-user-static.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly ARCH="$1"
case "$ARCH" in
    amd64) readonly MACHINE=x86_64 ELF='Advanced Micro Devices X86-64' ;;
    arm64) readonly MACHINE=aarch64 ELF=AArch64 ;;
    *) echo "usage: packaging/static_test.sh amd64|arm64" >&2; exit 2 ;;
esac
source packaging/kit.sh
isolate "$@"

work="$(mktemp -d)"
trap 'umount --recursive --lazy "$work"; rmdir "$work"' EXIT
mount -t tmpfs tmpfs "$work"
readonly log="$work/log" tries=600

echo "== archive for $ARCH"
tar --extract --gzip --file target/packaging/pillarbox-*-"$ARCH".tar.gz --directory "$work" \
    --strip-components 1 --one-top-level=archive
binary="$work/archive/pillarbox"
readelf --file-header "$binary" | grep -q "Machine:.*$ELF" || fail "the binary is for another machine"
readelf --file-header "$binary" | grep -q 'Type:.*DYN' || fail "the binary has a fixed address"
if readelf --program-headers --dynamic "$binary" | grep -E 'INTERP|NEEDED'; then
    fail "the binary is not static"
fi
for file in LICENSE README.md SECURITY.md pillarbox.toml docs/deployment.md examples/compose.yaml \
    man/pillarbox.1 man/pillarbox.toml.5 completions/_pillarbox monitoring/install.sh \
    systemd/pillarbox.{service,socket,sysusers.conf}; do
    [[ -s $work/archive/$file ]] || fail "$file is not in the archive"
done

echo "== image for $ARCH"
mkdir "$work"/{layout,volume}
tar --extract --file target/packaging/pillarbox-*-"$ARCH".oci.tar --directory "$work/layout"
umoci unpack --image "$work/layout:$(umoci list --layout "$work/layout")" "$work/bundle"
root="$work/bundle/rootfs"
cmp "$binary" "$root/usr/bin/pillarbox" || fail "image and archive have different binaries"
programs="$(find "$root" -type f -perm /111 -printf '%P ')"
[[ $programs = "usr/bin/pillarbox " ]] || fail "there are other programs in the image: $programs"
# What an engine would run: the user, the variables and the words of the command, one a line.
process() {
    python3 -c 'import json, sys; process = json.load(open(sys.argv[1]))["process"]
user = "{uid}:{gid}".format(**process["user"])
print(*{"user": [user], "env": process["env"], "args": process["args"]}[sys.argv[2]], sep="\n")' \
        "$work/bundle/config.json" "$1"
}
user="$(process user)"
mapfile -t environment < <(process env)
mapfile -t command < <(process args)
[[ $user = 65532:65532 ]] || fail "the user is $user"
[[ $(stat -c %u:%g:%a "$root/var/lib/pillarbox") = "$user:700" ]] || fail "the volume is not the user's"

run=(env --ignore-environment "${environment[@]}" PILLARBOX_SES__ENDPOINT=http://127.0.0.1:9100
    AWS_ACCESS_KEY_ID=simulator AWS_SECRET_ACCESS_KEY=simulator
    /usr/sbin/chroot --userspec="$user" "$root")
if [[ $MACHINE != "$(uname -m)" ]]; then
    cp "$(command -v "qemu-$MACHINE-static")" "$root/emulator"
    run+=(/emulator)
fi
mkdir -p "$root/proc"
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
if touch "$root/refused" 2>/dev/null; then fail "the root can be written to"; fi
# A new volume gets the owner and the mode of the image's directory.
chown "$user" "$work/volume"
chmod 0700 "$work/volume"
mount --bind "$work/volume" "$root/var/lib/pillarbox"
mount -t proc proc "$root/proc"
pillarbox() { "${run[@]}" /usr/bin/pillarbox "$@"; }

start() {
    "${run[@]}" "${command[@]}" >>"$log" 2>&1 &
    service=$!
    wait_for "service that is ready" curl -sf http://127.0.0.1:8026/readyz
}

echo "== first message"
pillarbox --version
pillarbox simulator --listen 127.0.0.1:9100 --verified example.com >>"$log" 2>&1 &
wait_for "simulator" curl -s http://127.0.0.1:9100/
start
pillarbox org add acme
pillarbox domain add --org acme example.com --assume-verified >/dev/null
key="$(pillarbox key add --org acme --json | sed 's/.*"key":"\([^"]*\)".*/\1/')"
first="$(send)"
wait_for "sent message" is_sent "$first"
stop

echo "== started again on the same volume"
start
is_sent "$first" || fail "the message is gone"
wait_for "message sent after the restart" is_sent "$(send)"
stop
echo "The archive and the image for $ARCH are good."
