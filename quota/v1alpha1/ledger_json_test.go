package v1alpha1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	sigsjson "sigs.k8s.io/json"
)

// Holds have no schema, and one ledger that cannot be read would keep all others from being listed.
func TestHoldsThatAreNoneMakeALedgerUnreadable(t *testing.T) {
	used := corev1.ResourceList{"k": resource.MustParse("3")}
	hold := Hold{UID: "u", Kind: HoldClaim, Namespace: "p", Name: "c", Charge: corev1.ResourceList{"k": resource.MustParse("1")}}
	unreadable := DeviceLedgerStatus{Used: used, Unreadable: true}
	for name, c := range map[string]struct {
		data string
		want DeviceLedgerStatus
	}{
		"holds": {`{"used":{"k":"3"},"holds":[{"uid":"u","kind":"ResourceClaim","namespace":"p","name":"c","charge":{"k":"1"}}]}`,
			DeviceLedgerStatus{Used: used, Holds: []Hold{hold}}},
		"holds of a later version": {`{"used":{"k":"3"},"holds":[{"uid":"u","kind":"ResourceClaim","namespace":"p","name":"c","charge":{"k":"1"},"later":{"a":[1]}}]}`,
			DeviceLedgerStatus{Used: used, Holds: []Hold{hold}}},
		"none":                   {`{"used":{"k":"3"}}`, DeviceLedgerStatus{Used: used}},
		"null":                   {`{"used":{"k":"3"},"holds":null}`, DeviceLedgerStatus{Used: used}},
		"an empty list":          {`{"used":{"k":"3"},"holds":[]}`, DeviceLedgerStatus{Used: used, Holds: []Hold{}}},
		"text":                   {`{"used":{"k":"3"},"holds":"none"}`, unreadable},
		"a list of numbers":      {`{"used":{"k":"3"},"holds":[1]}`, unreadable},
		"a UID that is a number": {`{"used":{"k":"3"},"holds":[{"uid":5}]}`, unreadable},
		"a charge of no number":  {`{"used":{"k":"3"},"holds":[{"uid":"u","charge":{"k":"much"}}]}`, unreadable},
	} {
		for decoder, decode := range map[string]func([]byte, any) error{"json": json.Unmarshal, "sigs.k8s.io/json": sigsjson.UnmarshalCaseSensitivePreserveInts} {
			t.Run(name+"/"+decoder, func(t *testing.T) {
				got := DeviceLedger{Status: DeviceLedgerStatus{Unreadable: true, Holds: []Hold{{UID: "of what was read before"}}}}
				if err := decode([]byte(`{"metadata":{"name":"q"},"status":`+c.data+`}`), &got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.want, got.Status); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
	if err := json.Unmarshal([]byte(`{"used":{"k":"much"}}`), &DeviceLedgerStatus{}); err == nil {
		t.Error("want an error for use that is no number: the schema refuses it, nothing is known then")
	}
}
