package differential

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// named is one bug of upstream's with the smallest input that shows it.
type named struct {
	name string
	bug  Bugs
	// build makes the input; node is the one that is asked, after those before it.
	build func() *Case
	node  int
	// upstream and ours are the answers: devices as "claim request=device ...", or the
	// beginning of the verdict, with a part of the error after a colon.
	upstream, ours string
}

func (n *named) check(t *testing.T, who, want string, a Answer) {
	t.Helper()
	got := string(a.Verdict)
	if a.Verdict == Fits {
		got = shortly(a.Results)
	}
	verdict, part, _ := strings.Cut(want, ": ")
	if got != verdict || part != "" && (a.Err == nil || !strings.Contains(a.Err.Error(), part)) {
		t.Errorf("%s: %v\nwant %s", who, a, want)
	}
}

// shortly lists requests and devices: "r=d0 s=d1 / r=d2" for two claims.
func shortly(results []resourceapi.AllocationResult) string {
	var claims []string
	for _, r := range results {
		var devices []string
		for _, d := range r.Devices.Results {
			devices = append(devices, d.Request+"="+d.Device)
		}
		claims = append(claims, strings.Join(devices, " "))
	}
	return strings.Join(claims, " / ")
}

// All that upstream misses, refuses or hands out wrongly, and what we do instead.
func TestKnownBugsOfUpstream(t *testing.T) {
	for _, n := range namedBugs() {
		t.Run(n.name, func(t *testing.T) {
			c := n.build()
			u, err := NewUpstream(c, upstreamBudget)
			if err != nil {
				t.Fatal(err)
			}
			o, err := NewOurs(c, 0)
			if err != nil {
				t.Fatal(err)
			}
			var theirs, mine Answer
			for _, node := range c.Nodes[:n.node+1] {
				theirs, mine = u.Allocate(node, c.Claims), o.Allocate(node, c.Claims)
			}
			n.check(t, "upstream", n.upstream, theirs)
			n.check(t, "ours", n.ours, mine)
			if mine.Verdict == Fits {
				if v := Check(c, c.Nodes[n.node], mine.Results); v != nil {
					t.Errorf("ours is not valid: %q", v)
				}
			}
			if bugs, known := Explain(c, c.Nodes[:n.node+1], theirs, explainBudget); !known || bugs != n.bug {
				t.Errorf("the difference is explained by %s (%v), want %s", bugs, known, n.bug)
			}
		})
	}
}

// kind is a device of a kind on a NUMA node.
func kind(name, kind string, numa int) resourceapi.Device {
	return Dev(name, "kind", kind, "numa", numa)
}

func namedBugs() []named {
	return slices.Concat(constraintBugs(), adminBugs(), poolBugs(), sliceBugs(), counterBugs())
}

func constraintBugs() []named {
	return []named{{
		name: "P1 count, All and matchAttribute: another device would do", bug: P1,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", kind("gpu0", "gpu", 0), kind("gpu1", "gpu", 1), kind("nic", "nic", 1)).
				AddClaim(Want("gpu", 1, isGPU), Want("nic", 0, isNIC)).Match(Driver + "/numa")
		},
		upstream: "error: a claim constraint would not be satisfied",
		ours:     "gpu=gpu1 nic=nic",
	}, {
		name: "P2 alternative with All violates a constraint: the next one would do", bug: P2,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", kind("gpu", "gpu", 0), kind("nic0", "nic", 0), kind("nic1", "nic", 1)).
				AddClaim(Want("gpu", 1, isGPU), FirstOf("nic", Want("", 0, isNIC), Want("", 1, isNIC))).Match(Driver + "/numa")
		},
		upstream: "error: a claim constraint would not be satisfied",
		ours:     "gpu=gpu nic/s1=nic0",
	}, {
		name: "P9 class is missing in an alternative that is not needed", bug: P9,
		build: func() *Case {
			r := FirstOf("r", Want("", 1), Want("", 1))
			r.FirstAvailable[1].DeviceClassName = "missing"
			return NewCase(Default137()).AddPool("n0", "p", Dev("d0")).AddClaim(r)
		},
		upstream: "error: could not retrieve device class",
		ours:     "r/s0=d0",
	}, {
		name: "P15 one claim wants more than 32 devices: a value, no error", bug: P15,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", numbered(40, nil)...).AddClaim(Want("r", 33))
		},
		upstream: "error: exceeds the claim limit",
		ours:     "does not fit",
	}}
}

