package harness

import "context"

// Readiness asks the manager once whether it is ready: nil, or an error with what it answers.
func (m *Manager) Readiness(ctx context.Context) error { return m.probe(ctx) }
