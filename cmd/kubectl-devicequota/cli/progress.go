package cli

import (
	"fmt"
	"io"
	"time"
)

// progress tells somebody who waits at a terminal how far it is.
type progress struct {
	w     io.Writer
	begun time.Time
	last  time.Time
	shown bool
}

const (
	// progressAfter is how long a command may take without a word.
	progressAfter = 2 * time.Second
	// progressEvery is how often the words change.
	progressEvery = 200 * time.Millisecond
)

// newProgress returns one that says nothing unless w is a terminal.
func newProgress(w io.Writer) *progress {
	p := &progress{begun: time.Now()}
	if terminal(w) {
		p.w = w
	}
	return p
}

// show says how far it is. A nil progress says nothing.
func (p *progress) show(format string, args ...any) {
	if p == nil {
		return
	}
	now := time.Now()
	if p.w == nil || now.Sub(p.begun) < progressAfter || now.Sub(p.last) < progressEvery {
		return
	}
	p.last, p.shown = now, true
	fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
}

// done takes the words away.
func (p *progress) done() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