func adminBugs() []named {
	full := Shared(Dev("d0"), "memory", 10)
	return []named{{
		name: "P3 admin access first, then the normal claim", bug: P3,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", Dev("d0")).AddClaim(WantAdmin("admin", 1)).AddClaim(Want("r", 1))
		},
		upstream: "does not fit",
		ours:     "admin=d0 / r=d0",
	}, {
		name: "P4 admin access needs free counters", bug: P4,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", Consuming(Dev("d0"), "set", "slices", 1), Consuming(Dev("d1"), "set", "slices", 1)).
				AddCounters("n0", "p", Set("set", "slices", 1)).Hold("p", "d0", nil).AddClaim(WantAdmin("admin", 2))
		},
		upstream: "does not fit",
		ours:     "admin=d0 admin=d1",
	}, {
		name: "P4 admin access charges counters", bug: P4,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", Consuming(Dev("d0"), "set", "slices", 1), Consuming(Dev("d1"), "set", "slices", 1)).
				AddCounters("n0", "p", Set("set", "slices", 1)).AddClaim(WantAdmin("admin", 1)).AddClaim(Want("r", 1, `device.attributes["x"].?y.orValue(0) == 0`), WantAdmin("again", 1))
		},
		upstream: "does not fit",
		ours:     "admin=d0 / r=d0 again=d1",
	}, {
		name: "P4 admin access needs free capacity", bug: P4Capacity,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", full).Hold("p", "d0", map[resourceapi.QualifiedName]quantity{"memory": full.Capacity["memory"].Value}).AddClaim(WantAdmin("admin", 1))
		},
		upstream: "does not fit",
		ours:     "admin=d0",
	}}
}

func poolBugs() []named {
	incomplete := func(driver string) *resourceapi.ResourceSlice {
		s := NewSlice(driver, "n0", "q", Dev("x"))
		s.Spec.Pool.ResourceSliceCount = 2
		return s
	}
	return []named{{
		name: "P8 All and an incomplete pool of an unrelated driver", bug: P8,
		build: func() *Case {
			c := NewCase(Default137()).AddPool("n0", "p", Dev("d0"), Dev("d1")).AddClaim(Want("r", 0))
			c.Slices = append(c.Slices, incomplete("other.example.com"))
			return c
		},
		upstream: "error: is currently being updated",
		ours:     "r=d0 r=d1",
	}, {
		name: "P8 All and an invalid pool of an unrelated driver", bug: P8,
		build: func() *Case {
			c := NewCase(Default137()).AddPool("n0", "p", Dev("d0")).AddClaim(Want("r", 0))
			c.Slices = append(c.Slices, NewSlice("other.example.com", "n0", "q", Dev("x"), Dev("x")))
			return c
		},
		upstream: "error: is currently invalid",
		ours:     "r=d0",
	}, {
		name: "P8 All and an incomplete pool that may have more: does not fit, no error", bug: P8,
		build: func() *Case {
			c := NewCase(Default137()).AddPool("n0", "p", Dev("d0")).AddClaim(Want("r", 0))
			c.Slices = append(c.Slices, incomplete(Driver))
			return c
		},
		upstream: "error: is currently being updated",
		ours:     "does not fit",
	}}
}

