package differential

import (
	"errors"

	resourceapi "k8s.io/api/resource/v1"
)

// malformed returns what is wrong with the claims as such, whatever devices there are: what
// the API server would reject, and what uses a feature that is off.
func (c *Case) malformed(bugs Bugs) error {
	for i, claim := range c.Claims {
		for _, alts := range alternatives(i, claim) {
			if len(alts) == 0 {
				return errors.New("neither exactly nor firstAvailable")
			}
			for _, a := range alts {
				if err := c.malformedAlternative(a, bugs); err != nil {
					return err
				}
			}
		}
		for _, d := range claim.Spec.Devices.Constraints {
			if d.MatchAttribute == nil && d.DistinctAttribute == nil {
				return errors.New("empty constraint")
			}
		}
	}
	return nil
}

func (c *Case) malformedAlternative(a *alternative, bugs Bugs) error {
	f := c.Features
	if a.parent != "" && !f.PrioritizedList || a.capacity != nil && !f.ConsumableCapacity || len(a.derived) > 0 && !f.DerivedAttributes || a.hasAdmin && !f.AdminAccess {
		return errors.New("a feature is off")
	}
	if a.className == "" {
		return errors.New("class name is empty")
	}
	exact := a.mode == resourceapi.DeviceAllocationModeExactCount
	if !exact && a.mode != resourceapi.DeviceAllocationModeAll {
		return errors.New("unknown allocation mode")
	}
	if exact && a.count < 1 && !bugs.Has(CountZero) {
		return errors.New("count below one")
	}
	selectors := a.selectors
	if class := c.class(a.className); class != nil && !bugs.Has(ClassWithoutCEL) {
		selectors = append(selectors[:len(selectors):len(selectors)], class.Spec.Selectors...)
	}
	for _, s := range selectors {
		if s.CEL == nil {
			return errors.New("selector without expression")
		}
	}
	return nil
}
