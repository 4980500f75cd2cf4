#!/usr/bin/env bash
# Makes a package of sources and a binary, with what matters under systemd: units, configuration and
# maintainer scripts. packaging/build.sh makes the real one.
#
# Usage: tests/systemd/package.sh SOURCES BINARY VERSION PACKAGE.deb
set -euo pipefail

readonly SOURCES="$1" BINARY="$2" VERSION="$3" PACKAGE="$4"
tree="$(mktemp -d)"
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
umask 022

mkdir -p "$tree"/{DEBIAN,usr/bin,usr/lib/systemd/system,usr/lib/sysusers.d,etc/pillarbox}
strip --strip-debug -o "$tree/usr/bin/pillarbox" "$BINARY"
chmod 755 "$tree/usr/bin/pillarbox"
for unit in "$SOURCES"/systemd/*.{service,socket,slice}; do
    [[ ! -f $unit ]] || install -m 644 "$unit" "$tree/usr/lib/systemd/system/"
done
install -m 644 "$SOURCES/systemd/pillarbox.sysusers.conf" "$tree/usr/lib/sysusers.d/pillarbox.conf"
install -m 644 "$SOURCES/src/config/example.toml" "$tree/etc/pillarbox/pillarbox.toml"
for script in preinst postinst prerm postrm; do
    [[ ! -f $SOURCES/packaging/debian/$script ]] \
        || install -m 755 "$SOURCES/packaging/debian/$script" "$tree/DEBIAN/"
done
echo /etc/pillarbox/pillarbox.toml >"$tree/DEBIAN/conffiles"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: pillarbox
Version: $VERSION
Architecture: $(dpkg --print-architecture)
Maintainer: pillarbox developers <pillarbox@localhost>
Depends: ca-certificates
Description: pillarbox, for tests alone
CONTROL
dpkg-deb --root-owner-group -Zgzip -z1 --build "$tree" "$PACKAGE" >/dev/null
