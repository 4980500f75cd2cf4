#!/bin/sh
# Send a file from a shell script, with curl.
#
#     MAIL_KEY=pb_… sh examples/attach.sh invoice.pdf
set -eu

file="${1:?name a file: sh examples/attach.sh invoice.pdf}"
{
  printf '%s' '{
    "from": "Shop <orders@example.com>",
    "to": ["Ada <ada@example.net>"],
    "subject": "Your invoice 1822",
    "text": "Your invoice is attached.",
    "metadata": { "invoice": "1822" },
    "idempotencyKey": "invoice-1822",
    "attachments": [{ "filename": "invoice.pdf", "content": "'
  base64 < "$file" | tr -d '\n'
  printf '" }] }'
} | curl --silent --show-error --fail-with-body --max-time 60 \
  --header "Authorization: Bearer $MAIL_KEY" \
  --header 'Content-Type: application/json' \
  --data-binary @- "${MAIL_URL:-http://127.0.0.1:8025}/emails"
echo
