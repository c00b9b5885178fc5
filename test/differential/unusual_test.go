package differential

import (
	"math"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// Claims that the API server never lets pass make upstream panic; ours calls them errors,
// or values where the number is just too large.
func TestClaimsThatNoAPIServerLetsPass(t *testing.T) {
	for _, x := range []struct {
		name           string
		request        resourceapi.DeviceRequest
		upstream, ours Verdict
	}{
		{"neither exactly nor firstAvailable", resourceapi.DeviceRequest{Name: "r"}, Panics, Fails},
		{"count of 2^63-1", Want("r", math.MaxInt64), Fails, DoesNotFit},
		{"negative count", Want("r", -1), Panics, Fails},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := NewCase(Default137()).AddPool("n0", "p", Dev("d0")).AddClaim(x.request)
			u, err := NewUpstream(c, upstreamBudget)
			if err != nil {
				t.Fatal(err)
			}
			o, err := NewOurs(c, 0)
			if err != nil {
				t.Fatal(err)
			}
			if a := u.Allocate(c.Nodes[0], c.Claims); a.Verdict != x.upstream {
				t.Errorf("upstream: %v, want %s", a, x.upstream)
			}
			if a := o.Allocate(c.Nodes[0], c.Claims); a.Verdict != x.ours {
				t.Errorf("ours: %v, want %s", a, x.ours)
			}
		})
	}
}

// Two requests of 2^63-1 devices each: no sum overflows.
func TestHugeCountsDoNotOverflow(t *testing.T) {
	c := NewCase(Default137()).AddPool("n0", "p", Dev("d0")).AddClaim(Want("a", math.MaxInt64), Want("b", math.MaxInt64), Want("c", 1))
	o, err := NewOurs(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	if a := o.Allocate(c.Nodes[0], c.Claims); a.Verdict != DoesNotFit {
		t.Errorf("%v, want %s", a, DoesNotFit)
	}
}
