# Shared by the tests of what can be installed; bash reads it into each of them.

# Has the script go on as root in namespaces of its own: whatever is mounted, started or bound there
# ends with it, also if it is killed itself. It is given the script's arguments.
isolate() {
    [[ $(id -u) = 0 ]] || { echo "$0 has to run as root" >&2; exit 1; }
    if [[ ${ISOLATED:-} != yes ]]; then
        ISOLATED=yes exec unshare --mount --pid --fork --kill-child --net --mount-proc "$0" "$@"
    fi
    ip link set lo up
}

# Ends the test with a reason, and with the end of $log, the service's log.
fail() {
    echo "packaging: $*" >&2
    tail -n 20 "$log" >&2 || true
    exit 1
}

# Waits for $tries tenths of a second until a command succeeds; the first argument says for what.
wait_for() {
    local what="$1"; shift
    for _ in $(seq "$tries"); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "no $what"
}

# Stops the process $service, which must end well.
stop() {
    kill -TERM "$service"
    wait "$service" || fail "the service ended badly"
}

# Sends a message with the API key $key; gives its id.
send() {
    curl -sS --fail-with-body http://127.0.0.1:8025/emails -H "Authorization: Bearer $key" \
        -H 'Content-Type: application/json' \
        -d '{"from":"a@example.com","to":["b@example.org"],"subject":"Hello","text":"Hello"}' |
        sed 's/.*"id":"\([^"]*\)".*/\1/'
}

is_sent() {
    curl -sS "http://127.0.0.1:8025/emails/$1" -H "Authorization: Bearer $key" |
        grep -q '"status":"sent"'
}
