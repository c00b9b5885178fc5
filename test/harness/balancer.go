package harness

import (
	"io"
	"net"
	"sync"
)

// balancer passes TCP connections on to the managers in turn, as a Service does.
type balancer struct {
	listener net.Listener
	done     sync.WaitGroup

	mu sync.Mutex // protects following
	// addresses of the managers
	backends []string
	next     int
	conns    map[net.Conn]struct{}
	closed   bool
}

func newBalancer() (*balancer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &balancer{listener: l, conns: map[net.Conn]struct{}{}}
	b.done.Add(1)
	go b.accept()
	return b, nil
}

func (b *balancer) address() string { return b.listener.Addr().String() }

// add makes a backend receive new connections.
func (b *balancer) add(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = append(b.backends, address)
}

// remove keeps new connections away from a backend. Open ones stay.
func (b *balancer) remove(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, a := range b.backends {
		if a == address {
			b.backends = append(b.backends[:i:i], b.backends[i+1:]...)
			return
		}
	}
}

func (b *balancer) close() {
	b.mu.Lock()
	b.closed = true
	for c := range b.conns {
		_ = c.Close() // it is given up
	}
	b.mu.Unlock()
	_ = b.listener.Close() // ends accept
	b.done.Wait()
}

func (b *balancer) accept() {
	defer b.done.Done()
	for {
		c, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.done.Add(1)
		go b.serve(c)
	}
}

// dial connects to the next backend that accepts.
func (b *balancer) dial() net.Conn {
	b.mu.Lock()
	n := len(b.backends)
	order := make([]string, 0, n)
	for i := range n {
		order = append(order, b.backends[(b.next+i)%n])
	}
	b.next++
	b.mu.Unlock()
	for _, a := range order {
		if c, err := net.Dial("tcp", a); err == nil {
			return c
		}
	}
	return nil
}

// track remembers the connections for close; false when it is closed already.
func (b *balancer) track(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		b.conns[c] = struct{}{}
	}
	return !b.closed
}

func (b *balancer) forget(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		delete(b.conns, c)
	}
}

func (b *balancer) serve(in net.Conn) {
	defer b.done.Done()
	defer in.Close()
	out := b.dial()
	if out == nil {
		return
	}
	defer out.Close()
	defer b.forget(in, out)
	if !b.track(in, out) {
		return
	}
	end := make(chan struct{}, 2)
	pipe := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src) // the end of a connection is not an error here
		end <- struct{}{}
	}
	go pipe(out, in)
	go pipe(in, out)
	<-end
}
