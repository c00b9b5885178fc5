#!/usr/bin/env bash
# Generates what controller-gen makes of the markers in the Go code: deep copies,
# CRDs, webhook configurations and RBAC. `make generate` calls it.
#
# OUT is the root of config/, charts/ and of the deep copies; the repository by default.
set -euo pipefail
cd "$(dirname "$0")/.."
gen=${CONTROLLER_GEN:?run make generate}
out=${OUT:-.}

mkdir -p "$out"/config/{crd/bases,webhook,rbac} "$out/quota/v1alpha1"

"$gen" object paths=./quota/v1alpha1 output:object:dir="$out/quota/v1alpha1"

# Ours, and for plain Kubernetes those of openshift/api, from the very types that the
# code is compiled with. AppliedClusterResourceQuota has no markers there: it becomes
# namespaced and without a status subresource, which is what we want.
"$gen" crd paths=./quota/v1alpha1 output:crd:dir="$out/config/crd/bases"
"$gen" crd paths=github.com/openshift/api/quota/v1 output:crd:dir="$out/config/crd/bases"

# The chart carries the same files; its template only adds labels.
mkdir -p "$out/charts/devicequota-crds/files"
cp "$out"/config/crd/bases/*.yaml "$out/charts/devicequota-crds/files/"

if [ -d webhooks ]; then
	"$gen" webhook paths=./webhooks output:webhook:dir="$out/config/webhook"
fi

# One ClusterRole for the manager; a marker with roleName= makes another one.
"$gen" rbac:roleName=devicequota paths=./... output:rbac:dir="$out/config/rbac"
