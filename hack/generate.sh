#!/usr/bin/env bash
# Generates what controller-gen makes of the markers in the Go code (deep copies, CRDs,
# webhook configurations, RBAC), and what helm-docs makes of the comments in the charts'
# values. `make generate` calls it.
#
# OUT is the root of config/, charts/ and of the deep copies; the repository by default.
set -euo pipefail
cd "$(dirname "$0")/.."
gen=${CONTROLLER_GEN:?run make generate}
docs=${HELM_DOCS:?run make generate}
out=${OUT:-.}

mkdir -p "$out"/config/{crd/bases,webhook,rbac} "$out"/charts/devicequota{,-crds}/files "$out"/{docs,quota/v1alpha1}

"$gen" object paths=./quota/v1alpha1 output:object:dir="$out/quota/v1alpha1"

# Ours, and for plain Kubernetes those of openshift/api, from the very types that the
# code is compiled with. AppliedClusterResourceQuota has no markers there: it becomes
# namespaced and without a status subresource, which is what we want.
"$gen" crd paths=./quota/v1alpha1 output:crd:dir="$out/config/crd/bases"
"$gen" crd paths=github.com/openshift/api/quota/v1 output:crd:dir="$out/config/crd/bases"

# A quantity is an integer or a string by x-kubernetes-int-or-string. controller-gen says it with
# anyOf as well, which doubles what the API server spends on validating what is written often. The CRD
# of ClusterResourceQuota stays as OpenShift ships it.
for crd in "$out"/config/crd/bases/{devicequota.io_*,*_appliedclusterresourcequotas}.yaml; do
	sed -e '/^ *anyOf:$/{N;N;/^ *anyOf:\n *- type: integer\n *- type: string$/d;}' "$crd" >"$crd.new"
	mv "$crd.new" "$crd"
done

"$gen" webhook paths=./webhooks output:webhook:dir="$out/config/webhook"

# One ClusterRole for the manager; a marker with roleName= makes another one.
"$gen" rbac:roleName=devicequota paths=./... output:rbac:dir="$out/config/rbac"

# The charts carry the same files, and render from them.
cp "$out"/config/crd/bases/*.yaml "$out/charts/devicequota-crds/files/"
cp "$out/config/webhook/manifests.yaml" "$out/charts/devicequota/files/webhooks.yaml"
cp "$out/config/rbac/role.yaml" "$out/charts/devicequota/files/roles.yaml"

# READMEs of the charts, and the same tables in one place. helm-docs only warns of errors,
# also of a value without a comment.
{
	printf '# Values of the charts\n\nMade from the comments in values.yaml by `make generate`.\n'
	for chart in devicequota devicequota-crds; do
		readme=$out/charts/$chart/README.md
		warnings=$("$docs" --dry-run --log-level=warning --chart-search-root=charts --chart-to-generate="charts/$chart" \
			--sort-values-order=file --template-files=./_values.gotmpl --template-files=README.md.gotmpl 2>&1 >"$readme")
		if [ -n "$warnings" ]; then
			echo "$warnings" >&2
			exit 1
		fi
		printf '\n## %s\n' "$chart"
		sed -n '/^## Values$/,$p' "$readme" | tail -n +2
	done
} >"$out/docs/values.md"
