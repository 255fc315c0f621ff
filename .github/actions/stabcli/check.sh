#!/usr/bin/env bash
# One pass of `stabcli check` over the logs named in LOGS: verdict and annotations to the output,
# reports into the folder REPORTS. Inputs come as variables, one value a line, and are never
# part of a command.
set -uo pipefail

arguments=()
while IFS= read -r line; do
    [ -n "$line" ] && arguments+=("$line")
done <<<"${LOGS:?no logs named}
${ARGUMENTS:-}"

reports=${REPORTS:-stabcli-reports}
mkdir -p "$reports" || exit 2
stabcli check "${arguments[@]}" \
    --output github:- \
    --output "sarif:$reports/stabcli.sarif" \
    --output "junit:$reports/stabcli.xml" \
    --output "json:$reports/stabcli.json"
status=$?
if [ -n "${GITHUB_OUTPUT:-}" ]; then
    {
        echo "status=$status"
        echo "sarif=$reports/stabcli.sarif"
        echo "junit=$reports/stabcli.xml"
        echo "json=$reports/stabcli.json"
    } >>"$GITHUB_OUTPUT"
fi
exit "$status"