func sliceBugs() []named {
	return []named{{
		name: "P11 node selector of a device with two terms", bug: P11,
		build: func() *Case {
			d := Dev("d0")
			d.NodeSelector = nodeSelector(corev1.LabelHostname, "n0")
			d.NodeSelector.NodeSelectorTerms = append(d.NodeSelector.NodeSelectorTerms, nodeSelector(corev1.LabelHostname, "n1").NodeSelectorTerms...)
			c := NewCase(Default137()).AddNode("n1").AddPool("", "p", d).AddClaim(Want("r", 1))
			c.Slices[0].Spec.AllNodes, c.Slices[0].Spec.PerDeviceNodeSelection = nil, ptr(true)
			return c
		},
		node:     1,
		upstream: "error: unsupported ResourceSlice.NodeSelector with 2 terms",
		ours:     "r=d0",
	}, {
		name: "141118 slices disagree about their number", bug: I141118,
		build: func() *Case {
			c := NewCase(Default137()).AddPool("n0", "p", Dev("d0")).AddPool("n0", "p", Dev("d1")).AddClaim(Want("r", 2))
			c.Slices[0].Name, c.Slices[0].Spec.Pool.ResourceSliceCount = "a", 2
			c.Wild = true
			c.Slices[1].Name, c.Slices[1].Spec.Pool.ResourceSliceCount = "b", 3
			return c
		},
		upstream: "r=d0 r=d1",
		ours:     "does not fit",
	}, {
		name: "141091 All counts a device that a feature gate makes unusable", bug: I141091,
		build: func() *Case {
			f := AllowAll()
			f.OptionalNodeOperations = false
			c := NewCase(f).AddPool("n0", "p", Dev("d0")).AddPool("n0", "q", Dev("d1")).AddClaim(Want("r", 0))
			c.Slices[1].Spec.SkipNodeOperations = []resourceapi.SkipNodeOperation{resourceapi.SkipNodeOperationAll}
			return c
		},
		upstream: "does not fit",
		ours:     "r=d0",
	}, {
		name: "P13 exclusive device with a live share", bug: P13,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", Dev("d0"), Dev("d1")).Hold("p", "d0", map[resourceapi.QualifiedName]quantity{}).AddClaim(Want("r", 1))
		},
		upstream: "r=d0",
		ours:     "r=d1",
	}}
}

func counterBugs() []named {
	return []named{{
		name: "P5 one over-consumed counter set blocks the whole pool", bug: P5,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", Consuming(Dev("d0"), "a", "slices", 2), Consuming(Dev("d1"), "b", "slices", 1)).
				AddCounters("n0", "p", Set("a", "slices", 1), Set("b", "slices", 1)).Hold("p", "d0", nil).AddClaim(Want("r", 1))
		},
		upstream: "does not fit",
		ours:     "r=d1",
	}, {
		name: "counters of one generation are used for another one on the next node", bug: CounterCache,
		build: func() *Case {
			c := NewCase(Default137()).AddNode("n1")
			for i, node := range []string{"n0", "n1"} {
				generation, amount := int64(2-i), int64(2-i)
				s := NewSlice(Driver, node, "p", Consuming(Dev("d0-"+node), "set", "slices", 1), Consuming(Dev("d1-"+node), "set", "slices", 1))
				k := NewSlice(Driver, node, "p")
				k.Name, k.Spec.SharedCounters = "counters-"+node, []resourceapi.CounterSet{Set("set", "slices", amount)}
				for _, x := range []*resourceapi.ResourceSlice{s, k} {
					x.Spec.Pool.Generation, x.Spec.Pool.ResourceSliceCount = generation, 2
					c.Slices = append(c.Slices, x)
				}
			}
			return c.AddClaim(Want("r", 2))
		},
		node:     1,
		upstream: "r=d0-n1 r=d1-n1",
		ours:     "does not fit",
	}, {
		name: "141216 a negative consumption adds to the counter", bug: I141216,
		build: func() *Case {
			return NewCase(Default137()).AddPool("n0", "p", Consuming(Dev("d0"), "set", "slices", -1), Consuming(Dev("d1"), "set", "slices", 2)).
				AddCounters("n0", "p", Set("set", "slices", 1)).AddClaim(Want("r", 2))
		},
		upstream: "r=d0 r=d1",
		ours:     "does not fit",
	}}
}
