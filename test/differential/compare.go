package differential

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sameResults compares results but for the values of share IDs, which are random;
// whether there is one counts. Quantities are compared by their amounts.
var sameResults = cmp.Options{
	cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".ShareID" },
		cmp.Comparer(func(a, b *types.UID) bool { return (a == nil) == (b == nil) })),
	cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }),
	cmpopts.EquateEmpty(),
	cmp.FilterValues(severalTerms, cmp.Comparer(anySelector)),
}

func severalTerms(a, b *corev1.NodeSelector) bool {
	return a != nil && b != nil && (len(a.NodeSelectorTerms) > 1 || len(b.NodeSelectorTerms) > 1)
}

// anySelector leaves selectors of several terms, which upstream never makes, to the checker: which
// terms they have, and how far they narrow the nodes, is the allocator's choice.
func anySelector(_, _ *corev1.NodeSelector) bool { return true }

// sampleNodes are nodes with every combination of what the generator uses in selectors.
func sampleNodes() []*corev1.Node {
	var out []*corev1.Node
	for i := range 4 * 3 * 2 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i%4), Labels: map[string]string{}}}
		if zone := i / 4 % 3; zone < 2 {
			node.Labels["zone"] = fmt.Sprintf("z%d", zone)
		}
		if i/12 == 0 {
			node.Labels[corev1.LabelHostname] = node.Name
		}
		out = append(out, node)
	}
	return out
}

// narrower reports whether the selector matches the node, and no node that wide does not match.
func narrower(selector, wide *corev1.NodeSelector, node *corev1.Node) bool {
	if ok, err := nodeMatches(node, "", false, selector); !ok || err != nil {
		return false
	}
	for _, sample := range sampleNodes() {
		x, errX := nodeMatches(sample, "", false, selector)
		y, errY := nodeMatches(sample, "", false, wide)
		if x && !y || errX != nil || errY != nil {
			return false
		}
	}
	return true
}

var deviceInError = regexp.MustCompile(`on (?:device )?"?([a-z.]+/[a-z0-9]+/[a-z0-9]+)`)

// failedDevice returns the device on which an expression failed, if that is the answer.
func failedDevice(a Answer) string {
	if a.Verdict != Fails || a.Err == nil {
		return ""
	}
	if m := deviceInError.FindStringSubmatch(a.Err.Error()); m != nil {
		return m[1]
	}
	return ""
}

// Diff compares two answers: the verdicts and, if both fit, the results; if both are errors, the
// device on which an expression failed.
func Diff(a, b Answer) string {
	if a.Verdict != b.Verdict {
		return a.String() + "\n  against\n" + b.String()
	}
	if x, y := failedDevice(a), failedDevice(b); x != y {
		return a.String() + "\n  against, on another device,\n" + b.String()
	}
	if a.Verdict != Fits {
		return ""
	}
	d := DiffResults(a.Results, b.Results)
	if x, y := describe(a.Results), describe(b.Results); d != "" && x != y {
		return x + "\n  against\n" + y
	}
	return d
}

// withoutShareIDs replaces the values of share IDs.
func withoutShareIDs(results []resourceapi.AllocationResult) []resourceapi.AllocationResult {
	out := slices.Clone(results)
	for i := range out {
		devices := slices.Clone(out[i].Devices.Results)
		for j := range devices {
			if devices[j].ShareID != nil {
				devices[j].ShareID = ptr(types.UID("share"))
			}
		}
		out[i].Devices.Results = devices
	}
	return out
}

// DiffResults compares results but for the values of share IDs.
func DiffResults(a, b []resourceapi.AllocationResult) string {
	if equality.Semantic.DeepEqual(withoutShareIDs(a), withoutShareIDs(b)) {
		return "" // the usual case, and much faster
	}
	return cmp.Diff(a, b, sameResults)
}
