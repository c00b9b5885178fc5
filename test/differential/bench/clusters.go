package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	d "github.com/devicequota/devicequota/test/differential"
)

// Device selectors as users write them.
const (
	bigEnough = `device.capacity["` + d.Driver + `"].memory.compareTo(quantity("40Gi")) >= 0`
	noSuch    = `device.attributes["` + d.Driver + `"].model == "none"`
	isGPU     = `device.attributes["` + d.Driver + `"].kind == "gpu"`
	isNIC     = `device.attributes["` + d.Driver + `"].kind == "nic"`
)

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func ptr[T any](v T) *T { return &v }

// gpu is a device with eleven attributes and one capacity, one attribute unique.
func gpu(node, i int, kind string) resourceapi.Device {
	dev := d.Dev(fmt.Sprintf("%s-%d", kind, i), "kind", kind, "model", "H100", "index", i, "numa", i/4, "uuid", fmt.Sprintf("%s-%05d-%d", kind, node, i),
		"brand", "example", "architecture", "hopper", "pcieRoot", fmt.Sprintf("pci0000:%02d", i/2), "type", kind, "minor", i)
	dev.Attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: ptr("580.1.2")}
	dev.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}}
	return dev
}

// gpus is a cluster with 8 GPUs per node, every other one of every other node in use.
func gpus(nodes int) *d.Case {
	c := empty()
	for n := range nodes {
		c.AddNode(nodeName(n))
		var devices []resourceapi.Device
		for i := range 8 {
			devices = append(devices, gpu(n, i, "gpu"))
		}
		c.AddPool(nodeName(n), nodeName(n), devices...)
		for i := 0; n%2 == 0 && i < 8; i += 2 {
			c.Hold(nodeName(n), fmt.Sprintf("gpu-%d", i), nil)
		}
	}
	return c
}

// empty is a cluster without nodes.
func empty() *d.Case {
	c := d.NewCase(d.Default137())
	c.Nodes = nil
	return c
}

// withNICs adds 8 NICs to every node; a NIC is at the same PCIe root as two GPUs.
func withNICs(nodes int) *d.Case {
	c := empty()
	for n := range nodes {
		c.AddNode(nodeName(n))
		var devices []resourceapi.Device
		for i := range 8 {
			devices = append(devices, gpu(n, i, "gpu"), gpu(n, i, "nic"))
		}
		c.AddPool(nodeName(n), nodeName(n), devices...)
	}
	return c
}

// profiles of a partitionable GPU: name, slices, how many places.
var profiles = []struct {
	name          string
	slices, count int
}{{"1g", 1, 7}, {"2g", 2, 3}, {"3g", 3, 2}, {"7g", 7, 1}}

// mig is a cluster with 8 partitionable GPUs per node, the first one in use.
func mig(nodes int) *d.Case {
	c := empty()
	for n := range nodes {
		c.AddNode(nodeName(n))
		var devices []resourceapi.Device
		var sets []resourceapi.CounterSet
		for g := range 8 {
			set := fmt.Sprintf("gpu-%d", g)
			sets = append(sets, d.Set(set, "slices", 7))
			for _, p := range profiles {
				for i := range p.count {
					dev := d.Dev(fmt.Sprintf("gpu-%d-%s-%d", g, p.name, i), "profile", p.name, "gpu", g)
					devices = append(devices, d.Consuming(dev, set, "slices", int64(p.slices)))
				}
			}
		}
		c.AddPool(nodeName(n), nodeName(n), devices...)
		c.AddCounters(nodeName(n), nodeName(n), sets...)
		c.Hold(nodeName(n), "gpu-0-7g-0", nil)
	}
	return c
}

func profile(name string) string {
	return fmt.Sprintf("device.attributes[%q].profile == %q", d.Driver, name)
}

// shareable is a cluster with 8 NICs per node that are shared. The first NIC of each node is
// unused, the shares in use are spread over the others.
func shareable(nodes, shares int) *d.Case {
	c := empty()
	for n := range nodes {
		c.AddNode(nodeName(n))
		var devices []resourceapi.Device
		for i := range 8 {
			dev := gpu(n, i, "nic")
			dev.AllowMultipleAllocations = ptr(true)
			dev.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"bandwidth": {
				Value:         resource.MustParse("400G"),
				RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: ptr(resource.MustParse("1G")), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr(resource.MustParse("1G")), Step: ptr(resource.MustParse("1G"))}},
			}}
			devices = append(devices, dev)
		}
		c.AddPool(nodeName(n), nodeName(n), devices...)
	}
	for s := range shares {
		c.Hold(nodeName(s%nodes), fmt.Sprintf("nic-%d", 1+s/nodes%7), map[resourceapi.QualifiedName]resource.Quantity{"bandwidth": resource.MustParse("1G")})
	}
	return c
}

// spanning is one pool with a slice of 8 devices on each node.
func spanning(nodes int) *d.Case {
	c := empty()
	for n := range nodes {
		c.AddNode(nodeName(n))
		var devices []resourceapi.Device
		for i := range 8 {
			dev := gpu(n, i, "gpu")
			dev.Name = fmt.Sprintf("%s-gpu-%d", nodeName(n), i)
			devices = append(devices, dev)
		}
		s := d.NewSlice(d.Driver, nodeName(n), "fabric", devices...)
		s.Spec.Pool.ResourceSliceCount = int64(nodes)
		c.Slices = append(c.Slices, s)
	}
	return c
}

// some returns n nodes, evenly spread.
func some(c *d.Case, n int) []*corev1.Node {
	var out []*corev1.Node
	for i := range n {
		out = append(out, c.Nodes[i*len(c.Nodes)/n])
	}
	return out
}
