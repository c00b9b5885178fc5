package scenarios

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/test/harness"
	"github.com/devicequota/devicequota/webhooks"
)

// auditLog tells what a request was charged, also a refused one: the webhooks say it in audit annotations.
type auditLog struct {
	log    harness.AuditLog
	reader *harness.AuditReader
	// audit ID -> its annotations
	seen map[string]map[string]string
}

func newAuditLog(dir string) (*auditLog, error) {
	log, err := harness.NewAuditLog(dir, `- level: Metadata
  verbs: [create]
  resources: [{group: "", resources: [pods]}, {group: resource.k8s.io}]`)
	return &auditLog{log: log, seen: map[string]map[string]string{}}, err
}

func (a *auditLog) close() error {
	if a.reader == nil {
		return nil
	}
	return a.reader.Close()
}

// charge returns what the webhooks charged in the request, as chargeText does.
func (a *auditLog) charge(ctx context.Context, id string) (string, error) {
	err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, deadline, true, func(context.Context) (bool, error) {
		err := a.read()
		return a.seen[id] != nil, err
	})
	if err != nil {
		return "", fmt.Errorf("audit event %s: %w", id, err)
	}
	// Only what holds a charge is charged: templates and checks of pods are not.
	of := a.seen[id]
	return of["resourceclaims.validate.devicequota.io/"+webhooks.AuditCharge] + of["extendedresources.pods.validate.devicequota.io/"+webhooks.AuditCharge], nil
}

// chargeText writes a charge as the audit annotation has it: sorted, without what costs nothing.
// It is compared as text, since no parser takes amounts of more than 63 bits.
func chargeText(charge map[string]corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(charge)) {
		parts = append(parts, name+": "+quota.Format(charge[name]))
	}
	return strings.Join(parts, "; ")
}

// read takes in what was logged since.
func (a *auditLog) read() (err error) {
	if a.reader == nil {
		if a.reader, err = a.log.Open(); err != nil {
			return err
		}
	}
	events, err := a.reader.Next()
	for i := range events {
		e := &events[i]
		if e.Annotations == nil {
			e.Annotations = map[string]string{}
		}
		a.seen[string(e.AuditID)] = e.Annotations
	}
	return err
}
