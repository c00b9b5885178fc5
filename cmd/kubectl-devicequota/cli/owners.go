package cli

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
)

// podClaimName annotates a claim that was made for a pod with the pod's own name for it.
// Source: k8s.io/kubernetes pkg/controller/resourceclaim, podResourceClaimAnnotation.
const podClaimName = "resource.kubernetes.io/pod-claim-name"

// withoutMade leaves out what controllers make of other objects of the input, as in the output of
// "kubectl get all": pods and ReplicaSets whose controller is asked about, too, and the claims of
// such pods. Claims of other pods stay, and their pods do not make them again. The error tells of
// owner references that go round in a circle.
func withoutMade(cluster *sim.Cluster, asked []input.Document) (kept []input.Document, made int, err error) {
	index := map[sim.Ref]int{}
	for i := range asked {
		index[anyVersion(sim.RefOf(asked[i].Object))] = i
	}
	out := make([]bool, len(asked))
	for i := range asked {
		chain, seen := []int{i}, map[int]bool{i: true}
		for next := controllerOf(asked[i].Object, index); next >= 0; next = controllerOf(asked[next].Object, index) {
			chain = append(chain, next)
			if seen[next] {
				return nil, 0, at(&asked[i], fmt.Errorf("ownerReferences go round in a circle: %s", names(asked, chain)))
			}
			seen[next] = true
		}
		ref := sim.RefOf(asked[i].Object)
		switch {
		case len(chain) == 1:
		case ref.Kind != "ResourceClaim" || len(chain) > 2:
			out[i] = true
			made++
		default: // a claim of a pod that is asked about
			m, err := meta.Accessor(asked[i].Object)
			if err != nil {
				return nil, 0, err
			}
			cluster.Provide(ref.Namespace, sim.RefOf(asked[chain[1]].Object).Name, m.GetAnnotations()[podClaimName])
		}
	}
	for i := range asked {
		if !out[i] {
			kept = append(kept, asked[i])
		}
	}
	return kept, made, nil
}

// anyVersion leaves the version out of the name of an object.
func anyVersion(r sim.Ref) sim.Ref {
	r.APIVersion, _, _ = strings.Cut(r.APIVersion, "/")
	return r
}

// controllerOf returns where the object's controller is in the input, -1 when it is not.
func controllerOf(obj runtime.Object, index map[sim.Ref]int) int {
	m, err := meta.Accessor(obj)
	if err != nil {
		return -1
	}
	owner := metav1.GetControllerOfNoCopy(m)
	if owner == nil {
		return -1
	}
	i, ok := index[anyVersion(sim.Ref{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: m.GetNamespace(), Name: owner.Name})]
	if !ok {
		return -1
	}
	return i
}

func names(asked []input.Document, chain []int) string {
	var out []string
	for _, i := range chain {
		out = append(out, sim.RefOf(asked[i].Object).String())
	}
	return strings.Join(out, ", ")
}

// adopt makes pods of the cluster those of the workloads in the input that made them: asking for
// such a workload is then an update.
func adopt(cluster *sim.Cluster, asked []input.Document, objects []runtime.Object) {
	pods := map[sim.Ref][]string{}
	for _, o := range objects {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil {
			continue
		}
		add := func(apiVersion, kind, name string) {
			ref := anyVersion(sim.Ref{APIVersion: apiVersion, Kind: kind, Namespace: pod.Namespace, Name: name})
			pods[ref] = append(pods[ref], pod.Name)
		}
		add(owner.APIVersion, owner.Kind, owner.Name)
		hash := pod.Labels["pod-template-hash"]
		if deployment, made := strings.CutSuffix(owner.Name, "-"+hash); made && owner.Kind == "ReplicaSet" {
			add(owner.APIVersion, "Deployment", deployment)
		}
	}
	for i := range asked {
		ref := sim.RefOf(asked[i].Object)
		if found := pods[anyVersion(ref)]; len(found) > 0 && ref.Kind != "Pod" {
			slices.Sort(found)
			cluster.Adopt(ref, found)
		}
	}
}
