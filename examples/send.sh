#!/bin/sh
# Send a message from a shell script, with curl.
#
#     MAIL_KEY=pb_… sh examples/send.sh
set -eu

url="${MAIL_URL:-http://127.0.0.1:8025}"
answer="$(mktemp)"
trap 'rm -f "$answer"' EXIT

# curl repeats the request after a time-out, a broken connection, 408, 429, 500 or 503, and waits as
# long as Retry-After says. The key in the body makes this safe.
status="$(curl --silent --show-error --retry 8 --retry-all-errors --max-time 30 \
  --output "$answer" --write-out '%{http_code}' \
  --header "Authorization: Bearer $MAIL_KEY" \
  --header 'Content-Type: application/json' \
  --data '{
    "from": "Shop <orders@example.com>",
    "to": ["Ada <ada@example.net>"],
    "subject": "Your order 1819",
    "text": "It is on its way.",
    "idempotencyKey": "order-1819-shipped"
  }' "$url/emails")"
cat "$answer"
echo
[ "$status" = 200 ]
