// Command mutate breaks one rule of the ledger at a time and runs its tests, which must fail:
// a rule whose loss no test notices is not tested, or not needed. It patches copies of the
// sources and builds with them in the originals' place, which stay as they are.
//
//	go run ./quota/ledger/internal/mutate [-run regexp] [-v]
//
// It prints which test caught which mutation and ends with 1 when one survived.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	run := flag.String("run", "", "only the mutations whose names match")
	verbose := flag.Bool("v", false, "print the tests' output")
	traces := flag.Int("traces", 300, "traces per configuration of the model test")
	flag.Parse()
	if err := mutate(*run, *traces, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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

func mutate(run string, traces int, verbose bool) error {
	only, err := regexp.Compile(run)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is in the system's folder for that
	var survived []string
	for _, m := range mutations() {
		if !only.MatchString(m.name) {
			continue
		}
		begun := time.Now()
		caught, err := m.test(dir, traces, verbose)
		elapsed := time.Since(begun).Round(100 * time.Millisecond)
		switch {
		case err != nil:
			survived = append(survived, m.name)
			fmt.Printf("INVALID   %-55s %v\n", m.name, err)
			continue
		case caught == "":
			survived = append(survived, m.name)
			fmt.Printf("SURVIVED  %-55s (%v)\n", m.name, elapsed)
			continue
		}
		fmt.Printf("caught    %-55s by %s (%v)\n", m.name, caught, elapsed)
	}
	if len(survived) > 0 {
		return fmt.Errorf("%w: %s", errSurvived, strings.Join(survived, ", "))
	}
	return nil
}

// test returns which test failed first and why, empty when none did.
func (m *mutation) test(dir string, traces int, verbose bool) (string, error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "ledger.test")
	build := exec.Command("go", "test", "-c", "-o", bin, "-overlay", overlay, "./quota/ledger")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("does not compile: %w\n%s", err, out)
	}
	tests := m.tests
	if tests == "" {
		tests = "."
	}
	cmd := exec.Command(bin, "-test.run", tests, "-test.failfast", "-test.timeout", "10m", fmt.Sprintf("-model.traces=%d", traces))
	cmd.Dir = "quota/ledger"
	out, err := cmd.CombinedOutput()
	if verbose {
		fmt.Printf("%s", out)
	}
	var failed *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, &failed):
		return firstFailure(out), nil
	default:
		return "", err
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
		if message == "" && regexp.MustCompile(`^\w+_test\.go:\d+: `).MatchString(s) && !strings.Contains(s, "seeds from") {
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
