package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Feature is a part of Kubernetes that came with a gate of its own.
type Feature struct {
	// Name is what people call it.
	Name string
	// Gate is its feature gate, and Since the minor version of Kubernetes 1 that had it first.
	Gate  string
	Since int
}

// Kubernetes is what the programs in KUBEBUILDER_ASSETS are and can do.
type Kubernetes struct {
	// Version without v, for example 1.37.2, and its second number.
	Version string
	Minor   int
	// off has the gates by name: true for those that have to be switched on. Gates that cannot be
	// switched any more are missing.
	off map[string]bool
}

// AskKubernetes asks kube-apiserver for its version and its feature gates.
func AskKubernetes(ctx context.Context) (*Kubernetes, error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return nil, errors.New("KUBEBUILDER_ASSETS is not set: run it through make")
	}
	program := filepath.Join(assets, "kube-apiserver")
	version, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("version of kube-apiserver: %w", err)
	}
	help, err := exec.CommandContext(ctx, program, "--help").Output()
	if err != nil {
		return nil, fmt.Errorf("feature gates of kube-apiserver: %w", err)
	}
	return parseKubernetes(string(version), string(help))
}

var (
	versionOutput = regexp.MustCompile(`^Kubernetes v(1\.(\d+)\.\S+)`)
	gateInHelp    = regexp.MustCompile(`(?m)\b(\w+)=true\|false \(\w+ - default=(true|false)\)`)
)

// parseKubernetes reads what kube-apiserver prints for --version and --help, which does not list
// gates that are always on.
func parseKubernetes(version, help string) (*Kubernetes, error) {
	v := versionOutput.FindStringSubmatch(version)
	if v == nil {
		return nil, fmt.Errorf("version of kube-apiserver: %q", version)
	}
	minor, err := strconv.Atoi(v[2])
	if err != nil {
		return nil, err
	}
	k := &Kubernetes{Version: v[1], Minor: minor, off: map[string]bool{}}
	for _, gate := range gateInHelp.FindAllStringSubmatch(help, -1) {
		k.off[gate[1]] = gate[2] == "false"
	}
	if len(k.off) == 0 {
		return nil, errors.New("kube-apiserver --help lists no feature gates")
	}
	return k, nil
}

// complete is the first minor version of Kubernetes 1 that has everything that the tests show.
const complete = 37

// LeaveOut ends a test that shows what this Kubernetes lacks: an older one leaves it out, one that has
// everything fails.
func (k *Kubernetes) LeaveOut(t testing.TB, why string) {
	t.Helper()
	if k.Minor >= complete {
		t.Fatalf("nothing may be left out from Kubernetes 1.%d on: %s", complete, why)
	}
	t.Skip(why)
}

// Has tells whether the feature is there, if need be behind its gate.
func (k *Kubernetes) Has(f Feature) bool {
	_, gate := k.off[f.Gate]
	return gate || k.Minor >= f.Since
}

// SwitchOn returns the value of --feature-gates that switches on those of the features that are
// there but off by default; empty when there are none.
func (k *Kubernetes) SwitchOn(features ...Feature) string {
	var on []string
	for _, f := range features {
		if k.off[f.Gate] {
			on = append(on, f.Gate+"=true")
		}
	}
	slices.Sort(on)
	return strings.Join(slices.Compact(on), ",")
}
