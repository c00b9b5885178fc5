package quota

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations on a ClusterResourceQuota.
const (
	// EnforcementAnnotation is Enforce (default), Warn or Audit.
	EnforcementAnnotation = "devicequota.io/enforcement"
	// UnknownFootprintAnnotation is Deny (default) or Allow.
	UnknownFootprintAnnotation = "devicequota.io/unknown-footprint"
	// TrueDownAnnotation is Owned (default), Always or Never.
	TrueDownAnnotation = "devicequota.io/true-down"
	// SelectorAnnotationPrefix precedes the name of a selector; the value is a CEL device selector.
	SelectorAnnotationPrefix = "selector.devicequota.io/"
)

// Annotations on a DeviceClass.
const (
	// FootprintAnnotation declares what one device of the class consumes, as JSON object of
	// measure to quantity, for classes of which no device is published yet.
	FootprintAnnotation = "devicequota.io/footprint"
	// RequireQuotaAnnotation "true" denies claims for the class in projects without a quota for it.
	RequireQuotaAnnotation = "devicequota.io/require-quota"
)

// Enforcement is what happens to a request that does not fit.
type Enforcement string

const (
	Enforce Enforcement = "Enforce"
	Warn    Enforcement = "Warn"
	Audit   Enforcement = "Audit"
)

// UnknownFootprint is what happens to a request whose charge no published device tells.
type UnknownFootprint string

const (
	DenyUnknown  UnknownFootprint = "Deny"
	AllowUnknown UnknownFootprint = "Allow"
)

// TrueDown is whose charge follows the real allocation below what was requested.
type TrueDown string

const (
	// TrueDownOwned lowers claims that belong to one pod, which cannot be allocated again without it.
	TrueDownOwned TrueDown = "Owned"
	// TrueDownAlways lowers every allocated claim.
	TrueDownAlways TrueDown = "Always"
	// TrueDownNever charges the larger of requested and allocated.
	TrueDownNever TrueDown = "Never"
)

// Quota is a ClusterResourceQuota as devicequota reads it. It is immutable once parsed.
type Quota struct {
	Name            string
	UID             types.UID
	ResourceVersion uint64
	// Created is the API server's own timestamp.
	Created  time.Time
	Deleting bool

	// Hard is spec.quota.hard, all keys.
	Hard corev1.ResourceList
	// Keys are the keys of Hard that devicequota enforces, sorted by name.
	Keys []Key
	// PlatformKeys are the keys of Hard that are left to the platform, sorted.
	PlatformKeys []corev1.ResourceName
	// NotEnforced are the keys of Hard that nothing enforces, as far as the quota itself
	// tells: names that are not about devices (on OpenShift the platform knows them), malformed
	// names, and all keys of a quota with scopes; sorted.
	NotEnforced []corev1.ResourceName
	// Scoped: the quota has scopes or a scope selector. Claims have none, so that it never matches one.
	Scoped bool

	// Selector selects the covered projects.
	Selector Selector
	// Selectors are the CEL device selectors by name.
	Selectors map[string]string

	Enforcement      Enforcement
	UnknownFootprint UnknownFootprint
	TrueDown         TrueDown

	// signature tells quotas apart that charge differently; empty unless parsed.
	signature string
}
