package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/quota"
)

// Explanation is what `explain` says of one claim.
type Explanation struct {
	Object sim.Ref `json:"object"`
	// Quotas are those that cover the project, sorted by name.
	Quotas   []QuotaExplanation   `json:"quotas"`
	Requests []RequestExplanation `json:"requests"`
	// Node is where the claim would be allocated, with Devices; empty when nowhere.
	Node    string   `json:"node,omitempty"`
	Devices []string `json:"devices,omitempty"`
	// WhyNot tells why nowhere.
	WhyNot string           `json:"whyNot,omitempty"`
	Unfit  *allocator.Unfit `json:"unfit,omitempty"`
}

// QuotaExplanation is what the claim costs one quota.
type QuotaExplanation struct {
	Quota string `json:"quota"`
	// Fits tells whether the quota has room now.
	Fits  bool   `json:"fits"`
	Keys  []Key  `json:"keys"`
	Error string `json:"error,omitempty"`
}

// Key is the charge of one key, and how it came about.
type Key struct {
	Key    corev1.ResourceName `json:"key"`
	Charge string              `json:"charge"`
	Used   string              `json:"used"`
	Hard   string              `json:"hard"`
	Fits   bool                `json:"fits"`
	Rules  []string            `json:"rules"`
}

// RequestExplanation tells which devices could serve a request or alternative.
type RequestExplanation struct {
	Request string `json:"request"`
	Class   string `json:"class"`
	// Matching is how many published devices pass the selectors of class and request.
	Matching int `json:"matching"`
	// Devices are the first of them, as driver/pool/device.
	Devices []string `json:"devices"`
	Error   string   `json:"error,omitempty"`
}

// shownDevices is how many devices are named.
const shownDevices = 5

type explainOptions struct {
	*checkOptions
}

