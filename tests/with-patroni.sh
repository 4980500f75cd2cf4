#!/usr/bin/env bash
# Runs a command beside three PostgreSQL servers under Patroni, with etcd and a synchronous standby.
# Each of these parts has a network namespace of its own, so that a test can cut it off. The command
# runs in a namespace as well. Everything ends with the command.
#
#     tests/with-patroni.sh cargo test --features long --test interop -- patroni
#
# TEST_PATRONI names the directory. For each part there are in it
#     NAME.address    its address
#     NAME.start      a script that starts it, if it has ended
#     NAME.log        its log
# The parts are "etcd", "pg1", "pg2" and "pg3"; "app" is where the command runs, and "watch" is a
# place for observers that nobody cuts off. TEST_PATRONI_NAMESPACE, "-" and the name of the part
# make the name of a part's namespace. The servers listen on port 5432, Patroni on 8008. The user is
# "pillarbox", and needs no password. TEST_PATRONI_CA is the certificate to trust.
#
# If the command fails, the logs are kept, and the script says where.
#
# It needs root, for the namespaces. The servers run as "nobody". Debian has them in the packages
# "postgresql", "patroni" and "etcd-server". PATRONI names another program than "patroni", such as
# that of a virtual environment with 'patroni[etcd3]' and psycopg2-binary.
set -euo pipefail

