package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/test/builders"
	"github.com/devicequota/devicequota/webhooks"
)

// account is what the claim webhook asks: one node of eight devices and one quota over all
// projects. It charges as the ledger does and writes nothing.
type account struct {
	charger *quota.Charger
	quotas  []*quota.Quota
}

func newAccount() (*account, *allocator.Inventory) {
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	b.SetNode(builders.Node("n1"))
	b.SetClass(builders.DriverClass("gpu.nvidia.com", "gpu.nvidia.com"))
	devices := builders.Slice("gpu.nvidia.com", "n1")
	for i := range 8 {
		devices.Spec.Devices = append(devices.Spec.Devices, builders.Device(fmt.Sprintf("gpu-%d", i), "memory", "80Gi"))
	}
	b.SetSlice(devices)
	inventory := b.Snapshot()
	q, _ := quota.Parse(builders.Quota("team-a", corev1.ResourceList{key: limit}), quota.ParseOptions{})
	return &account{charger: quota.NewCharger(inventory), quotas: []*quota.Quota{q}}, inventory
}

func (a *account) Charger() *quota.Charger { return a.charger }

func (a *account) Covering(context.Context, string) ([]*quota.Quota, error) { return a.quotas, nil }

func (a *account) Admit(_ context.Context, r ledger.Request) (ledger.Decision, error) {
	d := ledger.Decision{Charges: map[string]quota.Charge{}}
	for _, q := range a.quotas {
		charge, err := r.Charge(q)
		if err != nil {
			return d, err
		}
		d.Charges[q.Name] = charge
	}
	return d, nil
}

func (a *account) Check(ctx context.Context, r ledger.Request) (ledger.Decision, error) {
	return a.Admit(ctx, r)
}

// nowhere is a cluster whose namespaces have no annotations.
type nowhere struct{ webhooks.Objects }

func (nowhere) NamespaceAnnotations(context.Context, string) (map[string]string, error) {
	return nil, nil
}

// handlers are what answers a review of a claim: doing nothing, and ours but for the ledger's write.
func handlers() (nothing, ours http.Handler, err error) {
	a, inventory := newAccount()
	recorder, err := webhooks.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return nil, nil, err
	}
	hooks := webhooks.Webhooks(webhooks.Deps{
		Admitter: a, Coverage: a, Devices: a, Objects: nowhere{}, Recorder: recorder,
		Explainer: webhooks.NewDeviceExplainer(func() *allocator.Inventory { return inventory }),
	}, webhooks.Options{})
	return doNothing(), webhooks.Serve(hooks[webhooks.PathValidateClaim]), nil
}

// reviewOfClaim is a review as kube-apiserver 1.37 sends it when a ServiceAccount creates a claim
// with kubectl.
func reviewOfClaim() ([]byte, error) {
	c := claim("team-a-train", "training-7")
	c.APIVersion, c.Kind = "resource.k8s.io/v1", "ResourceClaim"
	created := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	c.UID, c.CreationTimestamp = "6d1b5a0e-2b53-4c7a-9a52-0e9a8f0b7c11", created
	c.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl-create", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: c.APIVersion,
		Time: &created, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:devices":{"f:requests":{".":{},"k:{\"name\":\"gpu\"}":` +
			`{".":{},"f:exactly":{".":{},"f:allocationMode":{},"f:count":{},"f:deviceClassName":{}},"f:name":{}}}}}}`)}}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	kind := metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"}
	resource := metav1.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}
	return json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "2f8a51e0-8f40-4dd9-a5c5-41a1b8b8b0cc", Kind: kind, Resource: resource, RequestKind: &kind, RequestResource: &resource,
			Name: c.Name, Namespace: c.Namespace, Operation: admissionv1.Create,
			UserInfo: authenticationv1.UserInfo{Username: "system:serviceaccount:team-a-train:runner", UID: "0e2f6a0c-5f4a-4a39-8c2c-8a7e5d8a3f10",
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:team-a-train", "system:authenticated"},
				Extra:  map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=7fd7cd9c-1b2c-4a53-9e3b-5d2c9b6f8a01"}}},
			Object:  runtime.RawExtension{Raw: raw},
			DryRun:  ptr.To(false),
			Options: runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1","fieldManager":"kubectl-create","fieldValidation":"Strict"}`)},
		}})
}

// answer is a ResponseWriter that keeps the body.
type answer struct {
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }
func (a *answer) WriteHeader(int)             {}

// ask returns what the handler answers.
func ask(h http.Handler, body []byte) string {
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/", RawQuery: "timeout=5s"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body))}
	a := &answer{header: http.Header{}}
	h.ServeHTTP(a, r)
	return a.body.String()
}

const (
	// reviewRounds are interleaved; the median counts.
	reviewRounds = 15
	// reviewsPerRound are asked of each handler in a round.
	reviewsPerRound = 2000
)

// reviews compares the CPU that one answer costs, connection and ledger write left out, and
// returns a line of Markdown.
func reviews() (string, error) {
	nothing, ours, err := handlers()
	if err != nil {
		return "", err
	}
	body, err := reviewOfClaim()
	if err != nil {
		return "", err
	}
	for _, h := range []http.Handler{nothing, ours} {
		if got := ask(h, body); !strings.Contains(got, `"allowed":true`) {
			return "", fmt.Errorf("not admitted: %s", got)
		}
	}
	costs := map[http.Handler][]time.Duration{}
	for range reviewRounds {
		for _, h := range []http.Handler{nothing, ours} {
			before := selfCPU()
			for range reviewsPerRound {
				ask(h, body)
			}
			costs[h] = append(costs[h], (selfCPU()-before)/reviewsPerRound)
		}
	}
	a, b := middle(costs[nothing]), middle(costs[ours])
	return fmt.Sprintf("\nDecoding a review, charging the claim and answering, in one process and without connection and ledger write: %v of CPU, "+
		"a controller-runtime webhook that does nothing %v: %.2f times (goal: at most 1.5).\n",
		b.Round(100*time.Nanosecond), a.Round(100*time.Nanosecond), float64(b)/float64(a)), nil
}

func middle(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// selfCPU is what this process has used, garbage collection included.
func selfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
