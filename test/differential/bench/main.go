// Command bench compares the CPU time and the allocations of our allocator with those of
// upstream's structured allocator, as kube-scheduler 1.37 runs it by default, in one
// process and interleaved. It prints Markdown, or replaces the marked section of a file.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"regexp"
	"strings"
	"time"

	"k8s.io/dynamic-resource-allocation/structured"
)

// Markers of the section that -write replaces.
const (
	begin = "<!-- allocator:begin -->"
	end   = "<!-- allocator:end -->"
)

func main() {
	write := flag.String("write", "", "replace the marked section of this Markdown file instead of printing")
	limit := flag.Duration("cap", 2*time.Second, "how long upstream may search one exponential case")
	only := flag.String("run", "", "only the rows whose name matches this expression")
	rounds := flag.Int("rounds", 5, "how often each side of a row is measured")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal(err)
	}
	structured.EnableAllocators() // upstream chooses, as in the scheduler
	var out bytes.Buffer
	if err := report(&out, options{cap: *limit, match: match, rounds: *rounds}); err != nil {
		log.Fatal(err)
	}
	if *write == "" {
		fmt.Print(out.String())
		return
	}
	if err := replace(*write, out.String()); err != nil {
		log.Fatal(err)
	}
}

// options of a run.
type options struct {
	cap    time.Duration
	match  *regexp.Regexp
	rounds int
}

// replace puts the text between the markers of the file.
func replace(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has no section between %s and %s", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+text+end+after), 0o644)
}

// report measures everything and writes the section.
func report(out *bytes.Buffer, o options) error {
	fmt.Fprintf(out, "Measured on %s: %s.\n\n", time.Now().UTC().Format("2006-01-02"), machine())
	if err := plainTable(out, o); err != nil {
		return err
	}
	if err := familyTable(out, o); err != nil {
		return err
	}
	return memoryTable(out, o)
}

// machine names the CPU.
func machine() string {
	model := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores, %s", cores(), model)
}