if (($# == 0)); then
    printf 'Usage: %s COMMAND [ARGUMENT...]\n' "$0" >&2
    exit 2
fi
if [[ $(id -u) != 0 ]]; then
    echo 'Network namespaces need root.' >&2
    exit 1
fi
bin="${POSTGRES_BIN:-$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)}"
patroni="${PATRONI:-patroni}"
for program in "$bin/initdb" "$patroni" etcd ip setpriv curl; do
    if ! command -v "$program" >/dev/null; then
        echo "There is no $program: install postgresql, patroni, etcd-server, iproute2 and curl." >&2
        exit 1
    fi
done
# Earlier ones take the leadership back from another member once they go on after a pause, with all
# that this member has not seen: https://github.com/patroni/patroni/pull/2689
version="$("$patroni" --version | cut -d ' ' -f 2)"
if [[ $(printf '%s\n' 3.0.3 "$version" | sort -V | head -n 1) != 3.0.3 ]]; then
    echo "Patroni $version loses commits with etcd's version 3: install 3.0.3 or later, and name it in PATRONI." >&2
    exit 1
fi
members=(pg1 pg2 pg3)
parts=(etcd watch "${members[@]}")
namespace="pillarbox-$$"
directory="$(mktemp -d)"
chmod 711 "$directory"
chown nobody "$directory"

stop() {
    local code=$?
    cd /
    for part in "${parts[@]}"; do
        for ((i = 0; i < 50; i++)); do
            pids="$(ip netns pids "$namespace-$part" 2>/dev/null)" || break
            [[ -n $pids ]] || break
            # shellcheck disable=SC2086 # one word each
            kill -KILL $pids 2>/dev/null || true
            sleep 0.1
        done
        ip netns del "$namespace-$part" 2>/dev/null || true
    done
    ip netns del "$namespace-app" 2>/dev/null || true
    if ((code != 0)); then
        local kept
        kept="$(mktemp -d)"
        cp "$directory"/*.log "$kept"
        echo "The logs of the servers are in $kept" >&2
    fi
    rm -rf "$directory"
}
trap stop EXIT
trap 'exit 130' INT TERM

# A bridge in the namespace of the command, and the others at its ports.
number=1
ip netns add "$namespace-app"
ip -n "$namespace-app" link set lo up
ip -n "$namespace-app" link add eth0 type bridge
ip -n "$namespace-app" addr add "10.77.0.$number/24" dev eth0
ip -n "$namespace-app" link set eth0 up
echo "10.77.0.$number" >"$directory/app.address"
for part in "${parts[@]}"; do
    number=$((number + 1))
    ip netns add "$namespace-$part"
    ip -n "$namespace-$part" link set lo up
    ip -n "$namespace-app" link add "$part" type veth peer name eth0 netns "$namespace-$part"
    ip -n "$namespace-app" link set "$part" master eth0 up
    ip -n "$namespace-$part" addr add "10.77.0.$number/24" dev eth0
    ip -n "$namespace-$part" link set eth0 up
    echo "10.77.0.$number" >"$directory/$part.address"
done
address() { cat "$directory/$1.address"; }

# Writes the script that starts a part, in its namespace and without root.
make_start() { # PART COMMAND...
    local part="$1"
    shift
    {
        echo '#!/usr/bin/env bash'
        echo "cd $directory"
        printf 'exec setsid ip netns exec %q setpriv --reuid=nobody --regid=nogroup --clear-groups' "$namespace-$part"
        printf ' %q' "$@"
        printf ' >>%q 2>&1 </dev/null &\n' "$directory/$part.log"
    } >"$directory/$part.start"
    chmod 755 "$directory/$part.start"
}

export TEST_PATRONI_CA="$directory/server.crt"
names="$(for member in "${members[@]}"; do printf ',IP:%s' "$(address "$member")"; done)"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=test -addext basicConstraints=critical,CA:FALSE -addext "subjectAltName=${names#,}" \
    -keyout "$directory/server.key" -out "$TEST_PATRONI_CA" 2>/dev/null
chown nobody "$directory/server.key" "$TEST_PATRONI_CA"

etcd="$(address etcd)"
make_start etcd etcd --name etcd --data-dir "$directory/etcd" --log-level warn \
    --listen-client-urls "http://$etcd:2379" --advertise-client-urls "http://$etcd:2379" \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster etcd=http://127.0.0.1:2380
for member in "${members[@]}"; do
    address="$(address "$member")"
    # The shortest times that Patroni takes. Without a short wal_sender_timeout, a primary waits for
    # a minute for a standby that vanished. Tests ask what happens if a process ends, not if the
    # machine does: hence no fsync.
    cat >"$directory/$member.yml" <<END
scope: test
name: $member
restapi:
  listen: $address:8008
  connect_address: $address:8008
etcd3:
  hosts: $etcd:2379
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 3
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      parameters:
        wal_log_hints: on
        wal_sender_timeout: 5s
        wal_receiver_timeout: 5s
        tcp_user_timeout: 5s
        max_connections: 200
        fsync: ${POSTGRES_FSYNC:-off}
  initdb:
    - encoding: UTF8
    - locale: C
    - no-sync
postgresql:
  listen: $address:5432
  connect_address: $address:5432
  data_dir: $directory/$member
  bin_dir: $bin
  pgpass: $directory/$member.pgpass
  remove_data_directory_on_rewind_failure: true
  remove_data_directory_on_diverged_timelines: true
  authentication:
    superuser: {username: postgres}
    replication: {username: replicator}
  parameters:
    unix_socket_directories: $directory/$member.socket
    ssl: on
    ssl_cert_file: $TEST_PATRONI_CA
    ssl_key_file: $directory/server.key
  pg_hba:
    - local all all trust
    - host all all 10.77.0.0/24 trust
    - host replication replicator 10.77.0.0/24 trust
END
    mkdir "$directory/$member.socket"
    chown nobody "$directory/$member.socket"
    make_start "$member" "$patroni" "$directory/$member.yml"
done

in_app() { ip netns exec "$namespace-app" "$@"; }
"$directory/etcd.start"
for member in "${members[@]}"; do
    "$directory/$member.start"
done
# All run, and one is the synchronous standby.
for ((i = 0; ; i++)); do
    cluster="$(in_app curl -sf --max-time 2 "http://$(address pg1):8008/cluster" || true)"
    if python3 -c '
import json, sys
members = json.loads(sys.argv[1] or "{}").get("members", [])
roles = sorted(m["role"] for m in members if m["state"] in ("running", "streaming"))
sys.exit(roles != ["leader", "replica", "sync_standby"])' "$cluster"; then
        break
    fi
    if ((i == 120)); then
        tail -n 20 "$directory"/*.log >&2
        echo "The servers did not start: $cluster" >&2
        exit 1
    fi
    sleep 1
done
hosts="$(for member in "${members[@]}"; do printf ',%s' "$(address "$member")"; done)"
in_app psql -q "host=${hosts#,} user=postgres dbname=postgres target_session_attrs=read-write" \
    -c 'CREATE USER pillarbox CREATEDB' -c 'CREATE DATABASE pillarbox OWNER pillarbox'
export TEST_PATRONI="$directory" TEST_PATRONI_NAMESPACE="$namespace"
in_app "$@"
