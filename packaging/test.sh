#!/usr/bin/env bash
# Tries a Debian package: its form, its unit's sandbox, and its whole life from installation to
# purge on a copy of this machine's files, which is thrown away. Sends a message in between.
#
# Usage: packaging/test.sh FILE.deb. Needs root, lintian, systemd, curl, and overlay file systems.
set -euo pipefail

readonly PACKAGE="$(realpath "$1")"
readonly HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$HERE/kit.sh"
isolate "$@"

work="$(mktemp -d)"
mount -t tmpfs tmpfs "$work"
# Lazily, because a process that just ended may still keep it busy. Nothing below is removed by name:
# this machine's /dev is mounted there.
trap 'umount --recursive --lazy "$work"; rmdir "$work"' EXIT
mkdir "$work"/{upper,work,root,contents}

echo "== form"
# The host's name is that of whoever builds, there is no bug to close in a distribution, and the
# binary is static: because it is at an address of its own in each process, it looks like a library
# that needs no other.
lintian --fail-on error,warning --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog \
    --suppress-tags initial-upload-closes-no-bugs,statically-linked-binary \
    --suppress-tags shared-library-lacks-prerequisites "$PACKAGE"
[[ $(dpkg-deb --ctrl-tarfile "$PACKAGE" | tar -xO ./conffiles) = /etc/pillarbox/pillarbox.toml ]]
dpkg-deb --extract "$PACKAGE" "$work/contents"
for file in usr/bin/pillarbox usr/lib/systemd/system/pillarbox.{service,slice,socket} \
    usr/lib/systemd/system/pillarbox-{smtp,smtps}.socket \
    usr/lib/sysusers.d/pillarbox.conf usr/share/man/man1/pillarbox{,-key-add}.1.gz \
    usr/share/man/man5/pillarbox.toml.5.gz \
    usr/share/pillarbox/monitoring/{install.sh,alerts.yml,dashboard.json} \
    usr/share/bash-completion/completions/pillarbox usr/share/zsh/vendor-completions/_pillarbox \
    usr/share/fish/vendor_completions.d/pillarbox.fish; do
    [[ -s $work/contents/$file ]] || { echo "$file is not in the package" >&2; exit 1; }
done

echo "== completions"
bash -n "$work/contents/usr/share/bash-completion/completions/pillarbox"
bash -c 'source "$1"; COMP_WORDS=(pillarbox key ad); COMP_CWORD=2; _pillarbox pillarbox ad key
    [[ ${COMPREPLY[*]} = add ]]' - "$work/contents/usr/share/bash-completion/completions/pillarbox"

# Everything of this machine, with changes that only this copy sees.
# Exit code 77: all that this machine allows was good.
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" || exit 77
mount -t proc proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mount -t tmpfs tmpfs "$work/root/run"
mount -t tmpfs tmpfs "$work/root/tmp"
cp "$PACKAGE" "$work/root/tmp/pillarbox.deb"
cp "$HERE"/{life,kit}.sh "$work/root/tmp/"
chroot "$work/root" bash /tmp/life.sh /tmp/pillarbox.deb
echo "The package is good."
