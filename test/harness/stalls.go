package harness

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Stalls is a way to the API server on which the watches of a resource can be made to stand
// still: the connection stays, and nothing comes.
type Stalls struct {
	// Kubeconfig leads a manager this way: --kubeconfig.
	Kubeconfig string

	server *http.Server
	done   chan struct{}

	mu sync.Mutex // protects following
	// moves is closed when the resource's watches go on; a resource that is not in it moves.
	moves map[string]chan struct{}
}

// StartStalls starts a way for the manager's identity on which everything moves.
func (c *ControlPlane) StartStalls() (*Stalls, error) {
	config, _, err := c.User("system:serviceaccount:"+Namespace+":"+ServiceAccount,
		"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:"+Namespace)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Stalls{Kubeconfig: filepath.Join(c.Dir, "stalls.kubeconfig"), done: make(chan struct{}), moves: map[string]chan struct{}{}}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // a watch is told at once
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Query().Get("watch") == "true" {
				r.Body = &stallingBody{ReadCloser: r.Body, s: s, resource: path.Base(r.Request.URL.Path), done: r.Request.Context().Done()}
			}
			return nil
		},
	}
	s.server = &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(l) // it ends with Close
	}()
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: way, cluster: {server: "http://%s"}}]
contexts: [{name: way, context: {cluster: way}}]
current-context: way
`, l.Addr())
	if err := os.WriteFile(s.Kubeconfig, []byte(kubeconfig), 0o600); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Stall makes all watches of a resource (by its plural name) stand still until the returned
// function is called.
func (s *Stalls) Stall(resource string) (resume func()) {
	ch := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moves[resource] = ch
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.moves[resource] == ch {
			delete(s.moves, resource)
			close(ch)
		}
	}
}

// Stop ends the way, and all connections on it.
func (s *Stalls) Stop() error {
	err := s.server.Close()
	<-s.done
	return err
}

// stallingBody is the answer to a watch.
type stallingBody struct {
	io.ReadCloser
	s        *Stalls
	resource string
	done     <-chan struct{}
}

// Read holds back what came while the resource stands still.
func (b *stallingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.s.mu.Lock()
	moves := b.s.moves[b.resource]
	b.s.mu.Unlock()
	if moves != nil {
		select {
		case <-moves:
		case <-b.done:
		}
	}
	return n, err
}
