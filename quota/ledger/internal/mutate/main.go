// Command mutate breaks one rule of the ledger at a time and runs its tests, which must fail:
// a rule whose loss no test notices is not tested, or not needed. It patches copies of the
// sources and builds with them in the originals' place, which stay as they are.
//
//	go run ./quota/ledger/internal/mutate [-run regexp] [-tests regexp] [-v]
//
// It prints which test caught which mutation, in the order of the list, and ends with 1 when
// one survived.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	var o options
	run := flag.String("run", "", "only the mutations whose names match")
	flag.StringVar(&o.tests, "tests", "", "-run expression of the tests to run instead of those that each mutation names")
	flag.BoolVar(&o.verbose, "v", false, "print the tests' output")
	flag.IntVar(&o.traces, "traces", 300, "traces per configuration of the model test")
	flag.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "mutations tested at the same time; each takes one core")
	flag.Parse()
	var err error
	if o.only, err = regexp.Compile(*run); err == nil {
		err = mutate(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type options struct {
	only             *regexp.Regexp
	tests            string
	verbose          bool
	traces, parallel int
}

// patch replaces text in one file. The old text must be there exactly once.
type patch struct {
	file, old, new string
}

// mutation is one rule broken.
type mutation struct {
	name    string
	patches []patch
	// tests is the -run expression of the tests that may catch it; empty: all.
	tests string
}

var errSurvived = errors.New("mutations survived")

func mutate(o options) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is in the system's folder for that
	chosen := slices.DeleteFunc(mutations(), func(m mutation) bool { return !o.only.MatchString(m.name) })
	results := make([]chan result, len(chosen))
	slots := make(chan struct{}, max(1, o.parallel))
	for i := range chosen {
		results[i] = make(chan result, 1)
	}
	go func() {
		for i := range chosen {
			slots <- struct{}{}
			go func() {
				results[i] <- chosen[i].try(filepath.Join(dir, strconv.Itoa(i)), o)
				<-slots
			}()
		}
	}()
	var survived []string
	for i := range chosen {
		r := <-results[i]
		if r.print(chosen[i].name); r.err != nil || r.caught == "" {
			survived = append(survived, chosen[i].name)
		}
	}
	if len(survived) > 0 {
		return fmt.Errorf("%w: %s", errSurvived, strings.Join(survived, ", "))
	}
	fmt.Printf("all %d mutations were caught\n", len(chosen))
	return nil
}

// result is what became of a mutation.
type result struct {
	// caught is the test that failed first and why, empty when none did.
	caught  string
	err     error
	output  []byte
	elapsed time.Duration
}

func (r result) print(name string) {
	_, _ = os.Stdout.Write(r.output) // as fmt.Printf does
	switch {
	case r.err != nil:
		fmt.Printf("INVALID   %-55s %v\n", name, r.err)
	case r.caught == "":
		fmt.Printf("SURVIVED  %-55s (%v)\n", name, r.elapsed)
	default:
		fmt.Printf("caught    %-55s by %s (%v)\n", name, r.caught, r.elapsed)
	}
}

// try tests the mutation in a folder of its own.
func (m *mutation) try(dir string, o options) (r result) {
	begun := time.Now()
	if r.err = os.Mkdir(dir, 0o700); r.err != nil {
		return r
	}
	r.caught, r.output, r.err = m.test(dir, o)
	if !o.verbose {
		r.output = nil
	}
	r.elapsed = time.Since(begun).Round(100 * time.Millisecond)
	return r
}

// test returns which test failed first and why, empty when none did, and the tests' output.
func (m *mutation) test(dir string, o options) (caught string, output []byte, err error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", nil, err
	}
	bin := filepath.Join(dir, "ledger.test")
	build := exec.Command("go", "test", "-c", "-o", bin, "-overlay", overlay, "./quota/ledger")
	if out, err := build.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("does not compile: %w\n%s", err, out)
	}
	tests := cmp.Or(o.tests, m.tests, ".")
	cmd := exec.Command(bin, "-test.run", tests, "-test.failfast", "-test.timeout", "20m", fmt.Sprintf("-model.traces=%d", o.traces))
	cmd.Dir = "quota/ledger"
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return "", out, os.RemoveAll(dir) // each takes megabytes
	case errors.As(err, &failed):
		return firstFailure(out), out, os.RemoveAll(dir)
	default:
		return "", out, err
	}
}

// overlay writes the patched files and returns go build's overlay file.
func (m *mutation) overlay(dir string) (string, error) {
	contents := map[string]string{}
	for _, p := range m.patches {
		text, ok := contents[p.file]
		if !ok {
			b, err := os.ReadFile(p.file)
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if n := strings.Count(text, p.old); n != 1 {
			return "", fmt.Errorf("%s has %d places to patch, want 1: %q", p.file, n, p.old)
		}
		contents[p.file] = strings.Replace(text, p.old, p.new, 1)
	}
	replace := map[string]string{}
	for file, text := range contents {
		path, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		mutant := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(mutant, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[path] = mutant
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, b, 0o600)
}

// firstFailure returns the innermost failed test and its message.
func firstFailure(out []byte) string {
	var tests []string
	message := ""
	for line := range bytes.Lines(out) {
		s := strings.TrimSpace(string(line))
		if name, ok := strings.CutPrefix(s, "--- FAIL: "); ok {
			tests = append(tests, strings.Fields(name)[0])
		}
		if message == "" && regexp.MustCompile(`^\w+_test\.go:\d+: `).MatchString(s) && !strings.Contains(s, "seeds from") && !strings.Contains(s, " executions, ") {
			_, message, _ = strings.Cut(s, ": ")
		}
		if message == "" && strings.HasPrefix(s, "panic: ") {
			message = s
		}
	}
	if len(tests) == 0 {
		return "a crash: " + message
	}
	slices.SortStableFunc(tests, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return tests[0] + ": " + message
}
