package cli

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/live"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
)

// Interrupted while it reads the cluster, --watch has no answer: that is no error either.
func TestAWatchThatIsInterruptedWhileItReadsIsNoError(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		interrupt()
		http.Error(w, "it is too late", http.StatusInternalServerError)
	}))
	defer server.Close()
	streams, _, out, errs := genericiooptions.NewTestIOStreams()
	if code := Run(ctx, []string{"usage", "--watch", "--server", server.URL}, "v1.2.3", streams); code != ExitOK || out.Len() > 0 || errs.Len() > 0 {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// Whoever may not read classes and devices is not told that a quota names what is not there.
func TestDoctorJudgesNothingByWhatMayNotBeRead(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, err := sim.New(sim.Options{Namespaces: true})
	if err != nil {
		t.Fatal(err)
	}
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	q.SetGroupVersionKind(quotav1.GroupVersion.WithKind("ClusterResourceQuota"))
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "a"}}
	q.Spec.Quota.Hard = corev1.ResourceList{
		"gpu.deviceclass.devicequota.io/devices": resource.MustParse("1"), "gpu.deviceclass.devicequota.io/capacity.memory": resource.MustParse("1Gi")}
	ns := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if err := c.Apply(ctx, ns, q); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		unlisted []string
		checks   []string
	}{
		"all may be read":        {nil, []string{"class", "class", "FootprintUnknown"}},
		"no classes, no devices": {[]string{"DeviceClass", "ResourceSlice"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := quotas(ctx, c, &live.Snapshot{Unlisted: want.unlisted})
			if err != nil {
				t.Fatal(err)
			}
			var checks []string
			for _, f := range found {
				checks = append(checks, f.Check)
			}
			if diff := cmp.Diff(want.checks, checks); diff != "" {
				t.Errorf("(-want +got):\n%s\n%v", diff, found)
			}
		})
	}
}
