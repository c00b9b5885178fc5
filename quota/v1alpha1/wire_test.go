package v1alpha1

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// stored returns the files of ledgers that released versions wrote, by name.
func stored(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/deviceledger-*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no ledgers of earlier versions: %v", err)
	}
	out := map[string][]byte{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = data
	}
	return out
}

// plain returns YAML as plain values.
func plain(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNothingThatAnEarlierVersionWroteIsLost(t *testing.T) {
	for name, data := range stored(t) {
		t.Run(name, func(t *testing.T) {
			l := &DeviceLedger{}
			if err := yaml.UnmarshalStrict(data, l); err != nil {
				t.Fatalf("a field was renamed or removed: %v", err)
			}
			again, err := yaml.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			got, want := plain(t, again), plain(t, data)
			delete(got["metadata"].(map[string]any), "creationTimestamp") // of an object that is not stored
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("written again (-stored +got):\n%s", diff)
			}
		})
	}
}

func TestFieldsOfALaterVersionDoNotKeepALedgerFromBeingRead(t *testing.T) {
	for name, data := range stored(t) {
		t.Run(name, func(t *testing.T) {
			later := bytes.ReplaceAll(data, []byte("\n  rebuilding: true"), []byte("\n  rebuilding: true\n  later: {a: 1}"))
			later = bytes.ReplaceAll(later, []byte("\n    kind: Pod\n"), []byte("\n    kind: Pod\n    later: [1, 2]\n"))
			if bytes.Equal(later, data) {
				t.Fatal("the file has no place for a later field")
			}
			var want, got DeviceLedger
			if err := yaml.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(later, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-without +with later fields):\n%s", diff)
			}
		})
	}
}
