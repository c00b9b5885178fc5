package quota

import (
	"math"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func qp(s string) *resource.Quantity {
	if s == "" {
		return nil
	}
	q := resource.MustParse(s)
	return &q
}

func TestConsumedCapacityFollowsTheRequestPolicy(t *testing.T) {
	t.Parallel()
	type policy struct {
		def, low, high, step string
		values               []string
	}
	for name, test := range map[string]struct {
		value, request string
		policy         *policy
		want           string
	}{
		"no policy, nothing requested: all":     {"40Gi", "", nil, "40Gi"},
		"no policy: as requested":               {"40Gi", "1500m", nil, "1500m"},
		"nothing requested: default":            {"40Gi", "", &policy{def: "1Gi"}, "1Gi"},
		"nothing requested: default 0":          {"40Gi", "", &policy{def: "0", low: "0"}, "0"},
		"nothing requested, no default: all":    {"100", "", &policy{low: "1"}, "100"},
		"below min: min":                        {"100G", "1M", &policy{def: "1G", low: "100M", high: "100G", step: "1M"}, "100M"},
		"on a step":                             {"100G", "200M", &policy{def: "1G", low: "100M", high: "100G", step: "1M"}, "200M"},
		"between steps: up":                     {"100G", "200000001", &policy{def: "1G", low: "100M", high: "100G", step: "1M"}, "201M"},
		"steps begin at min":                    {"100", "11", &policy{def: "5", low: "5", step: "4"}, "13"},
		"no step: as requested":                 {"100", "11", &policy{def: "5", low: "5"}, "11"},
		"no min: as requested":                  {"100", "11", &policy{def: "5", high: "50", step: "4"}, "11"},
		"above max: as requested":               {"100", "160", &policy{def: "5", low: "0", high: "100", step: "10"}, "160"},
		"valid value":                           {"100", "2", &policy{def: "1", values: []string{"1", "2", "4"}}, "2"},
		"next valid value":                      {"100", "3", &policy{def: "1", values: []string{"1", "2", "4"}}, "4"},
		"no larger valid value: as requested":   {"100", "5", &policy{def: "1", values: []string{"1", "2", "4"}}, "5"},
		"fractional range":                      {"4", "1010m", &policy{def: "1", low: "0", high: "4", step: "250m"}, "1250m"},
		"fractional min":                        {"4", "400m", &policy{def: "1", low: "300m", high: "4", step: "250m"}, "550m"},
		"sub-milli request rounds to milli":     {"4", "1u", &policy{def: "1", low: "0", high: "4", step: "1m"}, "1m"},
		"sub-milli step counts as whole":        {"4", "1500m", &policy{def: "1", low: "0", high: "4", step: "1u"}, "2"},
		"rounding beyond int64 is exact":        {"9E", "9223372036854775807", &policy{def: "1", low: "0", step: "2"}, "9223372036854775808"},
		"beyond milli range: whole numbers":     {"9E", "9223372036854775801", &policy{def: "1", low: "0", high: "9E", step: "10"}, "9223372036854775810"},
		"negative default counts as nothing":    {"10", "", &policy{def: "-5"}, "0"},
		"negative value counts as nothing":      {"-10", "", nil, "0"},
		"step 0 does not divide":                {"10", "3", &policy{def: "1", low: "0", step: "0"}, "3"},
		"negative step does not divide":         {"10", "3", &policy{def: "1", low: "0", step: "-2"}, "3"},
		"negative min":                          {"10", "3", &policy{def: "1", low: "-1", step: "3"}, "5"},
		"negative min, huge request":            {"10", "9223372036854775807", &policy{def: "1", low: "-1", step: "3"}, "9223372036854775808"},
		"a request beyond int64 is not wrapped": {"10", "9223372036854775807", &policy{def: "1", low: "1", high: "10", step: "5"}, "9223372036854775811"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &resourceapi.DeviceCapacity{Value: resource.MustParse(test.value)}
			if p := test.policy; p != nil {
				c.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: qp(p.def)}
				for _, v := range p.values {
					c.RequestPolicy.ValidValues = append(c.RequestPolicy.ValidValues, *qp(v))
				}
				if p.low != "" || p.high != "" || p.step != "" {
					c.RequestPolicy.ValidRange = &resourceapi.CapacityRequestPolicyRange{Min: qp(p.low), Max: qp(p.high), Step: qp(p.step)}
				}
			}
			requested := map[resourceapi.QualifiedName]resource.Quantity{}
			if test.request != "" {
				requested["c"] = resource.MustParse(test.request)
			}
			before := c.DeepCopy()
			got := consumed(c, requested, "c")
			if want := exact(t, test.want); got.Cmp(want) != 0 {
				t.Errorf("want %s, got %s", test.want, got.String())
			}
			if c.Value.Cmp(before.Value) != 0 {
				t.Error("the published value was changed")
			}
		})
	}
}

// exact returns a whole or milli quantity without the cap of ParseQuantity.
func exact(t *testing.T, s string) resource.Quantity {
	t.Helper()
	q := resource.MustParse(s)
	if q.String() == s || q.CmpInt64(1<<62) < 0 {
		return q
	}
	z := resource.Quantity{}
	if _, ok := z.AsDec().SetString(s); !ok {
		t.Fatalf("%q is not a number", s)
	}
	return z
}

func TestTimesIsExactAndNeverNegative(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		amount string
		n      int64
		want   string
	}{
		"usual": {"40Gi", 3, "120Gi"}, "milli": {"1500m", 3, "4500m"}, "beyond int64": {"9223372036854775807", 2, "18446744073709551614"},
		"negative amount": {"-5", 3, "0"}, "negative factor": {"5", -3, "0"}, "no factor": {"5", 0, "0"},
	} {
		q := resource.MustParse(test.amount)
		for range 2 {
			q.ToDec() // an amount with a pointer, as published values beyond int64 have
			got := times(q, test.n)
			if want := exact(t, test.want); got.Cmp(want) != 0 {
				t.Errorf("%s: want %s, got %s", name, test.want, got.String())
			}
		}
	}
}

func TestRoundingUpPassesInt64Exactly(t *testing.T) {
	t.Parallel()
	// Parsed quantities of 19 digits are no int64 inside; computed ones may be.
	most := *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)
	for name, test := range map[string]struct {
		low, step int64
		want      string
	}{
		"step beyond int64": {0, 2, "9223372036854775808"}, "distance to min beyond int64": {-1, 3, "9223372036854775808"}, "on a step": {1, 2, "9223372036854775807"},
	} {
		got := inRange(most, &resourceapi.CapacityRequestPolicyRange{
			Min: resource.NewQuantity(test.low, resource.DecimalSI), Step: resource.NewQuantity(test.step, resource.DecimalSI)})
		if want := exact(t, test.want); got.Cmp(want) != 0 {
			t.Errorf("%s: want %s, got %s", name, test.want, got.String())
		}
	}
}
