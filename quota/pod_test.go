package quota_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

func TestPodsCostWhatTheSchedulerWillClaim(t *testing.T) {
	t.Parallel()
	const gpu, mig = "nvidia.com/gpu", "deviceclass.resource.kubernetes.io/mig.nvidia.com"
	c := builders.Container
	for name, test := range map[string]struct {
		inits, containers []corev1.Container
		want              map[string]int64 // request -> count
	}{
		"none":                                   {nil, []corev1.Container{c("a", "cpu", "1", "memory", "1Gi")}, nil},
		"a resource that no class serves":        {nil, []corev1.Container{c("a", "example.com/plugin", "1")}, nil},
		"one":                                    {nil, []corev1.Container{c("a", "cpu", "1", gpu, "2")}, map[string]int64{"container-0-request-1": 2}},
		"two containers are added":               {nil, []corev1.Container{c("a", gpu, "2"), c("b", gpu, "3")}, map[string]int64{"container-0-request-0": 2, "container-1-request-0": 3}},
		"an init container uses theirs":          {[]corev1.Container{c("i", gpu, "2")}, []corev1.Container{c("a", gpu, "3")}, map[string]int64{"container-1-request-0": 3}},
		"and more where it needs more":           {[]corev1.Container{c("i", gpu, "5")}, []corev1.Container{c("a", gpu, "3")}, map[string]int64{"container-0-request-0": 2, "container-1-request-0": 3}},
		"only the largest init container counts": {[]corev1.Container{c("i", gpu, "5"), c("j", gpu, "7"), c("k", gpu, "7")}, []corev1.Container{c("a", gpu, "3")}, map[string]int64{"container-1-request-0": 4, "container-3-request-0": 3}},
		"a sidecar stays": {[]corev1.Container{builders.Restartable(c("s", gpu, "1"))}, []corev1.Container{c("a", gpu, "1")},
			map[string]int64{"container-0-request-0": 1, "container-1-request-0": 1}},
		"init 1, sidecar 1, init 2, regular": { // the init container after the sidecar cannot use its device
			[]corev1.Container{c("i", gpu, "1"), builders.Restartable(c("s", gpu, "1")), c("j", gpu, "2")}, []corev1.Container{c("a", "cpu", "1")},
			map[string]int64{"container-1-request-0": 1, "container-2-request-0": 2}},
		"an init container before a sidecar uses its device": {
			[]corev1.Container{c("i", gpu, "2"), builders.Restartable(c("s", gpu, "1"))}, []corev1.Container{c("a", gpu, "1")},
			map[string]int64{"container-1-request-0": 1, "container-2-request-0": 1}},
		"init of one resource, container of another": {[]corev1.Container{c("i", gpu, "5")}, []corev1.Container{c("a", mig, "5")},
			map[string]int64{"container-0-request-0": 5, "container-1-request-0": 5}},
		"two resources": {nil, []corev1.Container{c("a", gpu, "1", mig, "2", "cpu", "1")}, map[string]int64{"container-0-request-1": 2, "container-0-request-2": 1}},
		"limits are requests where these are not set": {nil, []corev1.Container{onlyLimits(c("a", gpu, "2", mig, "1"))}, map[string]int64{"container-0-request-0": 1, "container-0-request-1": 2}},
		"zero": {nil, []corev1.Container{c("a", gpu, "0")}, nil},
		"huge counts saturate": {[]corev1.Container{c("i", gpu, "5")}, []corev1.Container{c("a", gpu, "9223372036854775807"), c("b", gpu, "9223372036854775807")},
			map[string]int64{"container-1-request-0": 9223372036854775807, "container-2-request-0": 9223372036854775807}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := builders.Pod("a", "p", test.containers...)
			pod.Spec.InitContainers = test.inits
			charger := quota.NewCharger(fleet())
			var got map[string]int64
			if spec := charger.PodClaim(pod); spec != nil {
				got = map[string]int64{}
				for _, r := range spec.Devices.Requests {
					got[r.Name] = r.Exactly.Count
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			q := parse(t, unlimited("count/resourceclaims.resource.k8s.io"))
			charge, err := charger.Pod(pod, q)
			if err != nil {
				t.Fatal(err)
			}
			want := builders.List()
			if test.want != nil {
				want = builders.List("count/resourceclaims.resource.k8s.io", "1")
			}
			same(t, "claim objects", want, charge.Amounts)
		})
	}
}

func onlyLimits(c corev1.Container) corev1.Container {
	c.Resources.Requests = nil
	return c
}

func TestTerminalPodsCostNothing(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices))
	charger := quota.NewCharger(fleet())
	for phase, want := range map[corev1.PodPhase]corev1.ResourceList{
		corev1.PodPending: builders.List(gpuDevices, "2"), corev1.PodRunning: builders.List(gpuDevices, "2"), corev1.PodUnknown: builders.List(gpuDevices, "2"), "": builders.List(gpuDevices, "2"),
		corev1.PodSucceeded: nil, corev1.PodFailed: nil,
	} {
		pod := builders.Pod("a", "p", builders.Container("c", "nvidia.com/gpu", "2"))
		pod.Status.Phase = phase
		charge, err := charger.Pod(pod, q)
		if err != nil {
			t.Fatal(err)
		}
		same(t, string(phase), want, charge.Amounts)
		counted, computed := charger.CountPod(pod, q, builders.List(gpuDevices, "7"))
		same(t, "counted "+string(phase), want, counted)
		if !computed {
			t.Errorf("%s: not computed", phase)
		}
	}
}

func TestPodsWhoseClassIsGoneCountAsRemembered(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices))
	pod := builders.Pod("a", "p", builders.Container("c", "nvidia.com/gpu", "2"))
	got, computed := quota.NewCharger(newInventory()).CountPod(pod, q, builders.List(gpuDevices, "2"))
	same(t, "remembered", builders.List(gpuDevices, "2"), got)
	if computed {
		t.Error("computed without a class")
	}
	got, computed = quota.NewCharger(newInventory()).CountPod(pod, q, nil)
	if len(got) > 0 || computed {
		t.Errorf("nothing remembered: %v, %v", got, computed)
	}
}

func TestThePodAndItsClaimCostTheSame(t *testing.T) {
	t.Parallel()
	q := parse(t, unlimited(gpuDevices, gpuMemory, "requests.nvidia.com/gpu", "count/resourceclaims.resource.k8s.io"))
	pod := builders.Pod("a", "p", builders.Container("c", "nvidia.com/gpu", "2"))
	charger := quota.NewCharger(fleet())
	atPod, err := charger.Pod(pod, q)
	if err != nil {
		t.Fatal(err)
	}
	claim := &resourceapi.ResourceClaim{Spec: *charger.PodClaim(pod)}
	atClaim, _ := charger.Claim(claim, q, nil)
	same(t, "claim", atPod.Amounts, atClaim)
}
