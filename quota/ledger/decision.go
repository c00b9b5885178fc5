package ledger

import (
	"fmt"
	"time"

	"github.com/devicequota/devicequota/quota"
)

// Verdict is the answer to a request.
type Verdict int

const (
	// Allowed: it fits every covering quota, and holds are written unless it was a dry run.
	Allowed Verdict = iota
	// Denied: what exists leaves no room.
	Denied
	// Busy: nothing wrong with the request; ask again after RetryAfter.
	Busy
)

// Decision is the answer to a request with its reasons.
type Decision struct {
	Verdict Verdict
	// Denials by quotas in mode Enforce, sorted by quota. Non-empty if and only if Denied.
	Denials []quota.Denial
	// Warned and Audited are what quotas in mode Warn and Audit would have denied. They never block.
	Warned, Audited []quota.Denial
	// NotNow, of Check only, are the quotas in mode Enforce that the request fits by itself
	// but not beside what is charged now, as far as this replica knows. They do not make it Denied.
	NotNow []quota.Denial
	// RetryAfter is set for Busy.
	RetryAfter time.Duration
	// Busy says why, for people.
	Busy string
	// Charges per covering quota.
	// quota -> charge
	Charges map[string]quota.Charge
}

// reasonFor says what a busy answer waits for.
func reasonFor(c *cover) string {
	switch c.out.result {
	case full:
		return fmt.Sprintf("quota %q has too many objects that were admitted and not yet observed", c.quota.Name)
	case rebuilding:
		return fmt.Sprintf("the ledger of quota %q was created a moment ago", c.quota.Name)
	case behind:
		return fmt.Sprintf("quota %q changes faster than it is observed", c.quota.Name)
	default:
		return fmt.Sprintf("objects that were admitted and not yet observed take the rest of quota %q", c.quota.Name)
	}
}
