#!/bin/sh
# A client of `slimsched serve` with curl: ask.sh URL-OF-THE-MODEL VALUES-OF-AN-IMAGE SHAPE, such as
#   ./ask.sh http://127.0.0.1:8000/v2/models/NAME "$(yes 0.5 | head -3072 | paste -sd,)" 3,32,32
# With a token: -H "Authorization: Bearer TOKEN". With a certificate of its own: --cacert FILE.
exec curl --silent --show-error --fail-with-body "$1/infer" \
    --data "{\"inputs\": [{\"name\": \"image\", \"datatype\": \"FP32\", \"shape\": [1,$3], \"data\": [$2]}]}"
