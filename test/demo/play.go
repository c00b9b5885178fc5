package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"text/tabwriter"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// play plays all steps. After a fatal error the rest is not played.
func (p *player) play() {
	for _, step := range []func(){
		p.cluster, p.migClaim, p.firstAvailable, p.allChips, p.denial, p.otherProject,
		p.deleteThenCreate, p.oldVersion, p.badInput, p.projections,
	} {
		if step(); p.fatal != nil {
			return
		}
	}
	p.table()
}

func (p *player) cluster() {
	p.title("A cluster with MIG, whole GPU and TPU nodes; one quota over the two projects of team a")
	for _, f := range []string{"cluster/classes.yaml", "cluster/node-mig.yaml", "cluster/nodes-gpu.yaml", "cluster/nodes-tpu.yaml",
		"cluster/projects.yaml", "quotas/team-a.yaml"} {
		p.apply(f)
	}
	p.check("GPUs used", "0", p.used(gpuKey, "0"))
	limit := p.ledger().Status.Hard[gpuKey]
	p.check("limit in the DeviceLedger", "3", limit.String())
}

func (p *player) migClaim() {
	p.title("A MIG partition: admitted, allocated from the shared counters of the card, counted")
	p.check("answer", admitted, p.create(p.load("claims/mig-partition.yaml"), "-f examples/claims/mig-partition.yaml"))
	p.check("devices", "mig-1/gpu-0-mig-1g5gb-19-0", p.devices("team-a-serve", "inference"))
	p.check("MIG partitions used", "1", p.used(migKey, "1"))
}

func (p *player) firstAvailable() {
	p.title("One 80 GB GPU, else two of 40 GB: charged as two, trued down to what was allocated")
	p.check("answer", admitted, p.create(p.load("claims/one-gpu.yaml"), "-f examples/claims/one-gpu.yaml"))
	p.check("devices", "gpu-1/gpu-0", p.devices("team-a-train", "finetune"))
	p.check("GPUs used", "1", p.used(gpuKey, "1"))
	most := p.mostCharged(func() {
		p.check("answer", admitted, p.create(p.load("claims/first-available.yaml"), "-f examples/claims/first-available.yaml"))
		p.check("devices", "gpu-1/gpu-1", p.devices("team-a-train", "pretrain"))
		p.check("GPUs used after allocation", "2", p.used(gpuKey, "2"))
	})
	p.check("GPUs charged at admission, with finetune's", "3", most)
}

func (p *player) allChips() {
	p.title("All chips of a TPU host: charged as the largest host, 4")
	p.check("answer", admitted, p.create(p.load("claims/all-tpus.yaml"), "-f examples/claims/all-tpus.yaml"))
	p.check("TPU chips used", "4", p.used(tpuKey, "4"))
	p.check("devices", "tpu-1/accel0 tpu-1/accel1 tpu-1/accel2 tpu-1/accel3", p.devices("team-a-train", "tpu-host"))
}

func (p *player) denial() {
	p.title("The same claim again in the other project: denied, with the reason")
	u := named(p.load("claims/all-tpus.yaml"), "team-a-serve", "tpu-host")
	got := p.create(u, "-n team-a-serve -f examples/claims/all-tpus.yaml")
	want := fmt.Sprintf("exceeded quota: team-a, requested: %s=4, used: %s=4, limited: %s=4", tpuKey, tpuKey, tpuKey)
	p.check("answer contains", want, extract(got, want))
	p.check("status", string(metav1.StatusReasonForbidden), string(p.reason))
}

func (p *player) otherProject() {
	p.title("And in the sandbox, which the quota does not cover: admitted")
	u := named(p.load("claims/all-tpus.yaml"), "sandbox", "tpu-host")
	p.check("answer", admitted, p.create(u, "-n sandbox -f examples/claims/all-tpus.yaml"))
	p.check("devices", "tpu-2/accel0 tpu-2/accel1 tpu-2/accel2 tpu-2/accel3", p.devices("sandbox", "tpu-host"))
	p.check("TPU chips used by team a", "4", p.used(tpuKey, "4"))
}

func (p *player) deleteThenCreate() {
	p.title("At the limit: a fourth GPU is denied; delete one claim and create at once works")
	gpu := p.load("claims/one-gpu.yaml")
	p.check("answer", admitted, p.create(named(gpu, "team-a-serve", "batch-1"), "-n team-a-serve batch-1"))
	p.check("GPUs used", "3", p.used(gpuKey, "3"))
	got := p.create(named(gpu, "team-a-serve", "batch-2"), "-n team-a-serve batch-2")
	want := fmt.Sprintf("requested: %s=1, used: %s=3, limited: %s=3", gpuKey, gpuKey, gpuKey)
	p.check("answer contains", want, extract(got, want))
	p.say("$ kubectl delete -n team-a-train resourceclaim finetune")
	if err := p.cp.Client.Delete(p.ctx, named(gpu, "team-a-train", "finetune")); err != nil {
		p.stop(err)
		return
	}
	p.gone("team-a-train", "finetune")
	p.check("answer", admitted, p.create(named(gpu, "team-a-serve", "batch-2"), "-n team-a-serve batch-2"))
	p.check("GPUs used", "3", p.used(gpuKey, "3"))
}

