package input

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newReader(t testing.TB) *Reader {
	t.Helper()
	r, err := NewReader()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// read reads a text as standard input and returns kind and line of each object.
func read(t testing.TB, text string) (kinds []string, skipped int, err error) {
	t.Helper()
	set, err := newReader(t).Read([]string{Stdin}, Options{Stdin: strings.NewReader(text)})
	for _, d := range set.Documents {
		kinds = append(kinds, d.Object.GetObjectKind().GroupVersionKind().Kind+" "+d.At())
	}
	return kinds, len(set.Skipped), err
}

func TestDocumentsAreReadInOrder(t *testing.T) {
	t.Parallel()
	pod := func(n string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + n + "}\nspec: {containers: []}\n"
	}
	cases := map[string]struct {
		text    string
		want    []string
		skipped int
	}{
		"one":                        {pod("a"), []string{"Pod <stdin>:1"}, 0},
		"two":                        {pod("a") + "---\n" + pod("b"), []string{"Pod <stdin>:1", "Pod <stdin>:6"}, 0},
		"empty ones between":         {"---\n---\n# nothing\n---\n" + pod("a") + "---\n", []string{"Pod <stdin>:5"}, 0},
		"a comment first":            {"# hello\n\n" + pod("a"), []string{"Pod <stdin>:3"}, 0},
		"content behind the dashes":  {"--- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n", []string{"Pod <stdin>:1"}, 0},
		"Windows' line ends":         {strings.ReplaceAll(pod("a")+"---\n"+pod("b"), "\n", "\r\n"), []string{"Pod <stdin>:1", "Pod <stdin>:6"}, 0},
		"a byte order mark":          {"\xef\xbb\xbf" + pod("a"), []string{"Pod <stdin>:1"}, 0},
		"JSON":                       {"{\"apiVersion\": \"v1\",\n\t\"kind\": \"Pod\"}", []string{"Pod <stdin>:1"}, 0},
		"a list":                     {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n- {apiVersion: v1, kind: Secret}\n", []string{"Pod <stdin>:1"}, 1},
		"a typed list":               {"apiVersion: resource.k8s.io/v1\nkind: ResourceClaimList\nitems:\n- {metadata: {name: a}}\n", []string{"ResourceClaim <stdin>:1"}, 0},
		"kinds without devices":      {"apiVersion: v1\nkind: Service\n---\napiVersion: example.com/v1\nkind: Pod\n", nil, 2},
		"scenarios":                  {"apiVersion: devicequota.io/v1alpha1\nkind: Scenario\nwhatever: true\n", nil, 1},
		"nothing":                    {"", nil, 0},
		"an anchor":                  {"apiVersion: v1\nkind: Pod\nmetadata: {name: &n a, labels: {n: *n}}\n", []string{"Pod <stdin>:1"}, 0},
		"dashes in a block of text":  {"apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    a: |\n      ---\n      x\n", []string{"Pod <stdin>:1"}, 0},
		"JSON values in a row":       {"{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}\n{\"apiVersion\": \"v1\",\n\"kind\": \"Node\"}{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}", []string{"Pod <stdin>:1", "Node <stdin>:2", "Pod <stdin>:3"}, 0},
		"a directive":                {"%YAML 1.2\n---\n" + pod("a"), []string{"Pod <stdin>:3"}, 0},
		"the end of a document mark": {pod("a") + "...\n", []string{"Pod <stdin>:1"}, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, skipped, err := read(t, c.text)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" || skipped != c.skipped {
				t.Errorf("error %v, %d skipped, want %d; (-want +got):\n%s", err, skipped, c.skipped, diff)
			}
		})
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	t.Parallel()
	list := "apiVersion: v1\nkind: List\nitems:\n"
	nested := strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 9) + strings.Repeat("]}", 9)
	cases := map[string]struct{ text, want string }{
		"unknown field in a list item":        {list + "- {apiVersion: v1, kind: Pod}\n- apiVersion: v1\n  kind: Pod\n  spce: {}\n", `<stdin>:7: Pod: unknown field "spce"`},
		"unknown field behind a dot":          {"apiVersion: v1\nkind: Node\nmetadata:\n  labels: {a.b/c: d}\nspec:\n  podCIDR: x\n  x.y: z\n", `<stdin>:7: Node: unknown field "spec.x.y"`},
		"no object":                           {"- a\n- b\n", "<stdin>:1: a JSON array is no Kubernetes object"},
		"a string":                            {"hello\n", "<stdin>:1: a JSON string is no Kubernetes object"},
		"no apiVersion":                       {"kind: Pod\n", "<stdin>:1: Pod: apiVersion is missing"},
		"an odd apiVersion":                   {"apiVersion: a/b/c\nkind: Pod\n", "<stdin>:1: apiVersion: unexpected GroupVersion string: a/b/c"},
		"nothing of an object":                {"a: b\n", "<stdin>:1: no Kubernetes object: apiVersion and kind are missing"},
		"an unknown kind of ours":             {"apiVersion: resource.k8s.io/v1\nkind: ResourceClaimz\n", `<stdin>:1: apiVersion "resource.k8s.io/v1" has no kind "ResourceClaimz"`},
		"a field given twice":                 {"apiVersion: v1\nkind: Pod\nkind: Pod\n", `<stdin>:3: YAML: key "kind" already set in map`},
		"a tab":                               {"apiVersion: v1\nkind: Pod\nspec:\n\tcontainers: []\n", "<stdin>:4: YAML: found character that cannot start any token"},
		"a number for a name":                 {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: 7\n", "<stdin>:4: metadata.name: a JSON number is not what belongs there"},
		"a letter that YAML takes for a bool": {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: n\n", "<stdin>:4: metadata.name: true or false is not what belongs there; YAML takes y, n,"},
		"an amount that is none":              {"apiVersion: quota.openshift.io/v1\nkind: ClusterResourceQuota\nspec: {quota: {hard: {pods: many}}}\n", `<stdin>:3: ClusterResourceQuota: spec.quota.hard.pods: quantities must match the regular expression`},
		"an amount deep inside":               {"apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nspec:\n  devices:\n  - {name: a, capacity: {memory: {value: 1Gi}}}\n  - name: b\n    capacity:\n      memory: {value: 1Gi}\n      example.com/cores: {value: many}\n", `<stdin>:9: ResourceSlice: spec.devices[1].capacity.example.com/cores.value: quantities must match`},
		"lists in lists":                      {nested, "lists in lists, more than 4 deep"},
		"a list that is none":                 {"apiVersion: v1\nkind: List\nitems: 7\n", "<stdin>:3: items: a JSON number is not what belongs there"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := read(t, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
			var e *Error
			if !errors.As(err, &e) || e.Line < 1 || e.Line > 1+strings.Count(c.text, "\n") {
				t.Errorf("not a line of the input: %+v", e)
			}
		})
	}
}

// What is wrong in every item of a long list is told in reasonable time.
func TestManyErrorsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	const many = 5000
	_, _, err := read(t, "apiVersion: v1\nkind: List\nitems:\n"+strings.Repeat("- {apiVersion: v1, kind: Pod, bodies: []}\n", many))
	if err == nil || strings.Count(err.Error(), "\n")+1 != many || !strings.HasSuffix(err.Error(), `<stdin>:5003: Pod: unknown field "bodies"`) {
		t.Errorf("want %d errors, got %.300v", many, err)
	}
}

// A document that says much with few letters is refused, not expanded.
func TestBombsAreRefused(t *testing.T) {
	t.Parallel()
	aliases := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		aliases += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 9), ", "))
	}
	for name, text := range map[string]string{
		"aliases":            aliases,
		"deep YAML":          "apiVersion: v1\nkind: Pod\nspec: " + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "\n",
		"deep JSON":          `{"apiVersion":"v1","kind":"Pod","spec":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}",
		"deep flow mappings": "apiVersion: v1\nkind: Pod\nspec: " + strings.Repeat("{a: ", 20000) + strings.Repeat("}", 20000) + "\n",
		"deep indents":       deepIndents(),
		"a circle":           "apiVersion: v1\nkind: Pod\nspec: &a {containers: [*a]}\n",
	} {
		if _, _, err := read(t, text); err == nil || !strings.HasPrefix(err.Error(), "<stdin>:") {
			t.Errorf("%s: got %.200v", name, err)
		}
	}
}

func deepIndents() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Pod\n")
	for i := range 3000 {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestALinkToAFolderIsAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "real", "a.yaml"), []byte("apiVersion: v1\nkind: Pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	files, err := Files(link, false)
	if diff := cmp.Diff([]string{filepath.Join(link, "a.yaml")}, files); err != nil || diff != "" {
		t.Errorf("error %v, files (-want +got):\n%s", err, diff)
	}
}

func TestFoldersAreReadByName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.yaml": "apiVersion: v1\nkind: Node\n", "a.yml": "apiVersion: v1\nkind: Pod\n", "readme.md": "no manifest",
		"sub/c.json": `{"apiVersion":"v1","kind":"Namespace"}`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		recursive bool
		want      []string
	}{{false, []string{"Pod", "Node"}}, {true, []string{"Pod", "Node", "Namespace"}}} {
		set, err := newReader(t).Read([]string{dir}, Options{Recursive: c.recursive})
		var got []string
		for _, d := range set.Documents {
			got = append(got, d.Object.GetObjectKind().GroupVersionKind().Kind)
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("recursive %v, error %v, (-want +got):\n%s", c.recursive, err, diff)
		}
	}
	if _, err := newReader(t).Read([]string{filepath.Join(dir, "sub"), t.TempDir()}, Options{}); err == nil || !strings.Contains(err.Error(), "the folder has no") {
		t.Errorf("want an error for an empty folder, got %v", err)
	}
	if _, err := newReader(t).Read([]string{Stdin}, Options{}); err == nil {
		t.Error("want an error without standard input")
	}
}

// Whatever is read, there is no panic, and every error names a line that is there.
func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"*/*.yaml"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", "examples", pattern))
		if err != nil || len(files) == 0 {
			f.Fatalf("no examples: %v", err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
		}
	}
	f.Add([]byte("--- {a: &a [*a]}\n---\nkind: List\nitems: [{}]\n"))
	reader := newReader(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 1<<14 {
			return
		}
		set := &Set{}
		for _, err := range reader.decode(raw, "fuzz.yaml", set) {
			var e *Error
			if !errors.As(err, &e) || e.Line < 1 || e.File != "fuzz.yaml" {
				t.Errorf("no place: %#v", err)
			}
		}
		for _, d := range set.Documents {
			if d.Object.GetObjectKind().GroupVersionKind().Kind == "" || d.Line < 1 {
				t.Errorf("object without kind or line: %+v", d)
			}
		}
	})
}
