package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/cmd/devicequota/app"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/live"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

type doctorOptions struct {
	*checkOptions
}

// DoctorReport is what `doctor` says.
type DoctorReport struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Findings   []live.Finding `json:"findings"`
}

func newDoctor(o *options) *cobra.Command {
	d := &doctorOptions{&checkOptions{options: o, adminAccess: "Warn"}}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what makes quotas mean less than they seem to",
		Long: "Look for keys that nothing enforces, misspelled classes, aliases, capacities that default to zero,\n" +
			"incomplete pools, ledgers that differ from a recount, and an installation that does not work:\n" +
			"webhooks, certificates, the FlowSchema. With -f it looks at manifests instead of the cluster.\n\n" +
			"Exit code: 0 nothing serious, 1 a finding of level error, 2 it could not look.",
		Example: "  kubectl devicequota doctor\n  kubectl devicequota doctor -R -f examples/",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&d.files, "filename", "f", nil, "files, folders or - to look at instead of the cluster")
	f.BoolVarP(&d.recursive, "recursive", "R", false, "read the sub-folders of folders, too")
	f.StringVar(&d.platform, "platform", "", platformHelp)
	d.addLive(cmd)
	_ = f.MarkHidden("live")
	o.addOutput(cmd, "json", "yaml")
	return cmd
}

func (d *doctorOptions) run(ctx context.Context) error {
	if !slices.Contains([]string{"", "json", "yaml"}, d.output) {
		return fmt.Errorf("output %q: want json or yaml", d.output)
	}
	findings, err := d.findings(ctx)
	if err != nil {
		return err
	}
	sortFindings(findings)
	r := DoctorReport{APIVersion: "devicequota.io/v1alpha1", Kind: "DoctorReport", Findings: findings}
	switch d.output {
	case "json":
		err = report.JSON(d.Out, r)
	case "yaml":
		err = report.YAML(d.Out, r)
	default:
		t := report.NewTable("Level", "Check", "Object", "Message")
		for _, f := range findings {
			t.Row(string(f.Level), f.Check, dash(f.Object), f.Message)
		}
		err = t.Write(d.Out, false, d.noHeaders)
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(findings, func(f live.Finding) bool { return f.Level == live.Error }) {
		return errNo
	}
	return nil
}

// sortFindings puts what is serious first.
func sortFindings(findings []live.Finding) {
	order := map[live.Level]int{live.Error: 0, live.Warning: 1, live.Info: 2}
	slices.SortStableFunc(findings, func(a, b live.Finding) int {
		return cmp.Or(cmp.Compare(order[a.Level], order[b.Level]), cmp.Compare(a.Check, b.Check), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Message, b.Message))
	})
}

func (d *doctorOptions) findings(ctx context.Context) ([]live.Finding, error) {
	so, err := d.simOptions()
	if err != nil {
		return nil, err
	}
	out := []live.Finding{{Level: live.Info, Check: "version", Object: "kubectl-devicequota", Message: app.Version(d.version)}}
	if len(d.files) > 0 {
		r := report.New()
		cluster, _, err := d.load(ctx, r)
		if err != nil {
			return nil, err
		}
		for i := range r.Items {
			if !r.Items[i].Allowed {
				out = append(out, live.Finding{Level: live.Error, Check: "key", Object: r.Items[i].Object.String(), Message: r.Items[i].Message})
			}
		}
		found, err := quotas(ctx, cluster, &live.Snapshot{})
		return append(out, append(found, pools(cluster.Slices())...)...), err
	}
	d.live = true
	if err := d.setDefaultNamespace(); err != nil {
		return nil, err
	}
	config, err := d.restConfig()
	if err != nil {
		return nil, err
	}
	reader, err := live.New(ctx, config)
	if err != nil {
		return nil, err
	}
	platform, installation := reader.Installation(ctx)
	so.OpenShift = so.OpenShift || platform == live.OpenShift
	out = append(append(out, installation...), reader.Ask(ctx, d.namespace))
	s, err := reader.Load(ctx, d.namespace)
	if err != nil {
		return nil, err
	}
	for _, note := range s.Notes {
		out = append(out, live.Finding{Level: live.Warning, Check: "access", Message: note})
	}
	cluster, err := sim.New(so)
	if err != nil {
		return nil, err
	}
	if err := cluster.Apply(ctx, s.Objects...); err != nil {
		return nil, err
	}
	found, err := quotas(ctx, cluster, s)
	if err != nil {
		return nil, err
	}
	out = append(append(out, found...), pools(cluster.Slices())...)
	found, err = ledgers(ctx, cluster, s)
	return append(out, found...), err
}

