package main

import (
	"strings"
	"testing"
	"time"
)

func TestVerdictsSayWhichGoalsAreMissed(t *testing.T) {
	at := func(perSecond float64, p99 time.Duration, puts float64, failed int64) []sample {
		return []sample{{perSecond: perSecond, p99: p99, puts: puts, failed: failed}}
	}
	samples := map[load]map[string][]sample{}
	for _, l := range loads {
		samples[l] = map[string][]sample{doNothingName: at(100, time.Second, 0, 0), nativeName: at(90, time.Second, 0, 0),
			"good": at(90, 1500*time.Millisecond, 0.2, 0), "bad": at(79, 1600*time.Millisecond, 0.21, 1)}
	}
	text := verdicts([]subject{{name: nativeName}, {name: "good", replicas: 1}, {name: "bad", replicas: 3}}, samples)
	_, table, _ := strings.Cut(text, ":\n\n")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != len(goals())+2 {
		t.Errorf("%d lines for %d goals:\n%s", len(lines), len(goals()), text)
	}
	for _, line := range lines[2:] {
		if cells := strings.Split(line, "|"); !strings.HasSuffix(strings.TrimSpace(cells[2]), ", met") || !strings.HasSuffix(strings.TrimSpace(cells[3]), ", missed") {
			t.Errorf("want met and missed: %s", line)
		}
	}
}

func TestTheMedianOfTwoIsTheSlower(t *testing.T) {
	if got := median([]sample{{perSecond: 3}, {perSecond: 2}}); got.perSecond != 2 {
		t.Errorf("got %v", got.perSecond)
	}
	if got := median([]sample{{perSecond: 3}, {perSecond: 2}, {perSecond: 1}}); got.perSecond != 2 {
		t.Errorf("got %v", got.perSecond)
	}
}
