package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LedgerFinalizer keeps a DeviceLedger until its quota is gone and all its holds ended.
// A ledger has no owner reference: garbage collection would lose holds.
const LedgerFinalizer = "devicequota.io/ledger"

// DeviceLedger is the exact account of the ClusterResourceQuota of the same name.
//
// It is written by devicequota only. All of it is one object without a status
// subresource, so that each write is one compare-and-swap.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=dl,categories=devicequota
// +kubebuilder:printcolumn:name="Rebuilding",type=boolean,JSONPath=`.status.rebuilding`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DeviceLedger struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status DeviceLedgerStatus `json:"status,omitempty"`
}

// DeviceLedgerStatus is what is charged to one quota.
type DeviceLedgerStatus struct {
	// crqUID is the UID of the ClusterResourceQuota that the ledger accounts for. It
	// changes when a quota is deleted and created again: the ledger is adopted with its holds.
	// +optional
	CRQUID types.UID `json:"crqUID,omitempty"`

	// crqResourceVersion is the version of the quota that hard and selector were taken from.
	// +optional
	CRQResourceVersion string `json:"crqResourceVersion,omitempty"`

	// hard is the quota's spec.quota.hard at crqResourceVersion.
	// +optional
	Hard corev1.ResourceList `json:"hard,omitempty"`

	// selector is the quota's selector at crqResourceVersion. While a quota is gone its
	// objects are still counted by it, until the ledger is removed.
	// +optional
	Selector LedgerSelector `json:"selector,omitempty"`

	// observed is, per resource, the largest resourceVersion contained in the observation
	// that used was counted from. It never decreases.
	// +optional
	Observed ObservedVersions `json:"observed,omitempty"`

	// used is the total charge of all observed objects. The split by project is not stored here.
	// +optional
	Used corev1.ResourceList `json:"used,omitempty"`

	// holds are admitted charges whose objects are not yet observed.
	// +optional
	// +listType=map
	// +listMapKey=uid
	Holds []Hold `json:"holds,omitempty"`

	// rebuilding is true after the ledger was found missing: objects may have been admitted
	// that nobody knows of yet, so nothing is admitted until a live observation begun at
	// least 40 s after the marker was seen.
	// +optional
	Rebuilding bool `json:"rebuilding,omitempty"`

	// remembered are the last known charges of objects that cannot be computed now.
	// +optional
	// +listType=map
	// +listMapKey=uid
	Remembered []RememberedCharge `json:"remembered,omitempty"`

	// conditions tell, per key where they have one, whether and how the quota is enforced.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +listMapKey=key
	Conditions []LedgerCondition `json:"conditions,omitempty"`
}

// LedgerSelector selects projects as ClusterResourceQuota does: labels and annotations must both match.
type LedgerSelector struct {
	// +optional
	// +nullable
	Labels *metav1.LabelSelector `json:"labels,omitempty"`
	// +optional
	// +nullable
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ObservedVersions is a vector of resourceVersions. Versions compare only within one resource.
type ObservedVersions struct {
	// +optional
	Claims string `json:"claims,omitempty"`
	// +optional
	Pods string `json:"pods,omitempty"`
	// +optional
	Namespaces string `json:"namespaces,omitempty"`
	// +optional
	CRQs string `json:"crqs,omitempty"`
	// +optional
	Slices string `json:"slices,omitempty"`
	// +optional
	Classes string `json:"classes,omitempty"`
	// +optional
	Nodes string `json:"nodes,omitempty"`
}

// HoldKind is the kind of object that a hold waits for.
// +kubebuilder:validation:Enum=ResourceClaim;Pod
type HoldKind string

const (
	HoldClaim HoldKind = "ResourceClaim"
	HoldPod   HoldKind = "Pod"
)

// Hold is an admitted charge whose object is not yet observed. Only an observation of the
// object, or age, ends it.
type Hold struct {
	// uid of the object; the API server has fixed it when validating webhooks run.
	UID types.UID `json:"uid"`
	// kind of the object.
	Kind HoldKind `json:"kind"`
	// namespace of the object.
	Namespace string `json:"namespace"`
	// name of the object.
	Name string `json:"name"`
	// charge is what counts for the object now: what it costs this quota, or with podUID the
	// excess over the pod while that pod is counted.
	Charge corev1.ResourceList `json:"charge"`
	// full is what the object costs this quota, set with podUID only.
	// +optional
	Full corev1.ResourceList `json:"full,omitempty"`
	// advisory holds count only against the checks of other pods, never against claims.
	// +optional
	Advisory bool `json:"advisory,omitempty"`
	// podUID is set on the scheduler's claim for a pod that was charged itself: only the
	// excess over the pod counts while that pod is counted, else the full charge.
	// On an advisory hold it is not set.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
}

// RememberedCharge is the last known charge of an object that cannot be computed now.
type RememberedCharge struct {
	UID    types.UID           `json:"uid"`
	Charge corev1.ResourceList `json:"charge"`
}

// Condition types of a ledger.
const (
	// ConditionEnforced is True for a key that devicequota enforces.
	ConditionEnforced = "Enforced"
	// ConditionNotEnforced is True for a key that nothing enforces here.
	ConditionNotEnforced = "NotEnforced"
	// ConditionFootprintUnknown is True for a key whose charge no published device tells.
	ConditionFootprintUnknown = "FootprintUnknown"
	// ConditionZeroDefault is True for a capacity key whose request policy defaults to 0:
	// claims that do not ask for the capacity consume nothing of the quota.
	ConditionZeroDefault = "ZeroDefault"
	// ConditionAliasedKey is True for a class key whose devices another class reaches too.
	ConditionAliasedKey = "AliasedKey"
	// ConditionOverLimit is True for a key whose use exceeds hard; its message names the cause.
	ConditionOverLimit = "OverLimit"
	// ConditionStale is True when usage could not be recounted for a while; it has no key.
	ConditionStale = "Stale"
)

// LedgerCondition is one statement about a quota, or about one of its keys.
type LedgerCondition struct {
	// type of the condition.
	Type string `json:"type"`
	// key in spec.quota.hard, empty for a condition of the quota as a whole.
	// +kubebuilder:default=""
	Key string `json:"key"`
	// status is True, False or Unknown.
	// +kubebuilder:validation:Enum=True;False;Unknown
	Status metav1.ConditionStatus `json:"status"`
	// reason in CamelCase.
	Reason string `json:"reason"`
	// message for people.
	// +optional
	Message string `json:"message,omitempty"`
	// lastTransitionTime is when status last changed.
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

// DeviceLedgerList is a list of ledgers.
//
// +kubebuilder:object:root=true
type DeviceLedgerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DeviceLedger `json:"items"`
}
