package quota_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota"
)

func TestKeysAreReadAndPrinted(t *testing.T) {
	t.Parallel()
	for name, want := range map[corev1.ResourceName]quota.Key{
		"count/resourceclaims.resource.k8s.io": {Subject: quota.SubjectClaims, Measure: quota.MeasureObjects, Platform: true},
		"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": {
			Subject: quota.SubjectClass, Class: "gpu.nvidia.com", Measure: quota.MeasureDevices, Platform: true},
		"requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com": {
			Subject: quota.SubjectExtendedResource, ExtendedResource: "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
			Measure: quota.MeasureDevices, Platform: true},
		"requests.nvidia.com/gpu": {
			Subject: quota.SubjectExtendedResource, ExtendedResource: "nvidia.com/gpu", Measure: quota.MeasureDevices, Platform: true},
		"gpu.nvidia.com.deviceclass.devicequota.io/devices": {
			Subject: quota.SubjectClass, Class: "gpu.nvidia.com", Measure: quota.MeasureDevices},
		"gpu.nvidia.com.deviceclass.devicequota.io/capacity.memory": {
			Subject: quota.SubjectClass, Class: "gpu.nvidia.com", Measure: quota.MeasureCapacity, Of: "memory"},
		"g.deviceclass.devicequota.io/capacity.gpu_memory": { // an id with an underscore, no domain
			Subject: quota.SubjectClass, Class: "g", Measure: quota.MeasureCapacity, Of: "gpu_memory"},
		"dra.cpu.deviceclass.devicequota.io/capacity.dra.cpu_cpu": {
			Subject: quota.SubjectClass, Class: "dra.cpu", Measure: quota.MeasureCapacity, Of: "dra.cpu/cpu"},
		"g.deviceclass.devicequota.io/capacity.my-domain_a_b": {
			Subject: quota.SubjectClass, Class: "g", Measure: quota.MeasureCapacity, Of: "my-domain/a_b"},
		"mig.nvidia.com.deviceclass.devicequota.io/counter.memory-slice-0": {
			Subject: quota.SubjectClass, Class: "mig.nvidia.com", Measure: quota.MeasureCounter, Of: "memory-slice-0"},
		"h100.selector.devicequota.io/devices": {
			Subject: quota.SubjectSelector, Selector: "h100", Measure: quota.MeasureDevices},
		"h100.selector.devicequota.io/capacity.memory": {
			Subject: quota.SubjectSelector, Selector: "h100", Measure: quota.MeasureCapacity, Of: "memory"},
		"h100.selector.devicequota.io/counter.memory": {
			Subject: quota.SubjectSelector, Selector: "h100", Measure: quota.MeasureCounter, Of: "memory"},
		"requests.x.deviceclass.devicequota.io/devices": { // a class may be called requests.x
			Subject: quota.SubjectClass, Class: "requests.x", Measure: quota.MeasureDevices},
	} {
		want.Name = name
		got, ours, err := quota.ParseKey(name)
		if err != nil || !ours {
			t.Errorf("%s: ours=%v, %v", name, ours, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got.String() != string(name) {
			t.Errorf("%s printed as %s", name, got)
		}
	}
}

func TestOtherKeysAreNotOurs(t *testing.T) {
	t.Parallel()
	for _, name := range []corev1.ResourceName{
		"pods", "cpu", "requests.cpu", "requests.memory", "requests.storage", "limits.memory", "count/pods", "count/deployments.apps",
		"requests.kubernetes.io/x", "gold.storageclass.storage.k8s.io/requests.storage", "requests.a.storageclass.storage.k8s.io/requests.storage",
		"example.com/widget", "count/widgets.example.com", "mydevicequota.io/devices", "",
	} {
		if _, ours, err := quota.ParseKey(name); ours || err != nil {
			t.Errorf("%q: ours=%v, %v", name, ours, err)
		}
	}
}

func TestMalformedKeysAreErrors(t *testing.T) {
	t.Parallel()
	for _, name := range []corev1.ResourceName{
		"gpu.deviceclass.devicequota.io/device",
		"gpu.deviceclass.devicequota.io/",
		"gpu.deviceclass.devicequota.io",
		"gpu.deviceclass.devicequota.io/capacity.",
		"gpu.deviceclass.devicequota.io/capacity.a/b",
		"gpu.deviceclass.devicequota.io/capacity.a-b",
		"gpu.deviceclass.devicequota.io/capacity.example.com_",
		"gpu.deviceclass.devicequota.io/capacity.Example.com_memory",
		"gpu.deviceclass.devicequota.io/capacity.a2345678901234567890123456789012345",
		"gpu.deviceclass.devicequota.io/capacity.example.com_a23456789012345678901234567890123",
		"gpu.deviceclass.devicequota.io/counter.",
		"gpu.deviceclass.devicequota.io/counter.example.com_memory",
		"gpu.deviceclass.devicequota.io/counter.Memory",
		"GPU.deviceclass.devicequota.io/devices",
		".deviceclass.devicequota.io/devices",
		"deviceclass.devicequota.io/devices",
		"gpu.deviceclasses.devicequota.io/devices",
		".selector.devicequota.io/devices",
		"a23456789012345678901234567890123456789012345678901234567890.1234.selector.devicequota.io/devices",
		"devicequota.io/devices",
		".deviceclass.resource.k8s.io/devices",
		"GPU.deviceclass.resource.k8s.io/devices",
		"requests.deviceclass.resource.kubernetes.io/",
		"requests.deviceclass.resource.kubernetes.io/GPU",
		"requests.Nvidia.com/gpu",
		"requests.nvidia.com/",
	} {
		if key, ours, err := quota.ParseKey(name); err == nil || !ours {
			t.Errorf("%q: %+v, ours=%v, no error", name, key, ours)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{
		"gpu.deviceclass.devicequota.io/capacity.a.b_c", "x.selector.devicequota.io/counter.a", "requests.a.b/c",
		"count/resourceclaims.resource.k8s.io", "x.deviceclass.resource.k8s.io/devices", "requests.deviceclass.resource.kubernetes.io/x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, ours, err := quota.ParseKey(corev1.ResourceName(s))
		if err != nil || !ours {
			return
		}
		if key.String() != s {
			t.Fatalf("%q printed as %q", s, key)
		}
		again, ours, err := quota.ParseKey(corev1.ResourceName(key.String()))
		if err != nil || !ours || again != key {
			t.Fatalf("%q: %+v read back as %+v, %v", s, key, again, err)
		}
	})
}
