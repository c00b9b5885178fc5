package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	quotav1 "github.com/openshift/api/quota/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
	"github.com/devicequota/devicequota/webhooks"
)

// checkOptions are the flags of check.
type checkOptions struct {
	*options
	// config says which cluster is meant. Each command has flags of its own for it.
	config      *genericclioptions.ConfigFlags
	files       []string
	recursive   bool
	allocate    bool
	platform    string
	adminAccess string
	mayAdmin    []string
	namespace   string
	user        string
	groups      []string
	live        bool
	progress    *progress
}

const platformHelp = "kubernetes or openshift; found out in a cluster, else kubernetes"

const checkExample = `  # Would the claim be admitted by the quota, on these devices?
  kubectl devicequota check -f cluster/ -f quota.yaml -f claim.yaml

  # The same as data, from standard input, as another user
  kustomize build . | kubectl devicequota check -f cluster/ -f - --as alice -o json

  # Which devices would they get?
  kubectl devicequota check -R -f examples/ --allocate`

func newCheck(o *options) *cobra.Command {
	c := &checkOptions{options: o}
	cmd := &cobra.Command{
		Use:   "check -f FILE|DIR|-",
		Short: "Admit manifests as the webhooks would, without a cluster",
		Long: "Admit manifests as the webhooks would. Namespaces, Nodes, DeviceClasses, ResourceSlices,\n" +
			"DeviceTaintRules and ClusterResourceQuotas of all inputs are the cluster. ResourceClaims,\n" +
			"ResourceClaimTemplates, Pods and workloads are admitted one after the other, in input order.\n\n" +
			"Exit code: 0 all admitted, 1 something was denied, 2 bad input.",
		Example: checkExample,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&c.files, "filename", "f", nil, "files, folders or - to read; repeat it for more")
	f.BoolVarP(&c.recursive, "recursive", "R", false, "read the sub-folders of folders, too")
	f.BoolVar(&c.allocate, "allocate", false, "let the embedded allocator allocate each admitted claim")
	f.StringVarP(&c.namespace, "namespace", "n", "", "namespace of objects that name none")
	f.StringVar(&c.user, "as", "", "user who asks; an administrator by default")
	f.StringSliceVar(&c.groups, "as-group", nil, "groups of that user")
	f.StringVar(&c.platform, "platform", "", platformHelp)
	f.StringVar(&c.adminAccess, "admin-access", string(webhooks.AdminAccessWarn), "Allow, Warn or Deny, as the manager's option")
	f.StringSliceVar(&c.mayAdmin, "may-use-admin-access", nil, "users who may ask for adminAccess")
	c.addLive(cmd)
	o.addOutput(cmd, "wide", "json", "yaml", "name")
	_ = cmd.MarkFlagRequired("filename")
	return cmd
}

// simOptions returns the cluster's options, or what is wrong with the flags.
func (c *checkOptions) simOptions() (sim.Options, error) {
	var errs []error
	if !slices.Contains(report.Outputs(), c.output) {
		errs = append(errs, fmt.Errorf("output %q: want wide, json, yaml or name", c.output))
	}
	policy := webhooks.AdminAccessPolicy(c.adminAccess)
	if !slices.Contains([]webhooks.AdminAccessPolicy{webhooks.AdminAccessAllow, webhooks.AdminAccessWarn, webhooks.AdminAccessDeny}, policy) {
		errs = append(errs, fmt.Errorf("admin-access %q: want Allow, Warn or Deny", c.adminAccess))
	}
	platform := strings.ToLower(c.platform)
	if !slices.Contains([]string{"", "kubernetes", "openshift"}, platform) {
		errs = append(errs, fmt.Errorf("platform %q: want kubernetes or openshift", c.platform))
	}
	return sim.Options{AdminAccess: policy, MayUseAdminAccess: c.mayAdmin, OpenShift: platform == "openshift", Namespaces: true}, errors.Join(errs...)
}

func (c *checkOptions) run(ctx context.Context) error {
	p := newProgress(c.ErrOut)
	defer p.done()
	c.progress = p
	r := report.New()
	cluster, asked, err := c.load(ctx, r)
	if err != nil {
		return err
	}
	if err := c.admit(ctx, cluster, asked, r, p); err != nil {
		return err
	}
	p.done()
	if err := r.Write(c.Out, c.output, c.style()); err != nil {
		return err
	}
	if r.Summary.Denied > 0 {
		return errNo
	}
	return nil
}

// load reads the input, makes a cluster of it, or of the one that is asked with --live, and
// returns the objects that are asked about.
func (c *checkOptions) load(ctx context.Context, r *report.Report) (*sim.Cluster, []input.Document, error) {
	so, err := c.simOptions()
	if err != nil {
		return nil, nil, err
	}
	if err := c.setDefaultNamespace(); err != nil {
		return nil, nil, err
	}
	reader, err := input.NewReader()
	if err != nil {
		return nil, nil, err
	}
	set, err := reader.Read(c.files, input.Options{Recursive: c.recursive, Stdin: c.In,
		Progress: func(n int) { c.progress.show("read %d objects", n) }})
	if err != nil {
		return nil, nil, err
	}
	r.Summary.Skipped = len(set.Skipped)
	if c.live {
		return c.loadLive(ctx, so, set.Documents, r)
	}
	cluster, err := sim.New(so)
	if err != nil {
		return nil, nil, err
	}
	asked, err := c.build(ctx, cluster, set.Documents, r)
	return cluster, asked, err
}