// quotas finds limits that mean less than they seem to. What may not be read tells nothing.
func quotas(ctx context.Context, c *sim.Cluster, s *live.Snapshot) ([]live.Finding, error) {
	var out []live.Finding
	noClasses := slices.Contains(s.Unlisted, "DeviceClass")
	noDevices := noClasses || slices.Contains(s.Unlisted, "ResourceSlice")
	for _, n := range c.Quotas() {
		u, err := c.Usage(ctx, n)
		if err != nil {
			return nil, err
		}
		add := func(level live.Level, check, message string) {
			out = append(out, live.Finding{Level: level, Check: check, Object: "clusterresourcequota " + n, Message: message})
		}
		_, errs := quota.Parse(u.CRQ, quota.ParseOptions{})
		for _, e := range errs {
			add(live.Error, "key", e.Error())
		}
		for i := range u.Quota.Keys {
			k := &u.Quota.Keys[i]
			if k.Subject == quota.SubjectClass && !noClasses && c.Inventory().DeviceClass(k.Class) == nil {
				add(live.Error, "class", fmt.Sprintf("%s: there is no DeviceClass %q", k.Name, k.Class))
			}
		}
		if len(u.ByNamespace) == 0 {
			add(live.Warning, "coverage", "its selector matches no namespace")
		}
		for _, condition := range u.Conditions {
			if level, ok := levels[condition.Type]; ok && !(noDevices && slices.Contains(byDevices, condition.Type)) {
				add(level, condition.Type, condition.Key+": "+condition.Message)
			}
		}
	}
	return out, nil
}

// levels of conditions; others are no findings.
var levels = map[string]live.Level{
	v1alpha1.ConditionNotEnforced:      live.Warning,
	v1alpha1.ConditionFootprintUnknown: live.Warning,
	v1alpha1.ConditionZeroDefault:      live.Warning,
	v1alpha1.ConditionAliasedKey:       live.Warning,
	v1alpha1.ConditionOverLimit:        live.Warning,
	v1alpha1.ConditionStale:            live.Error,
}

// byDevices are the conditions that depend on which devices there are.
var byDevices = []string{v1alpha1.ConditionFootprintUnknown, v1alpha1.ConditionZeroDefault, v1alpha1.ConditionAliasedKey}

// pools finds pools that are not complete in their newest generation, and slices of older ones.
func pools(slices []*resourceapi.ResourceSlice) []live.Finding {
	type pool struct {
		generation, wanted int64
		have, old          int64
	}
	found := map[string]*pool{}
	for _, s := range slices {
		name := s.Spec.Driver + "/" + s.Spec.Pool.Name
		p := found[name]
		switch {
		case p == nil || s.Spec.Pool.Generation > p.generation:
			next := &pool{generation: s.Spec.Pool.Generation, wanted: s.Spec.Pool.ResourceSliceCount, have: 1}
			if p != nil {
				next.old = p.have + p.old
			}
			found[name] = next
		case s.Spec.Pool.Generation == p.generation:
			p.have++
		default:
			p.old++
		}
	}
	var out []live.Finding
	for name, p := range found {
		if p.have < p.wanted {
			out = append(out, live.Finding{Level: live.Warning, Check: "pool", Object: name,
				Message: fmt.Sprintf("incomplete: %d of %d slices of generation %d; nothing of it can be allocated", p.have, p.wanted, p.generation)})
		}
		if p.old > 0 {
			out = append(out, live.Finding{Level: live.Warning, Check: "pool", Object: name,
				Message: fmt.Sprintf("%d slices of older generations are left", p.old)})
		}
	}
	return out
}

// ledgers compares what the ledgers say with a recount.
func ledgers(ctx context.Context, c *sim.Cluster, s *live.Snapshot) ([]live.Finding, error) {
	if s.Member || s.Ledgers == nil {
		return []live.Finding{{Level: live.Info, Check: "ledger", Message: "DeviceLedgers cannot be read: not compared with a recount"}}, nil
	}
	var out []live.Finding
	for _, n := range c.Quotas() {
		l := s.Ledgers[n]
		object := "deviceledger " + n
		if l == nil {
			out = append(out, live.Finding{Level: live.Error, Check: "ledger", Object: object, Message: "missing: no manager settles this quota"})
			continue
		}
		if l.Status.Rebuilding {
			out = append(out, live.Finding{Level: live.Warning, Check: "ledger", Object: object, Message: "is being rebuilt: claims wait"})
		}
		u, err := c.Usage(ctx, n)
		if err != nil {
			return nil, err
		}
		if quota.Equal(quota.Positive(u.Used), quota.Positive(l.Status.Used)) {
			continue
		}
		// With holds, objects are on their way between the two.
		level := live.Error
		if len(l.Status.Holds) > 0 {
			level = live.Warning
		}
		out = append(out, live.Finding{Level: level, Check: "ledger", Object: object,
			Message: fmt.Sprintf("says used %s; a recount comes to %s", quota.Format(l.Status.Used), quota.Format(u.Used))})
	}
	return out, nil
}
