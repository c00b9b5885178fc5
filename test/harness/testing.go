package harness

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Exit ends a TestMain with the exit code of its tests, or with 1 when anything around them went
// wrong: func TestMain(m *testing.M) { harness.Exit(run(m)) }.
func Exit(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience is how long a test waits for what has to come. It is only reached when the test fails,
// so it is as long as the slowest machine may need: a hold ends by age after 40 s, and another
// leader takes over after 15 s.
const patience = 3 * time.Minute

// Eventually polls until f returns nil; the test is over when that takes longer than patience.
func Eventually(t testing.TB, what string, f func(ctx context.Context) error) {
	t.Helper()
	if err := Poll(t.Context(), f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Poll is Eventually where no test's own context can be used, as in a cleanup.
func Poll(ctx context.Context, f func(ctx context.Context) error) error {
	return waitUntil(ctx, patience, f)
}

// Persist creates an object as a client does whose request got lost or that shall come back
// later: again until the answer is final. An object that exists was created by a request whose
// answer got lost. With the race detector and many clients on two cores, the API server's 5 s for
// a webhook can end before a connection is made, and a request that was on its way in a manager
// that is killed fails.
func Persist(ctx context.Context, c client.Client, o client.Object) error {
	for {
		attempt, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is no client.Object", o)
		}
		err := c.Create(ctx, attempt)
		switch {
		case apierrors.IsAlreadyExists(err):
			return nil
		case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook"), apierrors.IsTooManyRequests(err):
			if ctx.Err() != nil {
				return ctx.Err()
			}
		default:
			return err
		}
	}
}
