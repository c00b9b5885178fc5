package webhooks

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	draapiv1beta1 "k8s.io/dynamic-resource-allocation/api/v1beta1"
	draapiv1beta2 "k8s.io/dynamic-resource-allocation/api/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/json"

	"github.com/devicequota/devicequota/allocator"
)

// Versions of resource.k8s.io that are decoded.
const (
	versionV1      = "v1"
	versionV1beta2 = "v1beta2"
	versionV1beta1 = "v1beta1"
)

// metadata is what handlers read of an object's metadata. Decoding no more keeps the cost
// of a request small: managedFields are often larger than the rest.
type metadata struct {
	Name              string                  `json:"name"`
	GenerateName      string                  `json:"generateName"`
	Namespace         string                  `json:"namespace"`
	UID               types.UID               `json:"uid"`
	CreationTimestamp metav1.Time             `json:"creationTimestamp"`
	DeletionTimestamp *metav1.Time            `json:"deletionTimestamp"`
	Annotations       map[string]string       `json:"annotations"`
	OwnerReferences   []metav1.OwnerReference `json:"ownerReferences"`
}

func (m *metadata) objectMeta(namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, GenerateName: m.GenerateName, Namespace: namespace, UID: m.UID,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		Annotations: m.Annotations, OwnerReferences: m.OwnerReferences}
}

// typed is an object of one version: type, metadata and spec; status is never read.
type typed[S any] struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metadata `json:"metadata"`
	Spec            S        `json:"spec"`
}

// templateSpec is a ResourceClaimTemplateSpec of one version, its metadata left out.
type templateSpec[S any] struct {
	Spec S `json:"spec"`
}

// decodeClaim returns the request's ResourceClaim in v1, with defaults, whatever version it
// comes in. Of the metadata only what metadata has is set; the status is empty.
func decodeClaim(req *admission.Request) (*resourceapi.ResourceClaim, error) {
	if err := expect(req, resourceapi.GroupName, "ResourceClaim"); err != nil {
		return nil, err
	}
	m, spec, err := decodeSpec(req.Kind.Version, req.Object.Raw, "ResourceClaim",
		unwrap[resourceapi.ResourceClaimSpec], unwrap[resourcev1beta2.ResourceClaimSpec], unwrap[resourcev1beta1.ResourceClaimSpec])
	if err != nil {
		return nil, err
	}
	return &resourceapi.ResourceClaim{ObjectMeta: m.objectMeta(req.Namespace), Spec: *spec}, nil
}

// decodeTemplate is decodeClaim for a ResourceClaimTemplate.
func decodeTemplate(req *admission.Request) (*resourceapi.ResourceClaimTemplate, error) {
	if err := expect(req, resourceapi.GroupName, "ResourceClaimTemplate"); err != nil {
		return nil, err
	}
	m, spec, err := decodeSpec(req.Kind.Version, req.Object.Raw, "ResourceClaimTemplate",
		unwrapTemplate[resourceapi.ResourceClaimSpec], unwrapTemplate[resourcev1beta2.ResourceClaimSpec], unwrapTemplate[resourcev1beta1.ResourceClaimSpec])
	if err != nil {
		return nil, err
	}
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: m.objectMeta(req.Namespace),
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: *spec}}, nil
}

// unwrapper decodes one version of an object and returns its parts.
type unwrapper[S any] func(version, kind string, raw []byte) (*metadata, *S, error)

func unwrap[S any](version, kind string, raw []byte) (*metadata, *S, error) {
	var o typed[S]
	if err := unmarshal(raw, &o); err != nil {
		return nil, nil, err
	}
	return &o.Metadata, &o.Spec, agrees(o.TypeMeta, version, kind)
}

func unwrapTemplate[S any](version, kind string, raw []byte) (*metadata, *S, error) {
	var o typed[templateSpec[S]]
	if err := unmarshal(raw, &o); err != nil {
		return nil, nil, err
	}
	return &o.Metadata, &o.Spec.Spec, agrees(o.TypeMeta, version, kind)
}

func decodeSpec(version string, raw []byte, kind string, v1 unwrapper[resourceapi.ResourceClaimSpec],
	v1beta2 unwrapper[resourcev1beta2.ResourceClaimSpec], v1beta1 unwrapper[resourcev1beta1.ResourceClaimSpec],
) (*metadata, *resourceapi.ResourceClaimSpec, error) {
	var (
		m   *metadata
		err error
		out = &resourceapi.ResourceClaimSpec{}
	)
	switch version {
	case versionV1:
		m, out, err = v1(version, kind, raw)
	case versionV1beta2:
		var in *resourcev1beta2.ResourceClaimSpec
		if m, in, err = v1beta2(version, kind, raw); err == nil {
			err = draapiv1beta2.Convert_v1beta2_ResourceClaimSpec_To_v1_ResourceClaimSpec(in, out, nil)
		}
	case versionV1beta1:
		var in *resourcev1beta1.ResourceClaimSpec
		if m, in, err = v1beta1(version, kind, raw); err == nil {
			err = draapiv1beta1.Convert_v1beta1_ResourceClaimSpec_To_v1_ResourceClaimSpec(in, out, nil)
		}
	default:
		return nil, nil, fmt.Errorf("version %q of resource.k8s.io: want %s, %s or %s", version, versionV1, versionV1beta2, versionV1beta1)
	}
	if err != nil {
		return nil, nil, err
	}
	allocator.DefaultClaimSpec(out)
	return m, out, nil
}

// podObject is what is read of a pod.
type podObject struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metadata       `json:"metadata"`
	Spec            corev1.PodSpec `json:"spec"`
}

// decodePod returns the request's pod; the status is empty.
func decodePod(req *admission.Request) (*corev1.Pod, error) {
	if err := expect(req, corev1.GroupName, "Pod"); err != nil {
		return nil, err
	}
	var o podObject
	if err := unmarshal(req.Object.Raw, &o); err != nil {
		return nil, err
	}
	if err := agrees(o.TypeMeta, req.Kind.Version, "Pod"); err != nil {
		return nil, err
	}
	return &corev1.Pod{ObjectMeta: o.Metadata.objectMeta(req.Namespace), Spec: o.Spec}, nil
}

// expect refuses a request whose kind is not the one that the handler is for: resource,
// kind and object of a crafted review may disagree.
func expect(req *admission.Request, group, kind string) error {
	if req.Kind.Group != group || req.Kind.Kind != kind {
		return fmt.Errorf("kind %q in group %q: want %q in group %q", req.Kind.Kind, req.Kind.Group, kind, group)
	}
	return nil
}

func agrees(t metav1.TypeMeta, version, kind string) error {
	if t.Kind != "" && t.Kind != kind {
		return fmt.Errorf("the object's kind is %q, the request's %q", t.Kind, kind)
	}
	if v := t.GroupVersionKind().Version; v != "" && v != version {
		return fmt.Errorf("the object's version is %q, the request's %q", v, version)
	}
	return nil
}

// unmarshal decodes as the API server does: case-sensitive. Fields that this version does
// not know are left out, since a newer API server may have more; strictness about them is
// the API server's (fieldValidation).
func unmarshal(raw []byte, into any) error {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return errors.New("the request carries no object")
	}
	err := json.UnmarshalCaseSensitivePreserveInts(raw, into)
	var wrong *stdjson.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		// The decoder's own text names Go types, which tells users nothing.
		return fmt.Errorf("%s: a JSON %s is not what belongs there", wrong.Field, wrong.Value)
	case err != nil:
		return fmt.Errorf("object: %w", err)
	}
	return nil
}
