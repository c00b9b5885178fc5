package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

func TestATallyFitsWhatTheQuotaPackageFits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	list := func(limit int64) corev1.ResourceList {
		out := corev1.ResourceList{}
		for _, k := range []corev1.ResourceName{keyA, keyB} {
			if r.IntN(4) > 0 {
				out[k] = *resource.NewQuantity(r.Int64N(limit), resource.DecimalSI)
			}
		}
		return out
	}
	fit := 0
	for range 3000 {
		p := &plan{next: &v1alpha1.DeviceLedger{Status: v1alpha1.DeviceLedgerStatus{Hard: list(30), Used: list(9)}}}
		for range 12 {
			h := v1alpha1.Hold{
				UID: types.UID(fmt.Sprint("u", r.IntN(20))), Kind: []v1alpha1.HoldKind{v1alpha1.HoldClaim, v1alpha1.HoldPod}[r.IntN(2)],
				Namespace: "ns", Name: fmt.Sprint("n", r.IntN(10)), Charge: list(4), Advisory: r.IntN(5) == 0,
			}
			want := quota.Fits(&p.next.Status, h, h.Advisory)
			got := p.fits(&h)
			if !slices.Equal(want, got) {
				t.Fatalf("want %v, got %v for %+v in %+v", want, got, h, p.next.Status)
			}
			if len(got) == 0 {
				fit++
				p.add(&entry{hold: h, request: &Request{}}, h, indexOf(p.next.Status.Holds, h.UID))
			}
		}
	}
	if fit < 1000 {
		t.Errorf("want many that fit, got %d", fit)
	}
}