// gone waits until a claim is deleted: an allocated one is released first.
func (p *player) gone(namespace, name string) {
	left := "still there"
	p.until(func(ctx context.Context) (bool, error) {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("resource.k8s.io/v1")
		u.SetKind("ResourceClaim")
		err := p.cp.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, u)
		if client.IgnoreNotFound(err) == nil && err != nil {
			left = "deleted"
			return true, nil
		}
		return false, err
	})
	p.check("claim "+name, "deleted", left)
}

func (p *player) oldVersion() {
	p.title("A v1beta1 client: charged the same")
	p.check("answer", admitted, p.create(p.load("claims/v1beta1.yaml"), "-f examples/claims/v1beta1.yaml"))
	p.check("devices", "mig-1/gpu-0-mig-2g10gb-14-2", p.devices("team-a-serve", "old-client"))
	p.check("MIG partitions used", "2", p.used(migKey, "2"))
}

func (p *player) badInput() {
	p.title("A quota with a negative limit: a clear error that names the field")
	u := p.load("quotas/team-a.yaml")
	u.SetName("broken")
	if err := unstructured.SetNestedField(u.Object, "-1", "spec", "quota", "hard", string(gpuKey)); err != nil {
		p.stop(err)
		return
	}
	got := p.create(u, "broken quota")
	p.check("answer contains", "spec.quota.hard["+string(gpuKey)+"]", extract(got, "spec.quota.hard["+string(gpuKey)+"]"))
}

func (p *player) projections() {
	p.title("Every project sees the quota, its total and only its own share")
	for _, want := range []struct{ ns, gpus, migs, tpus string }{
		{"team-a-serve", "2", "2", "0"},
		{"team-a-train", "1", "0", "4"},
	} {
		var acrq quotav1.AppliedClusterResourceQuota
		got := ""
		expected := fmt.Sprintf("gpus %s of 3, mig %s, tpu %s", want.gpus, want.migs, want.tpus)
		p.until(func(ctx context.Context) (bool, error) {
			err := p.cp.Client.Get(ctx, client.ObjectKey{Namespace: want.ns, Name: "team-a"}, &acrq)
			got = share(&acrq, want.ns)
			return got == expected, err
		})
		p.check("AppliedClusterResourceQuota in "+want.ns, expected, got)
	}
	var list quotav1.AppliedClusterResourceQuotaList
	if err := p.cp.Client.List(p.ctx, &list, client.InNamespace("sandbox")); err != nil {
		p.stop(err)
		return
	}
	p.check("applied quotas in sandbox", "0", fmt.Sprint(len(list.Items)))
}

// share tells what a project is shown; other projects' entries are counted as an error.
func share(a *quotav1.AppliedClusterResourceQuota, namespace string) string {
	if len(a.Status.Namespaces) != 1 || a.Status.Namespaces[0].Namespace != namespace {
		return fmt.Sprintf("%d namespaces", len(a.Status.Namespaces))
	}
	total, own := a.Status.Total.Used, a.Status.Namespaces[0].Status.Used
	text := func(l corev1.ResourceList, k corev1.ResourceName) string { q := l[k]; return q.String() }
	return fmt.Sprintf("gpus %s of %s, mig %s, tpu %s", text(own, gpuKey), text(total, gpuKey), text(own, migKey), text(own, tpuKey))
}

// extract returns want if the text contains it, else the text.
func extract(text, want string) string {
	if strings.Contains(text, want) {
		return want
	}
	return text
}

// table prints the quota's use per project and key.
func (p *player) table() {
	var crq quotav1.ClusterResourceQuota
	if err := p.cp.Client.Get(p.ctx, client.ObjectKey{Name: "team-a"}, &crq); err != nil {
		p.stop(err)
		return
	}
	fmt.Fprintln(p.out, "\nUsage of quota team-a:")
	w := tabwriter.NewWriter(p.out, 0, 4, 2, ' ', 0)
	header := []string{"  KEY"}
	for _, n := range crq.Status.Namespaces {
		header = append(header, strings.ToUpper(n.Namespace))
	}
	fmt.Fprintln(w, strings.Join(append(header, "TOTAL", "LIMIT"), "\t"))
	var keys []string
	for k := range crq.Spec.Quota.Hard {
		keys = append(keys, string(k))
	}
	sort.Strings(keys)
	for _, k := range keys {
		row := []string{"  " + k}
		sum := resource.Quantity{}
		for _, n := range crq.Status.Namespaces {
			q := n.Status.Used[corev1.ResourceName(k)]
			sum.Add(q)
			row = append(row, q.String())
		}
		total, hard := crq.Status.Total.Used[corev1.ResourceName(k)], crq.Spec.Quota.Hard[corev1.ResourceName(k)]
		fmt.Fprintln(w, strings.Join(append(row, total.String(), hard.String()), "\t"))
		if sum.Cmp(total) != 0 {
			p.problems = append(p.problems, fmt.Sprintf("usage table, %s: the projects sum up to %s, the total is %s", k, sum.String(), total.String()))
		}
	}
	if err := w.Flush(); err != nil {
		p.stop(err)
	}
}
