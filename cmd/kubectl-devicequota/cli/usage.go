package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	quotav1 "github.com/openshift/api/quota/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/live"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// UsageReport is what `usage` says.
type UsageReport struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Quotas     []QuotaUsage `json:"quotas"`
}

// QuotaUsage is the account of one quota.
type QuotaUsage struct {
	report.Usage `json:",inline"`
	// Holds are charges that are admitted and whose objects are not observed yet; nil when
	// nobody tells.
	Holds corev1.ResourceList `json:"holds"`
	// Holders are the objects that count, the largest first.
	Holders []HolderUsage `json:"holders"`
}

// HolderUsage is one object that counts.
type HolderUsage struct {
	Object sim.Ref             `json:"object"`
	Charge corev1.ResourceList `json:"charge"`
	Owner  string              `json:"owner,omitempty"`
	Age    string              `json:"age,omitempty"`
	// State is Used, Idle (allocated, and no pod uses it), Pending (without devices) or Deleting.
	State string `json:"state"`
	age   time.Duration
}

type usageOptions struct {
	*checkOptions
	all      bool
	watch    bool
	interval time.Duration
	holders  int
}

func newUsage(o *options) *cobra.Command {
	u := &usageOptions{checkOptions: &checkOptions{options: o, adminAccess: "Warn"}}
	cmd := &cobra.Command{
		Use:   "usage [QUOTA]",
		Short: "Show what is used of quotas, by whom, and what is held without being used",
		Long: "Show what is used of quotas: per key and project, the biggest holders, and claims that hold quota\n" +
			"without being allocated or used, or that are stuck in deletion. With -f it shows the quotas of\n" +
			"manifests; without, those of the cluster. Whoever may not read ClusterResourceQuotas sees what\n" +
			"his project is shown of them.",
		Example: "  kubectl devicequota usage\n  kubectl devicequota usage team-a -n team-a-train --watch\n  kubectl devicequota usage -R -f examples/",
		Args:    cobra.MaximumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return u.run(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&u.files, "filename", "f", nil, "files, folders or - to read instead of the cluster")
	f.BoolVarP(&u.recursive, "recursive", "R", false, "read the sub-folders of folders, too")
	f.BoolVar(&u.allocate, "allocate", false, "with -f: let the embedded allocator allocate each claim")
	f.BoolVarP(&u.all, "all-namespaces", "A", false, "show all projects, also when -n or the kubeconfig names one")
	f.BoolVarP(&u.watch, "watch", "w", false, "show it again and again")
	f.DurationVar(&u.interval, "interval", 5*time.Second, "how often --watch looks")
	f.IntVar(&u.holders, "holders", 10, "how many objects are shown per quota")
	f.StringVar(&u.platform, "platform", "kubernetes", "kubernetes or openshift")
	u.addLive(cmd)
	_ = f.MarkHidden("live")
	o.addOutput(cmd, "json", "yaml")
	return cmd
}

func (u *usageOptions) run(ctx context.Context, args []string) error {
	switch {
	case !slices.Contains([]string{"", "json", "yaml"}, u.output):
		return fmt.Errorf("output %q: want json or yaml", u.output)
	case u.watch && len(u.files) > 0:
		return errors.New("--watch is for clusters: files do not change by themselves")
	case u.interval < time.Second:
		return errors.New("--interval: at least 1s")
	}
	u.live = len(u.files) == 0
	only := u.namespace
	if u.all {
		only = ""
	}
	for {
		r, err := u.report(ctx, args, only)
		if u.watch && ctx.Err() != nil {
			return nil // that is how it ends, also in the middle of reading
		}
		if err != nil {
			return err
		}
		if err := u.write(r); err != nil || !u.watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(u.interval):
		}
		fmt.Fprintf(u.Out, "\n%s\n", time.Now().Format(time.TimeOnly))
	}
}

// report recounts the quotas of the files or the cluster.
func (u *usageOptions) report(ctx context.Context, args []string, only string) (*UsageReport, error) {
	cluster, s, err := u.cluster(ctx)
	if err != nil {
		return nil, err
	}
	out := &UsageReport{APIVersion: "devicequota.io/v1alpha1", Kind: "UsageReport", Quotas: []QuotaUsage{}}
	for _, n := range cluster.Quotas() {
		if len(args) > 0 && n != args[0] {
			continue
		}
		q, err := u.quota(ctx, cluster, n, s, only)
		if err != nil {
			return nil, err
		}
		if only == "" || len(q.Namespaces) > 0 {
			out.Quotas = append(out.Quotas, *q)
		}
	}
	if len(args) > 0 && len(out.Quotas) == 0 {
		return nil, fmt.Errorf("no quota %q", args[0])
	}
	return out, nil
}

// cluster is that of the files, with everything admitted, or the one that is asked.
func (u *usageOptions) cluster(ctx context.Context) (*sim.Cluster, *live.Snapshot, error) {
	if !u.live {
		r := report.New()
		cluster, asked, err := u.load(ctx, r)
		if err != nil {
			return nil, nil, err
		}
		err = u.admit(ctx, cluster, asked, r, nil)
		for i := range r.Items {
			if !r.Items[i].Allowed {
				u.say("note: not admitted: %s", r.Items[i].Object)
			}
		}
		return cluster, &live.Snapshot{}, err
	}
	so, err := u.simOptions()
	if err != nil {
		return nil, nil, err
	}
	if err := u.setDefaultNamespace(); err != nil {
		return nil, nil, err
	}
	cluster, s, err := u.connect(ctx, so)
	if err != nil {
		return nil, nil, err
	}
	for _, note := range s.Notes {
		u.say("note: %s", note)
	}
	return cluster, s, nil
}

