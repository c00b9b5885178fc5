package allocator

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/nodedeclaredfeatures/features/draoptionalnodeoperations"
)

// status is what is known of a device for an alternative, apart from what this call allocates.
type status uint8

const (
	statusUnknown status = iota
	statusNo
	statusYes
)

// place is where a device is in the view of the node.
type place struct{ slice, device int }

// need is what an alternative consumes of a device's capacities, in their order.
type need struct {
	quantities []resource.Quantity
	amounts    []amount
}

// usable tells whether the alternative could use the device if this call had allocated
// nothing yet. The device is not exclusively in use. Errors are fatal, as upstream's.
//
// The order of the checks is upstream's as far as errors are concerned: structured/internal/
// experimental, isSelectable and allocateDevice (v0.37).
func (s *search) usable(ctx context.Context, a *alternative, vs *viewSlice, d *device) (bool, error) {
	if known := a.status[vs.first+d.index]; known != statusUnknown {
		return known == statusYes, nil
	}
	reason, _, err := s.verdict(ctx, a, vs, d)
	if err != nil {
		return false, err
	}
	a.remember(vs.first+d.index, reason)
	return reason == "", nil
}

// remember keeps the verdict on the device at the position.
func (a *alternative) remember(pos int, reason Reason) {
	a.status[pos] = statusNo
	if reason == "" {
		a.status[pos] = statusYes
	}
}

// verdict returns why the alternative cannot use the device, or "" when it can. The detail is
// what Obstacle.Detail says.
func (s *search) verdict(ctx context.Context, a *alternative, vs *viewSlice, d *device) (reason Reason, detail string, err error) {
	if !s.o.Features.DeviceBindingAndStatus && d.binding {
		return ReasonFeature, "binding conditions", nil
	}
	if reason, detail, err = s.selection(ctx, a, d); reason != "" || err != nil {
		return reason, detail, err
	}
	if d.reach != nil && s.node != nil {
		matches, err := d.reach.matches(s.node)
		if err != nil {
			return "", "", fmt.Errorf("device %q: node selector: %w", d.id(), err)
		}
		if !matches {
			return ReasonNode, "", nil
		}
	}
	if s.o.Features.ConsumableCapacity {
		if short, err := s.capacityNeed(a, vs, d); short != "" || err != nil {
			return ReasonCapacity, string(short), err
		}
	}
	if missing := s.missingFeature(d); missing != "" {
		return ReasonFeature, missing, nil
	}
	if s.o.Features.DeviceTaints {
		if taint := untolerated(d.taints, a.tolerations); taint != nil {
			return ReasonTaint, taintText(taint), nil
		}
	}
	return "", "", nil
}

// selection evaluates the selectors of class and request.
func (s *search) selection(ctx context.Context, a *alternative, d *device) (reason Reason, detail string, err error) {
	for i, p := range a.programs {
		o, err := d.slice.outcomesOf(p).on(ctx, d)
		if err != nil {
			return "", "", err
		}
		if s.cost += o.cost(); s.cost > s.o.MaxCost {
			return "", "", ErrSteps
		}
		switch {
		case o.kind() == outcomeError:
			return "", "", fmt.Errorf("claim %q, request %q: %s %w", s.claimName(a.claim), a.name, a.selectorName(i), p.failure(ctx, d))
		case o.kind() == outcomeTrue:
		case i < a.classPrograms:
			return ReasonClass, p.key.expression, nil
		default:
			return ReasonSelector, p.key.expression, nil
		}
	}
	return "", "", nil
}

// capacityNeed computes what the alternative consumes of the device. short names a capacity
// that the device never has.
func (s *search) capacityNeed(a *alternative, vs *viewSlice, d *device) (short resourceapi.QualifiedName, err error) {
	asks := a.capacity != nil && len(a.capacity.Requests) > 0
	if len(d.capacities) == 0 && !asks {
		return "", nil
	}
	if d.plain && !asks && !d.shareable && s.use(vs).of(d.name) == nil {
		return "", nil // all of it, and all of it is there
	}
	n := s.needMemory.next()
	quantities, short, err := d.consumption(a.capacity, s.o.Features.FractionalCapacityRange, n.quantities)
	if err != nil {
		return "", fmt.Errorf("claim %q, request %q: device %q: %w", s.claimName(a.claim), a.name, d.id(), err)
	}
	if short != "" {
		return short, nil
	}
	n.quantities, n.amounts = quantities, resized(n.amounts, len(quantities))
	for i := range quantities {
		n.amounts[i] = amountOf(quantities[i])
		if n.amounts[i].cmp(d.capacities[i].value) > 0 {
			return d.capacities[i].name, nil
		}
	}
	if len(a.needs) == 0 {
		a.needs = cleared(a.needs, s.view.devices)
	}
	a.needs[vs.first+d.index] = n
	return "", nil
}

// missingFeature returns what the device needs and this call or the node does not have.
func (s *search) missingFeature(d *device) string {
	if d.slice.skips {
		if !s.o.Features.OptionalNodeOperations {
			return "optional node operations"
		}
		if !s.nodeDeclares(draoptionalnodeoperations.DRAOptionalNodeOperationsFeatureGate) {
			return "optional node operations on the node"
		}
	}
	if !s.o.Features.PartitionableDevices && d.consumes {
		return "partitionable devices"
	}
	return ""
}

func (s *search) nodeDeclares(feature string) bool {
	if s.node == nil {
		return true // the question is about all nodes
	}
	for _, f := range s.node.Status.DeclaredFeatures {
		if f == feature {
			return true
		}
	}
	return false
}

func taintText(t *resourceapi.DeviceTaint) string {
	return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
}

func (s *search) claimName(c int) string {
	return s.claims[c].Namespace + "/" + s.claims[c].Name
}
