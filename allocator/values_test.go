package allocator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestAmountsCompareAndAddAsQuantities(t *testing.T) {
	t.Parallel()
	texts := []string{"0", "1", "-1", "1n", "-1n", "999n", "1m", "0.5", "1500m", "80Gi", "1e18", "9223372036854775807", "-9223372036854775808", "3.25Ti"}
	for _, x := range texts {
		for _, y := range texts {
			p, q := resource.MustParse(x), resource.MustParse(y)
			if got, want := amountOf(p).cmp(amountOf(q)), p.Cmp(q); got != want {
				t.Errorf("%s cmp %s: want %d, got %d", x, y, want, got)
			}
			sum := p.DeepCopy()
			sum.Add(q)
			if got := amountOf(p).add(amountOf(q)); got != amountOf(sum) {
				t.Errorf("%s + %s: want %v, got %v", x, y, amountOf(sum), got)
			}
			if got := amountOf(p).add(amountOf(q)).sub(amountOf(q)); got != amountOf(p) {
				t.Errorf("%s + %s - %s: got %v", x, y, y, got)
			}
		}
		q := resource.MustParse(x)
		if got := amountOf(q).quantity(resource.DecimalSI); got.Cmp(q) != 0 {
			t.Errorf("%s: quantity gives %s", x, got)
		}
	}
}

func TestTreeIsASortedMap(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var tr *tree[int]
	want := map[string]int{}
	for i := range 2000 {
		key := fmt.Sprint(r.IntN(300))
		before := tr.len()
		old, had := tr.get(key)
		var next *tree[int]
		if r.IntN(3) == 0 {
			next = tr.remove(key)
			delete(want, key)
		} else {
			next = tr.set(key, i)
			want[key] = i
		}
		if now, has := tr.get(key); tr.len() != before || now != old || has != had {
			t.Fatal("the old tree changed")
		}
		tr = next
		if tr.len() != len(want) {
			t.Fatalf("want %d entries, got %d", len(want), tr.len())
		}
	}
	got := map[string]int{}
	var keys []string
	tr.all(func(k string, v int) bool {
		got[k] = v
		keys = append(keys, k)
		return true
	})
	if diff := cmp.Diff(want, got); diff != "" || !slices.IsSorted(keys) {
		t.Errorf("sorted %v, (-want +got):\n%s", slices.IsSorted(keys), diff)
	}
}

func TestConsumption(t *testing.T) {
	t.Parallel()
	q := func(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }
	span := func(low, high, step string) *resourceapi.CapacityRequestPolicy {
		p := &resourceapi.CapacityRequestPolicy{Default: q(low), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: q(low), Max: q(high)}}
		if step != "" {
			p.ValidRange.Step = q(step)
		}
		return p
	}
	values := &resourceapi.CapacityRequestPolicy{Default: q("2"), ValidValues: []resource.Quantity{*q("2"), *q("4")}}
	for name, tc := range map[string]struct {
		policy     *resourceapi.CapacityRequestPolicy
		request    string // "" for none
		fractional bool
		want       string // "short" when the device cannot, "error" when it is fatal
	}{
		"all without request and policy":    {nil, "", true, "10"},
		"as requested without policy":       {nil, "3", true, "3"},
		"the default without request":       {values, "", true, "2"},
		"the next valid value":              {values, "3", true, "4"},
		"beyond the valid values":           {values, "5", true, "short"},
		"at least the minimum":              {span("2", "8", ""), "1", true, "2"},
		"within the range":                  {span("2", "8", ""), "5", true, "5"},
		"beyond the maximum":                {span("2", "8", ""), "9", true, "short"},
		"up to the next step":               {span("2", "8", "3"), "3", true, "5"},
		"up to the next step, a fraction":   {span("500m", "8", "250m"), "600m", true, "750m"},
		"a fraction without the feature":    {span("1", "8", "1"), "1500m", false, "2"},
		"beyond what the range can compute": {span("1", "8", "1"), "1e19", false, "error"},
		"negative":                          {nil, "-1", true, "error"},
		"a step of zero divides nothing":    {span("1", "8", "0"), "3", false, "short"},
		"an unknown capacity is not there":  {nil, "other", true, "short"},
	} {
		d := dev("d", capacityOf("mem", "10", tc.policy))
		capacities, _ := newCapacities(&d)
		dd := &device{api: &d, capacities: capacities}
		var r *resourceapi.CapacityRequirements
		switch tc.request {
		case "":
		case "other":
			r = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"other": *q("1")}}
		default:
			r = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"mem": *q(tc.request)}}
		}
		used, shortOf, err := dd.consumption(r, tc.fractional, nil)
		got := ""
		switch {
		case err != nil:
			got = "error"
		case shortOf != "":
			got = "short"
		default:
			got = used[0].String()
		}
		if got != tc.want {
			t.Errorf("%s: want %s, got %s (%v)", name, tc.want, got, err)
		}
	}
}

// Devices that differ only in what an expression cannot read share its result.
func TestResultsAreRememberedByWhatIsRead(t *testing.T) {
	t.Parallel()
	at := func(name string) string { return `device.attributes["` + driverA + `"].` + name }
	for expression, want := range map[string]int{
		at("kind") + ` == "gpu"`:  2,
		at("uuid") + ` == "x"`:    6,
		`has(` + at("none") + `)`: 1,
		`cel.bind(d, device.attributes["` + driverA + `"], d.kind == "gpu")`: 6, // reads the domain
		`device.attributes.exists(x, x == "` + driverA + `")`:                6, // reads all
		`device.driver == "x"`: 1,
		`device.capacity["` + driverA + `"].mem.compareTo(quantity("1")) > 0`: 3,
		`"kind" in device.attributes["other.example.com"]`:                    1,
	} {
		var list []resourceapi.Device
		for i := range 6 {
			list = append(list, dev(fmt.Sprintf("d-%d", i), attr("uuid", fmt.Sprint(i)), attr("kind", []string{"gpu", "nic"}[i%2]), capacityOf("mem", fmt.Sprint(i%3))))
		}
		b := NewBuilder(BuilderOptions{})
		b.SetClass(class(classA, ""))
		b.SetSlice(sliceOf("s", list))
		inv := b.Snapshot()
		if _, err := inv.Candidates(classA, selectors(expression), func(string, string, *resourceapi.Device, []string) bool { return true }); err != nil {
			t.Fatal(err)
		}
		got, program := 0, inv.engine.selector(expression)
		inv.engine.results.Load().of.Range(func(key, _ any) bool {
			if key.(resultKey).program == program {
				got++
			}
			return true
		})
		if got != want {
			t.Errorf("%s: want %d evaluations, got %d", expression, want, got)
		}
	}
}

func TestCompileSelector(t *testing.T) {
	t.Parallel()
	for expression, ok := range map[string]bool{
		`device.driver == "x"`: true,
		"":                     false,
		"1 + 1":                false,
		"device.none":          false,
		`device.driver == "` + string(make([]byte, 11000)) + `"`: false,
		`device.attributes["d"].all(a, device.attributes["d"].all(b, device.attributes["d"].all(c, device.attributes["d"].all(e, a + b + c + e != ""))))`: false,
	} {
		if err := CompileSelector(expression); (err == nil) != ok {
			t.Errorf("%.80s: want ok %v, got %v", expression, ok, err)
		}
	}
}
