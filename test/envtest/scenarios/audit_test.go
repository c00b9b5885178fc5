package scenarios

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/devicequota/devicequota/quota"
	"github.com/devicequota/devicequota/webhooks"
)

// auditLog tells what a request was charged, also a refused one: the webhooks say it in audit annotations.
type auditLog struct {
	policy, log string
	file        *os.File
	lines       *bufio.Reader
	partial     string
	// audit ID -> its annotations
	seen map[string]map[string]string
}

func newAuditLog(dir string) (*auditLog, error) {
	a := &auditLog{policy: filepath.Join(dir, "policy.yaml"), log: filepath.Join(dir, "audit.log"), seen: map[string]map[string]string{}}
	return a, os.WriteFile(a.policy, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create]
  resources: [{group: "", resources: [pods]}, {group: resource.k8s.io}]
- level: None
`), 0o600)
}

func (a *auditLog) flags() map[string]string {
	return map[string]string{"audit-policy-file": a.policy, "audit-log-path": a.log}
}

func (a *auditLog) close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
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
func (a *auditLog) read() error {
	if a.file == nil {
		f, err := os.Open(a.log)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		a.file, a.lines = f, bufio.NewReader(f)
	}
	for {
		text, err := a.lines.ReadString('\n')
		a.partial += text
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var e auditv1.Event
		if err := json.Unmarshal([]byte(a.partial), &e); err != nil {
			return err
		}
		a.partial = ""
		if e.Annotations == nil {
			e.Annotations = map[string]string{}
		}
		a.seen[string(e.AuditID)] = e.Annotations
	}
}
