package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditLog is what an API server records of the requests that it gets.
type AuditLog struct {
	policy, log string
}

// NewAuditLog writes a policy into the folder that records what the rules, YAML of
// audit.k8s.io/v1, ask for, and nothing else. The log goes there, too.
func NewAuditLog(dir, rules string) (AuditLog, error) {
	a := AuditLog{policy: filepath.Join(dir, "policy.yaml"), log: filepath.Join(dir, "audit.log")}
	policy := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n" + rules + "\n- level: None\n"
	return a, os.WriteFile(a.policy, []byte(policy), 0o600)
}

// Flags are those of the API server that is to write the log: Options.Flags.
func (a AuditLog) Flags() map[string]string {
	return map[string]string{"audit-policy-file": a.policy, "audit-log-path": a.log}
}

// Open returns a reader of the log, which stands at its begin. The log is there once the API
// server has started.
func (a AuditLog) Open() (*AuditReader, error) {
	f, err := os.Open(a.log)
	if err != nil {
		return nil, err
	}
	return &AuditReader{file: f, lines: bufio.NewReader(f)}, nil
}

// Events returns what was recorded so far. The API server writes an event before it answers.
func (a AuditLog) Events() ([]auditv1.Event, error) {
	r, err := a.Open()
	if err != nil {
		return nil, err
	}
	events, err := r.Next()
	return events, errors.Join(err, r.Close())
}

// AuditReader reads an audit log while it is written. It is not safe for concurrent use.
type AuditReader struct {
	file  *os.File
	lines *bufio.Reader
	// partial is the line that was not complete when it was read.
	partial string
}

// Next returns what was recorded since it was called last.
func (r *AuditReader) Next() ([]auditv1.Event, error) {
	var out []auditv1.Event
	for {
		text, err := r.lines.ReadString('\n')
		r.partial += text
		if errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return out, err
		}
		var e auditv1.Event
		if err := json.Unmarshal([]byte(r.partial), &e); err != nil {
			return out, fmt.Errorf("audit log: %w", err)
		}
		r.partial = ""
		out = append(out, e)
	}
}

// Close ends the reading.
func (r *AuditReader) Close() error { return r.file.Close() }