func newExplain(o *options) *cobra.Command {
	e := &explainOptions{&checkOptions{options: o, adminAccess: "Warn"}}
	cmd := &cobra.Command{
		Use:   "explain [-f FILE|DIR|-] [NAME...]",
		Short: "Explain what a claim costs, which devices could serve it, and why not",
		Long: "Explain for each ResourceClaim and ResourceClaimTemplate of the input, or those of the given names,\n" +
			"which are those of the cluster when there is no -f:\n" +
			"what it costs each quota and by which rule, which devices could serve each request, where it would\n" +
			"be allocated, or why nowhere. Claims with an allocation in their status hold their devices.",
		Example: "  kubectl devicequota explain -f cluster/ -f quota.yaml -f claim.yaml\n" +
			"  kubectl devicequota explain --live -n team-a -f claim.yaml\n" +
			"  kubectl devicequota explain -n team-a my-claim\n" +
			"  kubectl apply -f claim.yaml 2>&1 | kubectl devicequota explain denial",
		RunE: func(cmd *cobra.Command, args []string) error { return e.explain(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&e.files, "filename", "f", nil, "files, folders or - to read; repeat it for more")
	f.BoolVarP(&e.recursive, "recursive", "R", false, "read the sub-folders of folders, too")
	f.StringVar(&e.platform, "platform", "", platformHelp)
	e.addLive(cmd)
	o.addOutput(cmd, "json", "yaml")
	cmd.AddCommand(newExplainDenial(o))
	return cmd
}

func (e *explainOptions) explain(ctx context.Context, names []string) error {
	if !slices.Contains([]string{"", "json", "yaml"}, e.output) {
		return fmt.Errorf("output %q: want json or yaml", e.output)
	}
	cluster, asked, err := e.asked(ctx, names)
	if err != nil {
		return err
	}
	out := []Explanation{}
	for i := range asked {
		claim, err := cluster.ClaimOf(asked[i].Object)
		switch {
		case err != nil:
			return at(&asked[i], err)
		case claim == nil || len(names) > 0 && !slices.Contains(names, claim.Name):
			continue
		}
		x, err := explainClaim(ctx, cluster, claim, sim.RefOf(asked[i].Object))
		if err != nil {
			return err
		}
		out = append(out, x)
	}
	if len(out) == 0 {
		return errors.New("no claim or template to explain")
	}
	switch e.output {
	case "json":
		return report.JSON(e.Out, out)
	case "yaml":
		return report.YAML(e.Out, out)
	}
	for i := range out {
		if i > 0 {
			fmt.Fprintln(e.Out)
		}
		if err := e.text(&out[i]); err != nil {
			return err
		}
	}
	return nil
}

// asked returns the claims of the input, or those of the cluster when there is no input. Claims
// with an allocation are part of the cluster.
func (e *explainOptions) asked(ctx context.Context, names []string) (*sim.Cluster, []input.Document, error) {
	if len(e.files) == 0 && len(names) == 0 {
		return nil, nil, errors.New("nothing to explain: give -f, or the names of claims of the cluster")
	}
	e.live = e.live || len(e.files) == 0
	cluster, asked, err := e.load(ctx, report.New())
	if err != nil {
		return nil, nil, err
	}
	for i := range asked {
		claim, err := cluster.ClaimOf(asked[i].Object)
		if err != nil {
			return nil, nil, at(&asked[i], err)
		}
		if claim != nil && claim.Status.Allocation != nil && asked[i].Object.GetObjectKind().GroupVersionKind().Kind == "ResourceClaim" {
			if err := cluster.Apply(ctx, asked[i].Object.DeepCopyObject()); err != nil {
				return nil, nil, at(&asked[i], err)
			}
		}
	}
	if len(e.files) == 0 {
		for _, claim := range cluster.Claims() {
			if claim.Namespace == e.namespace {
				asked = append(asked, input.Document{Object: claim, File: "cluster"})
			}
		}
	}
	return cluster, asked, nil
}

func explainClaim(ctx context.Context, c *sim.Cluster, claim *resourceapi.ResourceClaim, ref sim.Ref) (Explanation, error) {
	x := Explanation{Object: ref, Quotas: []QuotaExplanation{}, Requests: []RequestExplanation{}}
	for _, q := range c.Covering(claim.Namespace) {
		e, err := explainQuota(ctx, c, claim, q)
		if err != nil {
			return x, err
		}
		x.Quotas = append(x.Quotas, e)
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			x.Requests = append(x.Requests, explainRequest(c, r.Name, r.Exactly.DeviceClassName, r.Exactly.Selectors))
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			x.Requests = append(x.Requests, explainRequest(c, r.Name+"/"+s.Name, s.DeviceClassName, s.Selectors))
		}
	}
	results := claim.Status.Allocation
	if results == nil {
		p, err := c.Place(ctx, claim)
		if err != nil {
			return x, err
		}
		x.Node, x.Devices, x.Unfit, x.WhyNot = p.Node, devicesText(p.Devices), p.Unfit, p.Why
		if p.Unfit != nil {
			x.WhyNot = whyNot(p.Unfit)
		}
		return x, nil
	}
	x.Devices = devicesText(results.Devices.Results)
	return x, nil
}

// whyNot is the allocator's explanation. For a single request its summary has everything already.
func whyNot(u *allocator.Unfit) string {
	if len(u.Claims) == 1 && len(u.Claims[0].Requests) == 1 && len(u.Pools) == 0 {
		return u.Summary
	}
	return u.String()
}

func devicesText(results []resourceapi.DeviceRequestAllocationResult) []string {
	var out []string
	for i := range results {
		r := &results[i]
		out = append(out, fmt.Sprintf("%s: %s/%s/%s", r.Request, r.Driver, r.Pool, r.Device))
	}
	return out
}

// explainQuota charges the claim to the quota, beside what is used.
func explainQuota(ctx context.Context, c *sim.Cluster, claim *resourceapi.ResourceClaim, q *quota.Quota) (QuotaExplanation, error) {
	e := QuotaExplanation{Quota: q.Name, Fits: true, Keys: []Key{}}
	charge, err := c.Charger().Requested(&claim.Spec, q)
	if err != nil {
		e.Fits, e.Error = false, err.Error()
		return e, nil
	}
	u, err := c.Usage(ctx, q.Name)
	if err != nil {
		return e, err
	}
	for _, unknown := range charge.Unknown {
		e.Error = fmt.Sprintf("%s, request %q: %s", unknown.Key, unknown.Request, unknown.Why)
		e.Fits = q.UnknownFootprint == quota.AllowUnknown
	}
	for _, key := range quota.SortedKeys(charge.Amounts) {
		amount, used, hard := charge.Amounts[key], u.Used[key], q.Hard[key]
		sum := used.DeepCopy()
		if !c.Counts(claim) {
			sum.Add(amount)
		}
		k := Key{Key: key, Charge: amount.String(), Used: used.String(), Hard: hard.String(), Fits: sum.Cmp(hard) <= 0, Rules: []string{}}
		for _, r := range charge.Rules {
			if r.Key == key {
				k.Rules = append(k.Rules, ruleText(r))
			}
		}
		e.Fits = e.Fits && k.Fits
		e.Keys = append(e.Keys, k)
	}
	return e, nil
}

func ruleText(r quota.Rule) string {
	if r.Request == "" {
		return r.Text
	}
	return fmt.Sprintf("request %q: %s", r.Request, r.Text)
}

// explainRequest finds the devices that pass the selectors.
func explainRequest(c *sim.Cluster, request, class string, selectors []resourceapi.DeviceSelector) RequestExplanation {
	r := RequestExplanation{Request: request, Class: class, Devices: []string{}}
	inventory := c.Inventory()
	if inventory.DeviceClass(class) == nil {
		r.Error = fmt.Sprintf("there is no DeviceClass %q", class)
		return r
	}
	within, err := inventory.Candidates(class, selectors, func(driver, pool string, d *resourceapi.Device, _ []string) bool {
		r.Matching++
		if len(r.Devices) < shownDevices {
			r.Devices = append(r.Devices, driver+"/"+pool+"/"+d.Name)
		}
		return true
	})
	switch {
	case err != nil:
		r.Error = err.Error()
	case !within:
		r.Error = "the selectors cost too much to evaluate on all devices"
	}
	return r
}
