package scenario

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
)

// APIVersion and Kind of scenarios.
const (
	APIVersion = "devicequota.io/v1alpha1"
	Kind       = "Scenario"
)

// Scenario is one document.
type Scenario struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Options    Options  `json:"options,omitempty"`
	// Steps are taken in order, until one is not as expected.
	Steps []Step `json:"steps"`

	// File and Line are where it comes from.
	File string `json:"-"`
	Line int    `json:"-"`
	part *input.Part
}

// Metadata of a Scenario.
type Metadata struct {
	Name string `json:"name"`
	// Labels and Annotations are for people.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Options of the cluster.
type Options struct {
	// AdminAccess is Allow, Warn (the default) or Deny.
	AdminAccess string `json:"adminAccess,omitempty"`
	// MayUseAdminAccess are users.
	MayUseAdminAccess []string `json:"mayUseAdminAccess,omitempty"`
	// Platform is kubernetes (the default) or openshift.
	Platform string `json:"platform,omitempty"`
}

// Step has exactly one verb: apply, create, update, delete, allocate or usage.
type Step struct {
	// Apply sets what exists, without admission: objects and files.
	Apply []json.RawMessage `json:"apply,omitempty"`
	// Create and Update are requests: an object, a file, or a list of them.
	Create json.RawMessage `json:"create,omitempty"`
	Update json.RawMessage `json:"update,omitempty"`
	Delete *Target         `json:"delete,omitempty"`
	// Allocate is {} for the embedded allocator over all pending claims.
	Allocate *Allocate `json:"allocate,omitempty"`
	Usage    *Usage    `json:"usage,omitempty"`

	// As and AsGroups are who asks; an administrator when As is empty.
	As       string   `json:"as,omitempty"`
	AsGroups []string `json:"asGroups,omitempty"`
	Expect   *Expect  `json:"expect,omitempty"`

	verb    string
	line    int
	objects []input.Document
}

// Verb returns the one verb of the step: apply, create, update, delete, allocate or usage.
func (s *Step) Verb() string { return s.verb }

// Line returns where in the scenario's file the step begins.
func (s *Step) Line() int { return s.line }

// Objects returns what is applied, created or updated, in order, with the files read. They
// must not be modified.
func (s *Step) Objects() []input.Document { return s.objects }

// Target names what to delete.
type Target struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Allocate allocates all pending claims, gives one claim its devices, or takes them away.
type Allocate struct {
	// Claim is namespace/name.
	Claim       string   `json:"claim,omitempty"`
	Devices     []Device `json:"devices,omitempty"`
	ReservedFor []string `json:"reservedFor,omitempty"`
	Release     bool     `json:"release,omitempty"`
}

// Device is one that a claim gets.
type Device struct {
	Request          string                                          `json:"request"`
	Driver           string                                          `json:"driver"`
	Pool             string                                          `json:"pool"`
	Device           string                                          `json:"device"`
	ConsumedCapacity map[resourceapi.QualifiedName]resource.Quantity `json:"consumedCapacity,omitempty"`
	AdminAccess      *bool                                           `json:"adminAccess,omitempty"`
}

// Expect is what a request or an allocation must come to. What it does not name is not looked
// at, except allowed: it defaults to true, to false beside a reason or a message.
type Expect struct {
	Allowed *bool   `json:"allowed,omitempty"`
	Reason  string  `json:"reason,omitempty"`
	Message Strings `json:"message,omitempty"`
	// NotMessage must appear neither in the message nor in a warning.
	NotMessage Strings `json:"notMessage,omitempty"`
	Warnings   Strings `json:"warnings,omitempty"`
	NoWarnings bool    `json:"noWarnings,omitempty"`
	// Charge of the keys that it names, exactly.
	Charge map[string]corev1.ResourceList `json:"charge,omitempty"`
	Pods   *sim.Pods                      `json:"pods,omitempty"`
	// Allocated and Pending are complete lists of namespace/name, in any order.
	Allocated *[]string `json:"allocated,omitempty"`
	Pending   *[]string `json:"pending,omitempty"`
}

// Strings is a list that may be written as one string.
type Strings []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *Strings) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*s = Strings{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(s))
}

// Usage is what a quota's account must be: exactly so for the keys that it names, where a key
// or project that the account lacks counts as 0.
type Usage struct {
	Quota      string                         `json:"quota"`
	Used       corev1.ResourceList            `json:"used,omitempty"`
	Namespaces map[string]corev1.ResourceList `json:"namespaces,omitempty"`
	Conditions []Condition                    `json:"conditions,omitempty"`
	// NoConditions must not be True.
	NoConditions []Condition `json:"noConditions,omitempty"`
	// Projection is what the projects are shown.
	// namespace -> what is shown there
	Projection map[string]Projection `json:"projection,omitempty"`
}

// Condition of a quota's ledger.
type Condition struct {
	Type string `json:"type"`
	// Key of the quota; any when empty.
	Key string `json:"key,omitempty"`
	// Status is True when empty.
	Status string `json:"status,omitempty"`
	// Reason; any when empty.
	Reason string `json:"reason,omitempty"`
}

// Projection is the AppliedClusterResourceQuota of one project.
type Projection struct {
	Used corev1.ResourceList `json:"used,omitempty"`
	// Namespaces are the shown projects, all of them.
	Namespaces map[string]corev1.ResourceList `json:"namespaces,omitempty"`
}
