#!/usr/bin/env bash
# Runs a command beside a PostgreSQL server of its own, in a temporary directory that goes with it.
# The command finds the server's port on 127.0.0.1 in TEST_POSTGRES_PORT; the user is
# "pillarbox", and needs no password.
#
#     tests/with-postgres.sh cargo test -p pillarbox-store conformance
#
# Debian has the server in the package "postgresql". POSTGRES_BIN names another directory of programs.
# With POSTGRES_CLOCK=faked, the server's clock is off by what the file that TEST_POSTGRES_CLOCK names
# says, such as "+95d" (libfaketime).
set -euo pipefail

if (($# == 0)); then
    printf 'Usage: %s COMMAND [ARGUMENT...]\n' "$0" >&2
    exit 2
fi
bin="${POSTGRES_BIN:-$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)}"
if [[ ! -x $bin/initdb ]]; then
    echo 'There is no PostgreSQL server: install postgresql, or set POSTGRES_BIN.' >&2
    exit 1
fi
directory="$(mktemp -d)"
chmod 711 "$directory"
as_user=()
if [[ $(id -u) = 0 ]]; then
    # The server refuses to run as root.
    chown nobody "$directory"
    as_user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
fi
stop() {
    cd /
    "${as_user[@]}" "$bin/pg_ctl" -D "$directory/data" -m immediate stop >/dev/null 2>&1 || true
    rm -rf "$directory"
}
trap stop EXIT

port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
# With a certificate of its own, which clients are told to trust.
export TEST_POSTGRES_CA="$directory/server.crt"
"${as_user[@]}" openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=test -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1,DNS:localhost \
    -keyout "$directory/server.key" -out "$TEST_POSTGRES_CA" 2>/dev/null
if [[ ${POSTGRES_CLOCK:-} = faked ]]; then
    export TEST_POSTGRES_CLOCK="$directory/clock"
    echo +0 >"$TEST_POSTGRES_CLOCK"
    chmod 644 "$TEST_POSTGRES_CLOCK"
    as_user+=(env "LD_PRELOAD=$(ls /usr/lib/*/faketime/libfaketime.so.1)"
        "FAKETIME_TIMESTAMP_FILE=$TEST_POSTGRES_CLOCK" FAKETIME_NO_CACHE=1
        FAKETIME_DONT_FAKE_MONOTONIC=1)
fi
(
    cd "$directory"
    "${as_user[@]}" "$bin/initdb" -D data -U pillarbox -A trust --no-sync -E UTF8 --locale=C >/dev/null
    # Tests ask what happens if a process ends, not if the machine does. A node holds seven
    # connections, and as many tests as the machine has processors run at one time, some with several
    # nodes.
    "${as_user[@]}" "$bin/pg_ctl" -D data -l log -w start -o "-p $port -k $directory \
        -c listen_addresses=127.0.0.1 -c ssl=on -c ssl_cert_file=$TEST_POSTGRES_CA \
        -c ssl_key_file=$directory/server.key -c max_connections=1000 -c fsync=${POSTGRES_FSYNC:-off}" >/dev/null
) || { cat "$directory/log" >&2; exit 1; }
TEST_POSTGRES_PORT="$port" "$@"
