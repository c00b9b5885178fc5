package differential

import (
	"reflect"
	"testing"

	"k8s.io/dynamic-resource-allocation/structured"
)

func TestMain(m *testing.M) {
	structured.EnableAllocators("experimental")
	m.Run()
}

func TestSameSeedGeneratesTheSameCase(t *testing.T) {
	for seed := range uint64(50) {
		if a, b := Generate(seed), Generate(seed); !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d: two different cases", seed)
		}
	}
}

func TestUpstreamAnswersAreMixed(t *testing.T) {
	count := map[Verdict]int{}
	for seed := range uint64(1000) {
		c := Generate(seed)
		u, err := NewUpstream(c, 5000)
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range c.Nodes {
			a := u.Allocate(node, c.Claims)
			count[a.Verdict]++
			if a.Verdict == Panics && count[Panics] < 3 {
				t.Logf("seed %d: %v", seed, a)
			}
		}
	}
	t.Log(count)
}