// build makes the cluster of what is one and returns the objects that are asked about. Quotas
// are admitted, too, and reported when there is anything to say about them.
func (c *checkOptions) build(ctx context.Context, cluster *sim.Cluster, documents []input.Document, r *report.Report) ([]input.Document, error) {
	var asked []input.Document
	var state []runtime.Object
	var quotas []input.Document
	namespaces := map[string]bool{}
	for _, d := range documents {
		switch o := d.Object.(type) {
		case *corev1.Namespace:
			namespaces[o.Name] = true
			state = append(state, o)
			continue
		case *quotav1.ClusterResourceQuota:
			quotas = append(quotas, d)
			continue
		}
		switch d.Object.GetObjectKind().GroupVersionKind().Kind {
		case "Node", "DeviceClass", "ResourceSlice", "DeviceTaintRule":
			state = append(state, d.Object)
		default:
			if err := c.setNamespace(d.Object); err != nil {
				return nil, err
			}
			asked = append(asked, d)
		}
	}
	if err := cluster.Apply(ctx, state...); err != nil {
		return nil, err
	}
	for _, d := range quotas {
		ask := cluster.Create
		if cluster.Exists(d.Object) {
			ask = cluster.Update
		}
		result, err := ask(ctx, d.Object, sim.User("", nil))
		if err != nil {
			return nil, at(&d, err)
		}
		if !result.Unconditional() {
			r.Add(&result)
		}
	}
	asked, made, err := withoutMade(cluster, asked)
	if err != nil {
		return nil, err
	}
	if made > 0 {
		c.say("note: left out, since their controllers are in the input and make them: %d objects", made)
		r.Summary.Skipped += made
	}
	if !c.live {
		c.unknownNamespaces(asked, namespaces)
	}
	return asked, nil
}

func (c *checkOptions) setNamespace(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if m.GetNamespace() == "" {
		m.SetNamespace(c.namespace)
	}
	return nil
}

// unknownNamespaces says which namespaces are taken to exist without labels: no quota that
// selects by labels covers them.
func (c *checkOptions) unknownNamespaces(asked []input.Document, known map[string]bool) {
	var missing []string
	for _, d := range asked {
		m, err := meta.Accessor(d.Object)
		if err == nil && !known[m.GetNamespace()] && !slices.Contains(missing, m.GetNamespace()) {
			missing = append(missing, m.GetNamespace())
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		c.say("note: not in the input, taken to exist without labels: namespace %s", strings.Join(missing, ", "))
	}
}

// admit asks for the objects one after the other.
func (c *checkOptions) admit(ctx context.Context, cluster *sim.Cluster, asked []input.Document, r *report.Report, p *progress) error {
	user := sim.User(c.user, c.groups)
	items := map[types.NamespacedName]int{}
	for i := range asked {
		if err := ctx.Err(); err != nil {
			return err
		}
		d := &asked[i]
		ask := cluster.Create
		if c.live && cluster.Exists(d.Object) {
			ask = cluster.Update // what is applied again costs nothing new
		}
		result, err := ask(ctx, d.Object, user)
		if err != nil {
			return at(d, err)
		}
		r.Add(&result)
		for _, key := range claimsOf(&result) {
			items[key] = len(r.Items) - 1
		}
		if err := c.allocated(ctx, cluster, d, &result); err != nil {
			return at(d, err)
		}
		if c.allocate && result.Object.Kind != "ResourceClaimTemplate" {
			if err := allocate(ctx, cluster, items, r); err != nil {
				return err
			}
		}
		p.show("admitted %d of %d objects", i+1, len(asked))
	}
	for _, name := range cluster.Quotas() {
		u, err := cluster.Usage(ctx, name)
		if err != nil {
			return err
		}
		r.AddUsage(&u)
	}
	return nil
}

// allocated keeps the allocation of a claim that has one in the input.
func (c *checkOptions) allocated(ctx context.Context, cluster *sim.Cluster, d *input.Document, result *sim.Result) error {
	if result.Object.Kind != "ResourceClaim" || !result.Allowed {
		return nil
	}
	claim, err := cluster.ClaimOf(d.Object)
	if err != nil || claim == nil || claim.Status.Allocation == nil {
		return err
	}
	return cluster.SetStatus(ctx, types.NamespacedName{Namespace: result.Object.Namespace, Name: result.Object.Name}, claim.Status)
}

// claimsOf returns the claims that were stored for the result.
func claimsOf(result *sim.Result) []types.NamespacedName {
	var out []types.NamespacedName
	if result.Object.Kind == "ResourceClaim" && result.Allowed {
		out = append(out, types.NamespacedName{Namespace: result.Object.Namespace, Name: result.Object.Name})
	}
	for i := range result.Made {
		out = append(out, claimsOf(&result.Made[i])...)
	}
	return out
}

// allocate allocates what is pending and notes it on the items that the claims come from.
func allocate(ctx context.Context, cluster *sim.Cluster, items map[types.NamespacedName]int, r *report.Report) error {
	done, err := cluster.Allocate(ctx)
	if err != nil {
		return err
	}
	for _, key := range done.Allocated {
		i, ok := items[key]
		if !ok {
			continue
		}
		if r.Items[i].Allocated == nil {
			yes := true
			r.Items[i].Allocated = &yes
		}
		if claim := cluster.Claim(key); claim != nil && claim.Status.Allocation != nil {
			r.Items[i].Devices = append(r.Items[i].Devices, devicesText(claim.Status.Allocation.Devices.Results)...)
		}
	}
	for _, pending := range done.Pending {
		if i, ok := items[pending.Claim]; ok {
			no := false
			r.Items[i].Allocated, r.Items[i].Pending = &no, pending.Why
		}
	}
	return nil
}

// at names the place of the object that the error is about.
func at(d *input.Document, err error) error {
	return &input.Error{File: d.File, Line: d.Line, Err: err}
}
