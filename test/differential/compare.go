package differential

import (
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// sameResults compares results but for the values of share IDs, which are random;
// whether there is one counts. Quantities are compared by their amounts.
var sameResults = cmp.Options{
	cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".ShareID" },
		cmp.Comparer(func(a, b *types.UID) bool { return (a == nil) == (b == nil) })),
	cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }),
	cmpopts.EquateEmpty(),
}

// Diff compares two answers: the verdicts and, if both fit, the results.
func Diff(a, b Answer) string {
	if a.Verdict != b.Verdict {
		return a.String() + "\n  against\n" + b.String()
	}
	if a.Verdict != Fits {
		return ""
	}
	return diffResults(a.Results, b.Results)
}

func diffResults(a, b []resourceapi.AllocationResult) string {
	return cmp.Diff(a, b, sameResults)
}
