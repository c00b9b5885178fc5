package cli

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/input"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/live"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/sim"
)

// addLive adds --live, and the flags that say which cluster is meant.
func (c *checkOptions) addLive(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.live, "live", false, "take quotas, devices and usage from the cluster of the kubeconfig; nothing is written")
	if f.Lookup("namespace") == nil {
		f.StringVarP(&c.namespace, "namespace", "n", "", "namespace of objects that name none")
	}
	if f.Lookup("as") == nil {
		f.StringVar(&c.user, "as", "", "user to read the cluster as")
		f.StringSliceVar(&c.groups, "as-group", nil, "groups of that user")
	}
	c.config = genericclioptions.NewConfigFlags(true)
	// These are the command's own: they mean the same without a cluster.
	c.config.Namespace, c.config.Impersonate, c.config.ImpersonateGroup = nil, nil, nil
	c.config.AddFlags(f)
}

// restConfig is the configuration of the user, or of whom he asks as.
func (c *checkOptions) restConfig() (*rest.Config, error) {
	config, err := c.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	if c.user != "" {
		config.Impersonate.UserName, config.Impersonate.Groups = c.user, c.groups
	}
	return config, nil
}

// setDefaultNamespace takes the namespace of the kubeconfig, or "default".
func (c *checkOptions) setDefaultNamespace() error {
	if c.namespace != "" {
		return nil
	}
	c.namespace = "default"
	if !c.live {
		return nil
	}
	n, _, err := c.config.ToRawKubeConfigLoader().Namespace()
	if err == nil && n != "" {
		c.namespace = n
	}
	return err
}

// loadLive makes a cluster of the one that is asked, with the documents in it that make one,
// and returns the others.
func (c *checkOptions) loadLive(ctx context.Context, so sim.Options, documents []input.Document, r *report.Report) (*sim.Cluster, []input.Document, error) {
	cluster, s, err := c.connect(ctx, so)
	if err != nil {
		return nil, nil, err
	}
	for _, note := range s.Notes {
		c.say("note: %s", note)
	}
	asked, err := c.build(ctx, cluster, documents, r)
	adopt(cluster, asked, s.Objects)
	return cluster, asked, err
}

// connect reads the cluster and makes one in memory of it.
func (c *checkOptions) connect(ctx context.Context, so sim.Options) (*sim.Cluster, *live.Snapshot, error) {
	config, err := c.restConfig()
	if err != nil {
		return nil, nil, err
	}
	reader, err := live.New(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	c.progress.show("reading the cluster")
	if c.platform == "" {
		platform, err := reader.Platform(ctx)
		if err != nil {
			return nil, nil, err
		}
		so.OpenShift = platform == live.OpenShift
	}
	s, err := reader.Load(ctx, c.namespace)
	if err != nil {
		return nil, nil, err
	}
	cluster, err := sim.New(so)
	if err != nil {
		return nil, nil, err
	}
	return cluster, s, cluster.Apply(ctx, s.Objects...)
}
