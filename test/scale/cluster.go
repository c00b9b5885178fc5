package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	quotav1 "github.com/openshift/api/quota/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The keys that every quota limits, far above what is used.
const (
	claimsKey = corev1.ResourceName("count/resourceclaims.resource.k8s.io")
	gpuKey    = corev1.ResourceName("gpu.nvidia.com.deviceclass.devicequota.io/devices")
	memoryKey = corev1.ResourceName("gpu.nvidia.com.deviceclass.devicequota.io/capacity.memory")
)

const (
	gpusPerNode = 8
	// everybody is the quota that covers all projects, where each project has two.
	everybody = "everybody"
	// allocatedPart of 4 claims are allocated.
	allocatedPart = 3
	fillers       = 48
)

// cluster is what is measured on.
type cluster struct {
	// Size as a part of the full cluster.
	Size float64
	// Twice tells that each project has two quotas: one of those that cover ten projects, and
	// the one that covers all.
	Twice                           bool
	Nodes, Projects, Quotas, Claims int
}

func newCluster(size float64, twice bool) cluster {
	of := func(n int) int { return max(2, int(float64(n)*size)) }
	return cluster{Size: size, Twice: twice, Nodes: of(5000), Projects: of(1000), Quotas: of(100), Claims: of(20000)}
}

// String is how the cluster is asked for.
func (c cluster) String() string {
	if c.Twice {
		return fmt.Sprintf("%vx2", c.Size)
	}
	return fmt.Sprint(c.Size)
}

// parseCluster reads what String wrote.
func parseCluster(text string) (cluster, error) {
	size, twice := strings.CutSuffix(text, "x2")
	n, err := strconv.ParseFloat(size, 64)
	if err != nil || n <= 0 {
		return cluster{}, fmt.Errorf("size %q: want a number above 0, with x2 behind it for two quotas per project", text)
	}
	return newCluster(n, twice), nil
}

// project returns the name of the i-th project.
func (c cluster) project(i int) string { return fmt.Sprintf("project-%04d", i%c.Projects) }

// teams is how many quotas cover few projects.
func (c cluster) teams() int {
	if c.Twice {
		return c.Quotas - 1
	}
	return c.Quotas
}

// team returns the name of the quota that the i-th project shares with few others.
func (c cluster) team(i int) string { return fmt.Sprintf("team-%02d", i%c.Projects%c.teams()) }

// quotas returns the names of the quotas that cover the i-th project.
func (c cluster) quotas(i int) []string {
	if c.Twice {
		return []string{everybody, c.team(i)}
	}
	return []string{c.team(i)}
}

// each calls f for 0..n-1, many at a time, and returns the first error.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range fillers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// fill creates everything that exists before devicequota is installed. Only a webhook would
// keep a claim away, so there is none yet.
func (s *session) fill(ctx context.Context) error {
	c, cl := s.c, s.cp.Client
	if err := cl.Create(ctx, deviceClass()); err != nil {
		return err
	}
	for _, step := range []struct {
		n int
		f func(ctx context.Context, i int) error
	}{
		{c.Projects, func(ctx context.Context, i int) error { return cl.Create(ctx, c.namespace(i)) }},
		{c.Nodes, func(ctx context.Context, i int) error { return cl.Create(ctx, node(i)) }},
		{c.Nodes, func(ctx context.Context, i int) error { return cl.Create(ctx, slice(i)) }},
		{c.Quotas, func(ctx context.Context, i int) error { return cl.Create(ctx, c.clusterResourceQuota(i)) }},
		{c.Claims, func(ctx context.Context, i int) error { return fillClaim(ctx, cl, c, i) }},
	} {
		if err := each(ctx, step.n, step.f); err != nil {
			return err
		}
	}
	return nil
}

// fillClaim creates the i-th claim as the claim controller does for a pod, and allocates most of them.
func fillClaim(ctx context.Context, cl client.Client, c cluster, i int) error {
	pod := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
	claim := newClaim(c.project(i), fmt.Sprintf("worker-%06d-gpu", i))
	claim.Annotations = map[string]string{"resource.kubernetes.io/pod-claim-name": "gpu"}
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: fmt.Sprintf("worker-%06d", i), UID: pod, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
	if err := cl.Create(ctx, claim); err != nil {
		return err
	}
	if i%4 >= allocatedPart || i >= c.Nodes*gpusPerNode {
		return nil
	}
	n := nodeName(i / gpusPerNode)
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Request: "gpu", Driver: "gpu.nvidia.com", Pool: n, Device: fmt.Sprintf("gpu-%d", i%gpusPerNode)}}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{n}}}}}},
	}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: claim.OwnerReferences[0].Name, UID: pod}}
	return cl.Status().Update(ctx, claim)
}

// newClaim asks for one GPU with at least 40Gi of memory.
func newClaim(namespace, name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu",
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`}}}}}}}}}
}

func (c cluster) namespace(i int) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.project(i), Labels: map[string]string{"team": c.team(i), "tenants": everybody}}}
}

func (c cluster) clusterResourceQuota(i int) *quotav1.ClusterResourceQuota {
	q := &quotav1.ClusterResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: everybody}}
	labels := map[string]string{"tenants": everybody}
	if i < c.teams() {
		q.Name = c.team(i)
		labels = map[string]string{"team": q.Name}
	}
	q.Spec.Selector.LabelSelector = &metav1.LabelSelector{MatchLabels: labels}
	q.Spec.Quota.Hard = corev1.ResourceList{
		claimsKey: resource.MustParse("1000000"), gpuKey: resource.MustParse("1000000"), memoryKey: resource.MustParse("1Ei")}
	return q
}

func deviceClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"},
		Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: ptr.To("nvidia.com/gpu"), Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'`}}}}}
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d.example.com", i) }

// node has the labels that a cloud's nodes have.
func node(i int) *corev1.Node {
	zone := fmt.Sprintf("eu-central-1%c", 'a'+i%3)
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
		corev1.LabelHostname: nodeName(i), corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", "beta.kubernetes.io/arch": "amd64",
		"beta.kubernetes.io/os": "linux", corev1.LabelInstanceTypeStable: "p4de.24xlarge", corev1.LabelTopologyRegion: "eu-central-1",
		corev1.LabelTopologyZone: zone, "node.kubernetes.io/pool": fmt.Sprintf("gpu-%d", i%10), "nvidia.com/gpu.present": "true"}}}
}

// slice publishes a node's GPUs with the attributes that NVIDIA's driver publishes.
func slice(i int) *resourceapi.ResourceSlice {
	name := nodeName(i)
	out := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name + "-gpu.nvidia.com"},
		Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}}}
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	number := func(n int) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{IntValue: ptr.To(int64(n))}
	}
	for d := range gpusPerNode {
		out.Spec.Devices = append(out.Spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", d),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": text("gpu"), "uuid": text(fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", i, d)), "productName": text("NVIDIA A100-SXM4-80GB"),
				"architecture": text("Ampere"), "brand": text("Nvidia"), "index": number(d), "minor": number(d),
				"cudaComputeCapability": version("8.0.0"), "driverVersion": version("580.126.20"), "cudaDriverVersion": version("13.0.0"),
				"resource.kubernetes.io/pcieRoot": text(fmt.Sprintf("pci0000:%02x", d)),
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	return out
}
