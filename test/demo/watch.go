package main

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/devicequota/devicequota/quota/v1alpha1"
)

// mostCharged returns the largest charge of GPUs, used and held, that the ledger showed
// while do ran.
func (p *player) mostCharged(do func()) string {
	watcher, err := client.NewWithWatch(p.cp.Config, client.Options{Scheme: p.cp.Client.Scheme()})
	if err != nil {
		p.stop(err)
		return ""
	}
	ctx, cancel := context.WithCancel(p.ctx)
	w, err := watcher.Watch(ctx, &v1alpha1.DeviceLedgerList{})
	if err != nil {
		cancel()
		p.stop(err)
		return ""
	}
	var most resource.Quantity
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range w.ResultChan() {
			if l, ok := e.Object.(*v1alpha1.DeviceLedger); ok && l.Name == "team-a" {
				if c := charged(l, gpuKey); c.Cmp(most) > 0 {
					most = c
				}
			}
		}
	})
	do()
	w.Stop()
	cancel()
	wg.Wait()
	return most.String()
}

// charged is what a ledger counts for a key: used and holds.
func charged(l *v1alpha1.DeviceLedger, key corev1.ResourceName) resource.Quantity {
	sum := l.Status.Used[key].DeepCopy()
	for _, h := range l.Status.Holds {
		sum.Add(h.Charge[key])
	}
	return sum
}
