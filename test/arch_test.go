// Package test checks what holds across packages: which may import which, and what the
// packages that decide must not do.
package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/devicequota/devicequota/"

// listed is what `go list -json` tells about one package, without its tests.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string // direct
	Deps       []string // direct and indirect
}

// packages returns the module's packages by their path below the module.
func packages(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "../...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	found := map[string]listed{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

// within tells whether the import path is the package or below it.
func within(path, pkg string) bool {
	return path == pkg || strings.HasPrefix(path, pkg+"/")
}

func TestPackagesDependOnlyOnWhatTheyMay(t *testing.T) {
	t.Parallel()
	all := packages(t)
	client, manager, tracing := "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "go.opentelemetry.io"
	for pkg, forbidden := range map[string][]string{
		"quota":          {client, manager, tracing, module + "allocator", module + "quota/ledger", module + "quota/cluster"},
		"quota/v1alpha1": {client, manager, tracing, module + "allocator"},
		"quota/ledger":   {client, manager, tracing, module + "allocator", module + "quota/cluster"},
		"allocator":      {client, manager, module + "quota", module + "allocator/cluster"},
	} {
		p, found := all[pkg]
		if !found {
			t.Errorf("package %s is missing", pkg)
		}
		for _, dep := range p.Deps {
			for _, f := range forbidden {
				if within(dep, f) {
					t.Errorf("%s depends on %s", pkg, dep)
				}
			}
		}
	}
}

func TestOnlyCmdAndTestImportWebhooks(t *testing.T) {
	t.Parallel()
	for name, p := range packages(t) {
		for _, path := range p.Imports {
			if within(path, module+"webhooks") && !within(name, "cmd") && !within(name, "test") && !within(name, "webhooks") {
				t.Errorf("%s imports %s", name, path)
			}
			if within(path, module+"test") && !within(name, "test") {
				t.Errorf("%s imports %s: what ships must not need the tests", name, path)
			}
			if within(path, module+"cmd") && !within(name, "cmd") && !within(name, "test") {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}

// What decides is deterministic: it starts no goroutine and reads no clock.
func TestDecidingPackagesStartNoGoroutinesAndReadNoClock(t *testing.T) {
	t.Parallel()
	all := packages(t)
	for _, pkg := range []string{"quota", "allocator"} {
		files := token.NewFileSet()
		for _, name := range all[pkg].GoFiles {
			file, err := parser.ParseFile(files, filepath.Join(all[pkg].Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range impurities(files, file) {
				t.Error(found)
			}
		}
	}
}

// impurities lists the go statements, readings of the clock and random numbers of a file.
func impurities(files *token.FileSet, file *ast.File) []string {
	var found []string
	for _, spec := range file.Imports {
		switch path := strings.Trim(spec.Path.Value, `"`); {
		case within(path, "k8s.io/utils/clock"), within(path, "math/rand"), within(path, "crypto/rand"):
			found = append(found, fmt.Sprintf("%v: imports %s", files.Position(spec.Pos()), path))
		case path == "time" && spec.Name != nil:
			found = append(found, fmt.Sprintf("%v: imports time by another name", files.Position(spec.Pos())))
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, fmt.Sprintf("%v: starts a goroutine", files.Position(n.Pos())))
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && readsClock(n.Sel.Name) {
				found = append(found, fmt.Sprintf("%v: time.%s", files.Position(n.Pos()), n.Sel.Name))
			}
		}
		return true
	})
	return found
}

// readsClock tells whether the function of package time depends on the current time.
func readsClock(function string) bool {
	switch function {
	case "Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer", "Sleep":
		return true
	}
	return false
}

func TestImpuritiesAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p
import ("time"; "math/rand/v2"; clock "k8s.io/utils/clock")
func f() { go f(); _ = time.Now(); _ = time.Second; _ = rand.Int(); _ = clock.RealClock{} }
`
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"p.go:2:17: imports math/rand/v2", "p.go:2:33: imports k8s.io/utils/clock", "p.go:3:12: starts a goroutine", "p.go:3:24: time.Now"}
	if got := impurities(files, file); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
