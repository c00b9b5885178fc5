#!/usr/bin/env bash
# Fails when a generated file differs from what its sources make, and shows how. It
# changes nothing. `make verify-generate` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

OUT="$out" hack/generate.sh

status=0
while IFS= read -r file; do
	if ! diff -u --label "a/$file" "$file" --label "b/$file" "$out/$file"; then
		status=1
	fi
done < <(cd "$out" && find . -type f | sed 's#^\./##' | sort)

# A file that nothing generates any more.
while IFS= read -r file; do
	if [ ! -e "$out/$file" ]; then
		echo "$file: nothing generates it any more"
		status=1
	fi
done < <({ find config/{crd/bases,webhook,rbac} charts/devicequota-crds/files -name '*.yaml'; find . -name 'zz_generated.*' | sed 's#^\./##'; } | sort)

if [ "$status" -ne 0 ]; then
	echo "generated files are out of date: run 'make generate' and commit what it changes" >&2
fi
exit "$status"
