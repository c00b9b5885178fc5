package cli

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
)

// A Deployment owns its pods through a ReplicaSet that is named by the pods' hash.
func TestWorkloadsAdoptTheirPods(t *testing.T) {
	t.Parallel()
	pod := func(name, hash, kind, owner string) runtime.Object {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: map[string]string{"pod-template-hash": hash}}}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: "x", Controller: ptr.To(true)}}
		}
		return p
	}
	deployment := func(namespace, name string) input.Document {
		d := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		return input.Document{Object: d}
	}
	objects := []runtime.Object{
		pod("web-7d-x", "7d", "ReplicaSet", "web-7d"), pod("api-7d-x", "8e", "ReplicaSet", "api-7d"), pod("db-0", "", "StatefulSet", "db"), pod("lone", "7d", "", ""),
	}
	for name, c := range map[string]struct {
		asked input.Document
		want  bool
	}{
		"its pods":                  {deployment("a", "web"), true},
		"pods of another namespace": {deployment("b", "web"), false},
		"another hash":              {deployment("a", "api"), false},
		"pods of another kind":      {deployment("a", "db"), false},
		"pods of nobody":            {deployment("a", "lone"), false},
		"a name that is another's":  {deployment("a", "web-7d"), false},
	} {
		cluster, err := sim.New(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		adopt(cluster, []input.Document{c.asked}, objects)
		if got := cluster.Exists(c.asked.Object); got != c.want {
			t.Errorf("%s: adopted %t, want %t", name, got, c.want)
		}
	}
}
