package differential

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
)

// values returns the values of an attribute, each with its type; lists only with the feature.
func values(a *resourceapi.DeviceAttribute, lists bool) map[string]bool {
	out := map[string]bool{}
	add := func(kind string, v any) { out[fmt.Sprintf("%s:%v", kind, v)] = true }
	if lists {
		for _, v := range a.IntValues {
			add("int", v)
		}
		for _, v := range a.BoolValues {
			add("bool", v)
		}
		for _, v := range a.StringValues {
			add("string", v)
		}
		for _, v := range a.VersionValues {
			add("version", v)
		}
		if len(out) > 0 {
			return out
		}
	}
	switch {
	case a.IntValue != nil:
		add("int", *a.IntValue)
	case a.BoolValue != nil:
		add("bool", *a.BoolValue)
	case a.StringValue != nil:
		add("string", *a.StringValue)
	case a.VersionValue != nil:
		add("version", *a.VersionValue)
	}
	return out
}

func common(a, b map[string]bool) map[string]bool {
	out := map[string]bool{}
	for v := range a {
		if b[v] {
			out[v] = true
		}
	}
	return out
}

// chosen is a device in a solution.
type chosen struct {
	alt *alternative
	d   *deviceView
}

// satisfied reports whether the devices of one claim, in their order, satisfy the
// constraint. An attribute without a usable value is accepted for the first device
// only, and only where lists are off, as upstream does.
func satisfied(c *Case, constraint *resourceapi.DeviceConstraint, devices []chosen) (bool, error) {
	lists := c.Features.ListTypeAttributes
	var before []map[string]bool
	for _, x := range devices {
		if len(constraint.Requests) > 0 && !x.alt.named(constraint.Requests) {
			continue
		}
		name := constraint.MatchAttribute
		if name == nil {
			name = constraint.DistinctAttribute
		}
		a, err := x.alt.attribute(x.d, *name)
		if err != nil || a == nil {
			return false, err
		}
		v := values(a, lists)
		if len(v) == 0 && (lists || len(before) > 0) {
			return false, nil
		}
		if constraint.MatchAttribute != nil {
			if len(before) > 0 {
				if v = common(before[len(before)-1], v); len(v) == 0 {
					return false, nil
				}
			}
		} else {
			for _, b := range before {
				if len(common(b, v)) > 0 {
					return false, nil
				}
			}
		}
		before = append(before, v)
	}
	return true, nil
}
