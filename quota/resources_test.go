package quota_test

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/builders"
)

func TestSumsBeyondInt64AreExact(t *testing.T) {
	t.Parallel()
	most := corev1.ResourceList{"k": *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)}
	sum := quota.Add(quota.Add(most, most), builders.List("k", "3"))
	if got := sum["k"]; got.String() != "18446744073709551617" {
		t.Errorf("sum is %s", got.String())
	}
	back := quota.Sub(quota.Sub(sum, most), most)
	same(t, "difference", builders.List("k", "3"), back)
	if got := quota.Exceeding(sum, most); len(got) != 1 {
		t.Errorf("exceeding: %v", got)
	}
}

func TestListsShareNothing(t *testing.T) {
	t.Parallel()
	big := corev1.ResourceList{"k": *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)}
	sum := quota.Add(big, big) // a quantity with a pointer
	want := quota.Format(sum)
	for name, list := range map[string]corev1.ResourceList{
		"Copy": quota.Copy(sum), "Add": quota.Add(sum, nil), "Max": quota.Max(sum, nil), "Sub": quota.Sub(sum, nil),
		"Excess": quota.Excess(sum, nil), "Only": quota.Only(sum, []corev1.ResourceName{"k"}), "Add to nothing": quota.Add(nil, sum),
		"Max with nothing": quota.Max(nil, sum), "Positive": quota.Positive(sum),
	} {
		q := list["k"]
		q.Add(resource.MustParse("1"))
		if got := quota.Format(sum); got != want {
			t.Fatalf("%s: a change of the result changed the argument to %s", name, got)
		}
	}
	quota.Add(sum, sum)
	quota.Sub(builders.List("k", "1"), sum)
	if got := quota.Format(sum); got != want {
		t.Errorf("an operand changed to %s", got)
	}
}

func TestListAlgebra(t *testing.T) {
	t.Parallel()
	a, b := builders.List("x", "2", "y", "500m"), builders.List("y", "700m", "z", "1Gi")
	for name, test := range map[string]struct{ want, got corev1.ResourceList }{
		"add":      {builders.List("x", "2", "y", "1200m", "z", "1Gi"), quota.Add(a, b)},
		"sub":      {builders.List("x", "2", "y", "-200m", "z", "-1Gi"), quota.Sub(a, b)},
		"excess":   {builders.List("x", "2"), quota.Excess(a, b)},
		"max":      {builders.List("x", "2", "y", "700m", "z", "1Gi"), quota.Max(a, b)},
		"only":     {builders.List("y", "500m", "q", "0"), quota.Only(a, []corev1.ResourceName{"y", "q"})},
		"positive": {builders.List("x", "1"), quota.Positive(builders.List("x", "1", "y", "0", "z", "-1"))},
		"copy nil": {corev1.ResourceList{}, quota.Copy(nil)},
	} {
		if !quota.Equal(test.want, test.got) || len(test.want) != len(test.got) {
			t.Errorf("%s: want %s, got %s", name, quota.Format(test.want), quota.Format(test.got))
		}
	}
	if quota.Equal(a, b) || !quota.Equal(builders.List("x", "0"), nil) {
		t.Error("Equal is wrong")
	}
}

func TestFormatIsSortedAndWithoutSpaces(t *testing.T) {
	t.Parallel()
	got := quota.Format(builders.List("b", "2", "a", "40Gi", "c", "1500m"))
	if want := "a=40Gi,b=2,c=1500m"; got != want {
		t.Errorf("want %s, got %s", want, got)
	}
	if got := quota.Format(nil); got != "" {
		t.Errorf("empty list is %q", got)
	}
}
