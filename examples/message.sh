#!/bin/sh
# Show a message, cancel it, or show your limits and how much of them is used, with curl.
#
#     MAIL_KEY=pb_… sh examples/message.sh show|events|timeline|cancel ID
#     MAIL_KEY=pb_… sh examples/message.sh usage
set -eu

call() {
  curl --silent --show-error --fail-with-body --max-time 30 \
    --header "Authorization: Bearer $MAIL_KEY" "$@"
}

usage="say what to do: sh examples/message.sh show|events|timeline|cancel ID, or usage"
url="${MAIL_URL:-http://127.0.0.1:8025}"
case "${1:-} ${2:+ID}" in
  "show ID") call "$url/emails/$2" ;;
  "events ID" | "timeline ID") call "$url/emails/$2/$1" ;;
  "cancel ID") call --header 'Content-Type: application/json' --data '{}' "$url/emails/$2/cancel" ;;
  "usage ") call "$url/usage" ;;
  *) echo "$usage" >&2 && exit 2 ;;
esac
