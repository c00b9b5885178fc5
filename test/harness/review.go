package harness

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// Review asks the manager, and no other, for the creation of a claim as the API server does. A
// dry run leaves no hold.
func (m *Manager) Review(ctx context.Context, c *resourceapi.ResourceClaim, dryRun bool) (*admissionv1.AdmissionResponse, error) {
	c = c.DeepCopy()
	c.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"))
	object, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "one-request", Operation: admissionv1.Create, Namespace: c.Namespace, Name: c.Name, DryRun: ptr.To(dryRun),
			Kind:     metav1.GroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("ResourceClaim")),
			Resource: metav1.GroupVersionResource(resourceapi.SchemeGroupVersion.WithResource("resourceclaims")),
			UserInfo: authenticationv1.UserInfo{Username: "somebody"}, Object: runtime.RawExtension{Raw: object}}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+m.Address+"/validate-resourceclaim", bytes.NewReader(review))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	hc := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // who answers is no question here
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("review: %s: %w", resp.Status, err)
	}
	if answer.Response == nil {
		return nil, fmt.Errorf("review: %s without an answer", resp.Status)
	}
	return answer.Response, nil
}

// Knows returns nil when the manager refuses what a quota with the limits must refuse in a project
// that it covers. A manager that does not know a quota yet admits anything, also when another has
// made its ledger already. Limits without a DeviceClass in their keys tell nothing.
func (m *Manager) Knows(ctx context.Context, quota, namespace string, limits corev1.ResourceList) error {
	for key := range limits {
		class, _, ok := strings.Cut(string(key), ".deviceclass.devicequota.io/")
		if !ok {
			continue
		}
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "more-than-any-limit", CreationTimestamp: metav1.Now()}}
		c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1 << 40}}}
		r, err := m.Review(ctx, c, true)
		if err != nil {
			return err
		}
		if r.Allowed || r.Result == nil || !strings.Contains(r.Result.Message, "quota: "+quota+",") {
			return fmt.Errorf("the manager at %s does not go by the limit of %s: %v", m.Address, key, r)
		}
	}
	return nil
}
