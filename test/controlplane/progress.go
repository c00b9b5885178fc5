package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// tailLines is how many of the go command's last lines an error shows.
const tailLines = 40

// progress counts what the go command prints (with -v, a line per package or
// download) and tells about it from time to time. It is safe for concurrent use.
type progress struct {
	out   io.Writer
	what  string
	begin time.Time
	done  chan struct{}
	ended sync.WaitGroup

	mu       sync.Mutex // protects following
	partial  []byte     // an unfinished line
	last     []string   // the last lines, at most tailLines
	packages int
	modules  int
}

// startProgress begins to report every so often; stop ends it.
func startProgress(out io.Writer, what string, every time.Duration) *progress {
	p := &progress{out: out, what: what, begin: time.Now(), done: make(chan struct{})}
	p.ended.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.report()
			case <-p.done:
				return
			}
		}
	})
	return p
}

// Write takes output of the go command.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, b...)
	for {
		line, rest, found := bytes.Cut(p.partial, []byte("\n"))
		if !found {
			return len(b), nil
		}
		p.countLocked(string(line))
		p.partial = rest
	}
}

func (p *progress) countLocked(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		p.modules++
	case line != "" && !strings.Contains(line, " "):
		p.packages++
	}
	p.last = append(p.last, line)
	if len(p.last) > tailLines {
		p.last = p.last[1:]
	}
}

// report prints one line about how far the build is.
func (p *progress) report() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "controlplane: %s: %v elapsed, %d modules downloaded, %d packages compiled\n",
		p.what, time.Since(p.begin).Round(time.Second), p.modules, p.packages)
}

// stop ends the reports and returns the time since the start.
func (p *progress) stop() time.Duration {
	close(p.done)
	p.ended.Wait()
	return time.Since(p.begin).Round(time.Second)
}

// tail returns the last lines of the go command's output.
func (p *progress) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(append(p.last[:len(p.last):len(p.last)], string(p.partial)), "\n")
}
