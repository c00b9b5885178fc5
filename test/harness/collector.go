package harness

import (
	"context"
	"net"
	"slices"
	"sync"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Collector is an OpenTelemetry collector that keeps the spans it is sent. Safe for
// concurrent use.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer

	// Endpoint is its address, for --tracing-endpoint.
	Endpoint string

	server *grpc.Server

	mu sync.Mutex // protects following
	// spans in the order of their arrival
	spans []*tracev1.Span
	// service.name of each who sent any
	services []string
}

// StartCollector starts a collector on loopback.
func StartCollector() (*Collector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &Collector{Endpoint: "http://" + listener.Addr().String(), server: grpc.NewServer()}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	go func() { _ = c.server.Serve(listener) }() // it ends by Stop
	return c, nil
}

// Stop ends the collector.
func (c *Collector) Stop() { c.server.Stop() }

// Export implements the service.
func (c *Collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		if name := Attribute(resource.GetResource().GetAttributes(), "service.name"); !slices.Contains(c.services, name) {
			c.services = append(c.services, name)
		}
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// Spans returns what was sent so far.
func (c *Collector) Spans() []*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Services returns the service.name of each who sent any.
func (c *Collector) Services() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.services)
}

// Attribute returns a text attribute, "" when there is none.
func Attribute(attributes []*commonv1.KeyValue, key string) string {
	for _, a := range attributes {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}
