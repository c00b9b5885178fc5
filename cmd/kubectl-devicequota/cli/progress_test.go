package cli

import (
	"bytes"
	"testing"
	"time"
)

func TestProgressIsForThoseWhoWaitAtATerminal(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := newProgress(&b) // no terminal
	p.begun = p.begun.Add(-time.Hour)
	p.show("read %d objects", 1)
	p.done()
	(*progress)(nil).show("nobody waits")
	if b.Len() > 0 {
		t.Errorf("got %q, want nothing", b.String())
	}
	p = &progress{w: &b, begun: time.Now()}
	p.show("too early")
	if b.Len() > 0 {
		t.Errorf("got %q, want nothing within two seconds", b.String())
	}
	p.begun = p.begun.Add(-progressAfter)
	p.show("read %d objects", 7)
	p.show("read %d objects", 8) // too soon after the last words
	p.done()
	p.done()
	if want := "\r\x1b[Kread 7 objects\r\x1b[K"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
