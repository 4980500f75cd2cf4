#!/bin/sh
# Send messages together with curl, and see which of them are refused.
#
#     MAIL_KEY=pb_… sh examples/batch.sh
set -eu

answer="$(mktemp)"
trap 'rm -f "$answer"' EXIT

# curl repeats the request as in examples/send.sh. The keys in the body make this safe.
status="$(curl --silent --show-error --retry 8 --retry-all-errors --max-time 60 \
  --output "$answer" --write-out '%{http_code}' \
  --header "Authorization: Bearer $MAIL_KEY" \
  --header 'Content-Type: application/json' \
  --data '{
    "partial": true,
    "emails": [
      {
        "from": "Shop <orders@example.com>",
        "to": ["ada@example.net"],
        "subject": "Your order 1830",
        "text": "It is on its way.",
        "idempotencyKey": "order-1830-shipped"
      },
      {
        "from": "Shop <orders@example.com>",
        "to": ["no address"],
        "subject": "Your order 1831",
        "text": "It is on its way.",
        "idempotencyKey": "order-1831-shipped"
      }
    ]
  }' "${MAIL_URL:-http://127.0.0.1:8025}/emails/batch")"
cat "$answer"
[ "$status" = 200 ]
