package cluster

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/devicequota/devicequota/quota/ledger"
	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// newsOf is what somebody else than a Ledger did to a ledger: the reason of an Event.
type newsOf string

const (
	ledgerLost   newsOf = "LedgerLost"
	ledgerEdited newsOf = "LedgerEdited"
)

func (n newsOf) text() string {
	if n == ledgerLost {
		return "the DeviceLedger was deleted; it is counted again from what exists, and until that is complete, about 40 s, claims are asked to come back"
	}
	return "the DeviceLedger was written by somebody else; its limits, its use and what it has observed are put right"
}

// ledgerNews notices what nobody but a Ledger should do to ledgers. Safe for concurrent use.
type ledgerNews struct {
	mu sync.Mutex // protects the following
	// last is the newest known state of each ledger.
	last map[string]*v1alpha1.DeviceLedger
	// untold are the news of each.
	untold map[string][]newsOf
}

func newLedgerNews() *ledgerNews {
	return &ledgerNews{last: map[string]*v1alpha1.DeviceLedger{}, untold: map[string][]newsOf{}}
}

// heard takes the next known state of a ledger, nil when it is gone. It must not be changed.
func (n *ledgerNews) heard(name string, l *v1alpha1.DeviceLedger) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.last[name]
	if l == nil {
		delete(n.last, name)
	} else {
		n.last[name] = l
	}
	switch {
	case before == nil:
	case l == nil, before.UID != l.UID:
		n.addLocked(name, ledgerLost)
	case ledger.Edited(before, l):
		n.addLocked(name, ledgerEdited)
	}
}

func (n *ledgerNews) addLocked(name string, what newsOf) {
	if !slices.Contains(n.untold[name], what) {
		n.untold[name] = append(n.untold[name], what)
	}
}

// take returns the news of a ledger since it was last asked.
func (n *ledgerNews) take(name string) []newsOf {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.untold[name]
	delete(n.untold, name)
	return out
}

// tellNews sends an Event on the quota for each.
func (u *Usage) tellNews(name string) {
	news := u.news.take(name)
	crq := u.o.View.ClusterResourceQuota(name)
	if u.o.Recorder == nil || crq == nil {
		return
	}
	for _, n := range news {
		u.o.Recorder.Eventf(crq, nil, corev1.EventTypeWarning, string(n), "Settle", "%s", n.text())
	}
}
