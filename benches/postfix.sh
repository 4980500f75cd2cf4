#!/usr/bin/env bash
# Starts a Postfix that takes mail on 127.0.0.1:PORT and delivers it nowhere, in a directory of its
# own, to be measured beside our SMTP:
#
#     benches/postfix.sh start /tmp/postfix 2525
#     cargo bench --bench send_path -- smtp --postfix 127.0.0.1:2525
#     benches/postfix.sh stop /tmp/postfix
#
# Needs root and Debian's postfix, whose own instance need not run. A message is accepted when its
# queue file is on disk, as always; then it is discarded.
set -euo pipefail

directory=$2
case $1 in
    start)
        mkdir -p "$directory"/etc "$directory"/queue "$directory"/data
        chmod 755 "$directory" "$directory"/etc "$directory"/queue
        chown postfix "$directory"/data
        cat >"$directory/etc/main.cf" <<EOF
compatibility_level = 3.6
queue_directory = $directory/queue
data_directory = $directory/data
mail_owner = postfix
setgid_group = postdrop
myhostname = localhost
inet_interfaces = loopback-only
inet_protocols = ipv4
mydestination =
mynetworks = 127.0.0.0/8
smtpd_recipient_restrictions = permit_mynetworks, reject
default_transport = discard
relay_transport = discard
alias_maps =
alias_database =
maillog_file = $directory/queue/log
maillog_file_prefixes = $directory
EOF
        # Its SMTP server on our port, and nothing in a changed root.
        sed -E -e "s/^smtp +inet .*/127.0.0.1:$3 inet n - n - 100 smtpd/" \
            -e 's/^([^# ]+ +[a-z-]+ +[yn-] +[yn-] +)y/\1n/' \
            /usr/share/postfix/master.cf.dist >"$directory/etc/master.cf"
        postfix -c "$directory/etc" start
        ;;
    stop) postfix -c "$directory/etc" stop ;;
    *) exit 2 ;;
esac
