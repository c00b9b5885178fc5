package main

import (
	"net/http"
	"strings"
	"testing"
)

// BenchmarkReview is the whole answer to a review of a claim but the connection and the ledger's
// write: of a webhook that does nothing, and of ours.
func BenchmarkReview(b *testing.B) {
	nothing, ours, err := handlers()
	if err != nil {
		b.Fatal(err)
	}
	body, err := reviewOfClaim()
	if err != nil {
		b.Fatal(err)
	}
	for name, h := range map[string]http.Handler{"nothing": nothing, "ours": ours} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := ask(h, body); !strings.Contains(got, `"allowed":true`) {
					b.Fatal(got)
				}
			}
		})
	}
}

func TestBothWebhooksAdmitTheReview(t *testing.T) {
	nothing, ours, err := handlers()
	if err != nil {
		t.Fatal(err)
	}
	body, err := reviewOfClaim()
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]http.Handler{"nothing": nothing, "ours": ours} {
		if got := ask(h, body); !strings.Contains(got, `"allowed":true`) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := ask(ours, body); !strings.Contains(got, `"charge":"team-a: `+string(key)+`=1"`) {
		t.Errorf("ours does not say what it charged: %s", got)
	}
}
