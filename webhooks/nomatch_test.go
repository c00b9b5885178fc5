package webhooks

import (
	"strings"
	"testing"

	"github.com/devicequota/devicequota/allocator"
	"github.com/devicequota/devicequota/test/builders"
)

// What is remembered of a claim must not be as large as its author likes.
func TestLongExplanationsAreGivenAndNotKept(t *testing.T) {
	w := newWorld(t)
	e := NewDeviceExplainer(func() *allocator.Inventory { return w.inventory })
	for name, c := range map[string]struct {
		expression string
		kept       int
	}{
		"short": {`device.driver == "none"`, 1},
		"long":  {`device.driver == "` + strings.Repeat("x", 8000) + `"`, 0},
	} {
		clear(e.known)
		claim := builders.Claim(project, "c", builders.Exactly("r", "gpu", 1, c.expression))
		if text := e.Explain(t.Context(), claim); !strings.Contains(text, c.expression) {
			t.Errorf("%s: explained by %.100q", name, text)
		}
		if got := len(e.known); got != c.kept {
			t.Errorf("%s: %d explanations are kept, want %d", name, got, c.kept)
		}
	}
}
