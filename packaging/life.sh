#!/usr/bin/env bash
# A package's life, within the copy of a machine that packaging/test.sh makes: install, first
# message, upgrade, removal, purge. Systemd does not run here, so the service is started as the unit
# says, by hand.
set -euo pipefail

readonly PACKAGE="$1"
readonly UNIT=/usr/lib/systemd/system/pillarbox.service
readonly DATA=/var/lib/pillarbox
readonly CONFIGURATION=/etc/pillarbox/pillarbox.toml
readonly CREDENTIALS=/run/credentials/pillarbox.service
export DEBIAN_FRONTEND=noninteractive
readonly log=/tmp/service.log tries=300
source "$(dirname "${BASH_SOURCE[0]}")/kit.sh"

setting() { sed -n "s/^$1=//p" "$UNIT"; }
owner() { stat -c %U:%G:%a "$1"; }

start() {
    # As the unit's User=, RuntimeDirectory=, LoadCredential=, capabilities and limits have it.
    install -d -o pillarbox -g pillarbox -m 0700 /run/pillarbox
    install -d -o pillarbox -m 0500 "$CREDENTIALS"
    install -o pillarbox -m 0400 /etc/pillarbox/aws "$CREDENTIALS/aws"
    local aws
    aws="$(setting Environment)"
    env "${aws/\%d/$CREDENTIALS}" systemd-socket-activate --listen 127.0.0.1:8025 \
        --setenv=AWS_SHARED_CREDENTIALS_FILE \
        prlimit --core="$(setting LimitCORE)" \
        setpriv --reuid pillarbox --regid pillarbox --clear-groups --no-new-privs \
        --bounding-set=-all --inh-caps=-all $(setting ExecStart) 2>>$log &
    service=$!
    wait_for "answer at the socket" curl -s http://127.0.0.1:8025/
}

echo "== install"
dpkg --install "$PACKAGE"
[[ $(owner $DATA) = pillarbox:pillarbox:700 ]] || fail "the data directory is $(owner $DATA)"
[[ $(getent passwd pillarbox | cut -d: -f6,7) = $DATA:/usr/sbin/nologin ]] || fail "the user is odd"

echo "== unit"
systemd-analyze verify --man=no "${UNIT%.service}"*
systemd-analyze security --offline=true --threshold=13 "$UNIT" >/tmp/security \
    || fail "$(tail -n 2 /tmp/security)"
tail -n 1 /tmp/security
man --warnings -E UTF-8 -l /usr/share/man/man1/pillarbox.1.gz >/dev/null

echo "== first message"
cat >/etc/pillarbox/aws <<'AWS'
[default]
aws_access_key_id = simulator
aws_secret_access_key = simulator
AWS
chmod 0600 /etc/pillarbox/aws
sed -i 's|^# endpoint = .*|endpoint = "http://127.0.0.1:9100"|' $CONFIGURATION
pillarbox simulator --listen 127.0.0.1:9100 --verified example.com >/tmp/simulator.log &
simulator=$!
start
pillarbox org add acme
pillarbox domain add --org acme example.com --assume-verified
key="$(pillarbox key add --org acme --expires 90d --json | sed 's/.*"key":"\([^"]*\)".*/\1/')"
first="$(send)"
wait_for "sent message: $(pillarbox status)" is_sent "$first"
pillarbox status
[[ $(owner $DATA/pillarbox.redb) = pillarbox:pillarbox:600 ]] || fail "$(owner $DATA/pillarbox.redb)"
pillarbox backup /tmp/backup.redb
stop

echo "== upgrade keeps data and configuration"
dpkg --install "$PACKAGE"
grep -q '^endpoint' $CONFIGURATION || fail "the configuration was overwritten"
start
is_sent "$first" || fail "the message is gone"
wait_for "message sent after the upgrade" is_sent "$(send)"
stop

echo "== removal and purge keep the data"
dpkg --remove pillarbox
[[ -s $DATA/pillarbox.redb && -e $CONFIGURATION ]] || fail "removal took something away"
dpkg --purge pillarbox
[[ -s $DATA/pillarbox.redb ]] || fail "the purge took the data away"
[[ ! -e /etc/pillarbox ]] || fail "the purge left configuration: $(ls /etc/pillarbox)"

echo "== a backup is restored after a new installation"
dpkg --install "$PACKAGE"
pillarbox restore --replace /tmp/backup.redb
[[ $(owner $DATA/pillarbox.redb) = pillarbox:pillarbox:600 ]] || fail "$(owner $DATA/pillarbox.redb)"
pillarbox message show "$first" | grep -q sent || fail "the message is not in the backup"
kill "$simulator"
