package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devicequota/devicequota/cmd/kubectl-devicequota/report"
)

// Whatever is asked about, check answers with a report, or says what is wrong with the input.
func FuzzCheck(f *testing.F) {
	var cluster string
	for _, name := range []string{"cluster/classes.yaml", "cluster/nodes-gpu.yaml", "cluster/node-mig.yaml", "cluster/projects.yaml", "quotas/team-a.yaml"} {
		cluster += read(f, examples+name) + "\n---\n"
	}
	files, err := filepath.Glob(examples + "claims/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no examples: %v", err)
	}
	for _, file := range append(files, "testdata/deployment.yaml", "testdata/odd-quotas.yaml", "testdata/unfit.yaml", "testdata/bad.yaml") {
		f.Add(read(f, file), false)
	}
	f.Add(dump, true)
	f.Add(cluster, true)
	f.Fuzz(func(t *testing.T, text string, allocate bool) {
		if len(text) > 1<<15 || strings.Contains(text, "000") {
			return // thousands of pods take their time
		}
		args := []string{"check", "-f", "-", "-o", "json"}
		if allocate {
			args = append(args, "--allocate")
		}
		out, errs, code := run(t, cluster+text, args...)
		switch code {
		case ExitOK, ExitNo:
			var r report.Report
			if err := json.Unmarshal([]byte(out), &r); err != nil || (r.Summary.Denied > 0) != (code == ExitNo) {
				t.Errorf("exit code %d, error %v\n%s", code, err, out)
			}
		case ExitBad:
			if !strings.Contains(errs, "error: <stdin>:") || out != "" {
				t.Errorf("no place of the error:\n%s%s", errs, out)
			}
		default:
			t.Errorf("exit code %d", code)
		}
		if again, _, _ := run(t, cluster+text, args...); again != out {
			t.Errorf("two runs differ:\n%s\n%s", out, again)
		}
	})
}

func read(t testing.TB, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
