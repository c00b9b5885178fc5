// Package report is what `check` says: as data of a stable form, and as text for people.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
)

// Report is the outcome of a check.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Items are the objects that were asked about, in input order, and quotas about which there
	// is something to say.
	Items []Item `json:"items"`
	// Usage of every quota afterwards, sorted by name.
	Usage   []Usage `json:"usage"`
	Summary Summary `json:"summary"`
}

// Item is the answer for one object.
type Item struct {
	Object   sim.Ref  `json:"object"`
	Allowed  bool     `json:"allowed"`
	Reason   string   `json:"reason"`
	Message  string   `json:"message"`
	Warnings []string `json:"warnings"`
	// Charge is what the object costs, or would have cost.
	// quota -> key -> amount
	Charge map[string]corev1.ResourceList `json:"charge"`
	// Pods is set for pods and workloads.
	Pods *sim.Pods `json:"pods,omitempty"`
	// Allocated is set with --allocate: false when no devices were found, with the reason.
	Allocated *bool  `json:"allocated,omitempty"`
	Pending   string `json:"pending,omitempty"`
	// Devices are the allocated ones, as request: driver/pool/device.
	Devices []string `json:"devices,omitempty"`
}

// Usage is the account of one quota.
type Usage struct {
	Quota string              `json:"quota"`
	Hard  corev1.ResourceList `json:"hard"`
	Used  corev1.ResourceList `json:"used"`
	// Namespaces has every covered namespace, sorted.
	Namespaces []Namespace `json:"namespaces"`
}

// Namespace is one project's share.
type Namespace struct {
	Namespace string              `json:"namespace"`
	Used      corev1.ResourceList `json:"used"`
}

// Summary counts the objects; warned ones are admitted, too.
type Summary struct {
	Admitted int `json:"admitted"`
	Denied   int `json:"denied"`
	Warned   int `json:"warned"`
	Skipped  int `json:"skipped"`
}

// New returns a report without anything.
func New() *Report {
	return &Report{APIVersion: "devicequota.io/v1alpha1", Kind: "CheckReport", Items: []Item{}, Usage: []Usage{}}
}

// Add adds the answer for one object and returns its item.
func (r *Report) Add(result *sim.Result) *Item {
	item := Item{Object: result.Object, Allowed: result.Allowed, Reason: result.Reason, Message: result.Message,
		Warnings: sim.JoinWarnings(result.Warnings), Charge: result.Charge, Pods: result.Pods}
	if item.Warnings == nil {
		item.Warnings = []string{}
	}
	if item.Charge == nil {
		item.Charge = map[string]corev1.ResourceList{}
	}
	switch {
	case !result.Allowed:
		r.Summary.Denied++
	default:
		r.Summary.Admitted++
		if len(result.Warnings) > 0 {
			r.Summary.Warned++
		}
	}
	r.Items = append(r.Items, item)
	return &r.Items[len(r.Items)-1]
}

// AddUsage adds the account of one quota.
func (r *Report) AddUsage(u *sim.Usage) {
	out := Usage{Quota: u.Quota.Name, Hard: u.Status.Total.Hard, Used: u.Status.Total.Used, Namespaces: []Namespace{}}
	for i := range u.Status.Namespaces {
		n := &u.Status.Namespaces[i]
		out.Namespaces = append(out.Namespaces, Namespace{Namespace: n.Namespace, Used: n.Status.Used})
	}
	r.Usage = append(r.Usage, out)
}

// Outputs are the forms in which a Report can be written; "" is the default one.
func Outputs() []string { return []string{"", "wide", "json", "yaml", "name"} }

// Style says how text is written.
type Style struct {
	// NoHeaders leaves the headings of tables out.
	NoHeaders bool
	// Terminal draws bars.
	Terminal bool
	// Colour uses colours.
	Colour bool
}

// Write writes the report in the form.
func (r *Report) Write(w io.Writer, output string, s Style) error {
	switch output {
	case "json":
		return JSON(w, r)
	case "yaml":
		return YAML(w, r)
	case "name":
		return r.names(w)
	case "", "wide":
		return r.text(w, output == "wide", s)
	}
	return fmt.Errorf("output %q: want wide, json, yaml or name", output)
}

// JSON writes anything as JSON.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// YAML writes anything as YAML.
func YAML(w io.Writer, v any) error {
	b, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}