func (u *usageOptions) quota(ctx context.Context, c *sim.Cluster, n string, s *live.Snapshot, only string) (*QuotaUsage, error) {
	usage, err := c.Usage(ctx, n)
	if err != nil {
		return nil, err
	}
	r := report.New()
	r.AddUsage(&usage)
	q := &QuotaUsage{Usage: r.Usage[0], Holders: []HolderUsage{}}
	for i := range s.Applied {
		if s.Applied[i].Name == n {
			q.Usage = appliedUsage(&s.Applied[i])
		}
	}
	if l := s.Ledgers[n]; l != nil {
		q.Holds = holds(l)
	}
	if only != "" {
		q.Namespaces = slices.DeleteFunc(q.Namespaces, func(p report.Namespace) bool { return p.Namespace != only })
	}
	now := time.Now()
	if !u.live {
		now = c.Now()
	}
	for _, h := range c.Holders(n) {
		if only == "" || h.Object.Namespace == only {
			q.Holders = append(q.Holders, holderUsage(&h, now, u.live))
		}
	}
	slices.SortStableFunc(q.Holders, func(a, b HolderUsage) int {
		return cmp.Compare(share(&b, usage.Quota.Hard), share(&a, usage.Quota.Hard))
	})
	return q, nil
}

// appliedUsage is what a project is shown of a quota.
func appliedUsage(a *quotav1.AppliedClusterResourceQuota) report.Usage {
	out := report.Usage{Quota: a.Name, Hard: a.Spec.Quota.Hard, Used: a.Status.Total.Used, Namespaces: []report.Namespace{}}
	for i := range a.Status.Namespaces {
		n := &a.Status.Namespaces[i]
		out.Namespaces = append(out.Namespaces, report.Namespace{Namespace: n.Namespace, Used: n.Status.Used})
	}
	return out
}

// holds are what the ledger holds for objects that are not observed yet.
func holds(l *v1alpha1.DeviceLedger) corev1.ResourceList {
	return quota.HoldSum(l.Status.Holds, "", nil, false)
}

func holderUsage(h *sim.Holder, now time.Time, ages bool) HolderUsage {
	out := HolderUsage{Object: h.Object, Charge: h.Charge, Owner: h.Owner, State: "Used", age: now.Sub(h.Created)}
	switch {
	case !h.Deleting.IsZero():
		out.State, out.age = "Deleting", now.Sub(h.Deleting)
	case h.Object.Kind == "ResourceClaim" && !h.Allocated:
		out.State = "Pending"
	case !h.InUse:
		out.State = "Idle"
	}
	if ages {
		out.Age = duration.HumanDuration(out.age)
	}
	return out
}

// share is the largest part of a limit that the object holds.
func share(h *HolderUsage, hard corev1.ResourceList) float64 {
	var most float64
	for key, v := range h.Charge {
		limit := hard[key]
		if limit.Sign() > 0 {
			most = max(most, v.AsApproximateFloat64()/limit.AsApproximateFloat64())
		}
	}
	return most
}

func (u *usageOptions) write(r *UsageReport) error {
	switch u.output {
	case "json":
		return report.JSON(u.Out, r)
	case "yaml":
		return report.YAML(u.Out, r)
	}
	if len(r.Quotas) == 0 {
		u.say("no quota covers anything that you may see")
		return nil
	}
	style := u.style()
	for i := range r.Quotas {
		if i > 0 {
			fmt.Fprintln(u.Out)
		}
		if err := u.text(&r.Quotas[i], style); err != nil {
			return err
		}
	}
	return nil
}

// text writes one quota's tables.
func (u *usageOptions) text(q *QuotaUsage, style report.Style) error {
	t := report.UsageTable([]report.Usage{q.Usage}, style.Terminal)
	if err := t.Write(u.Out, false, u.noHeaders); err != nil {
		return err
	}
	if len(quota.Positive(q.Holds)) > 0 {
		fmt.Fprintf(u.Out, "\nadmitted and not observed yet: %s\n", quota.Format(quota.Positive(q.Holds)))
	}
	t = report.NewTable("Holder", "State", "Age", "Owner", "Charge")
	for i := range q.Holders {
		h := &q.Holders[i]
		if i >= u.holders && h.State == "Used" {
			continue // whatever is not used is always shown
		}
		t.Row(h.Object.String(), h.State, dash(h.Age), dash(h.Owner), quota.Format(h.Charge))
	}
	if t.Len() > 0 {
		fmt.Fprintln(u.Out)
	}
	if err := t.Write(u.Out, false, u.noHeaders); err != nil {
		return err
	}
	if n := len(q.Holders) - t.Len(); n > 0 {
		fmt.Fprintf(u.Out, "... and %d more\n", n)
	}
	return nil
}
