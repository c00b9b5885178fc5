package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/devicequota/devicequota/allocator"
	d "github.com/devicequota/devicequota/test/differential"
)

// familyTable compares both where a plain backtracking search is exponential.
func familyTable(out *bytes.Buffer, o options) error {
	fmt.Fprintf(out, "One node, cases on which a plain search is exponential. Upstream is stopped after %s of wall time (the scheduler stops after 10 s).\n\n", o.cap)
	fmt.Fprintln(out, "| case | size | answer | upstream CPU | ours CPU | ours steps | goal |")
	fmt.Fprintln(out, "|---|--:|---|--:|--:|--:|--:|")
	for _, f := range d.Families() {
		if !o.match.MatchString(f.Name) {
			continue
		}
		c := f.Build(f.Size)
		theirs, err := upstreamCPU(c, o.cap)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		mine, steps, answer, err := oursCPU(c)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		fmt.Fprintf(out, "| %s | %d | %s | %s | %s | %d | < 50 ms |\n", f.Name, f.Size, answer, theirs, mine, steps)
	}
	fmt.Fprintln(out)
	return nil
}

func upstreamCPU(c *d.Case, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	a, err := d.NewUpstreamMaker(c)(ctx)
	if err != nil {
		return "", err
	}
	start := cpu()
	_, err = a.Allocate(ctx, c.Nodes[0], c.Claims)
	took := cpu() - start
	if errors.Is(err, context.DeadlineExceeded) {
		return "gives up (" + short(took) + ")", nil
	}
	return short(took), err
}

func oursCPU(c *d.Case) (took string, steps int64, answer string, err error) {
	f := d.OurFeatures(c.Features)
	a, err := allocator.New(d.OurInventory(c), allocator.StateOf(c.Allocated, f), allocator.Options{Features: f, NoExplanation: true})
	if err != nil {
		return "", 0, "", err
	}
	var result allocator.Result
	n := 1
	s := once(func() { result, err = a.Allocate(context.Background(), c.Nodes[0], c.Claims) }, &n)
	switch {
	case errors.Is(err, allocator.ErrSteps):
		return "gives up (" + short(s.cpu) + ")", result.Steps, "unknown", nil
	case err != nil:
		return "", 0, "", err
	case result.Unfit != nil:
		answer = string(d.DoesNotFit)
	default:
		answer = string(d.Fits)
	}
	return short(s.cpu), result.Steps, answer, nil
}

// memoryTable measures what an inventory of 40,000 devices takes, and what one event costs.
func memoryTable(out *bytes.Buffer, o options) error {
	if !o.match.MatchString("memory") {
		return nil
	}
	c := gpus(5000)
	c.Allocated = nil
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	start := cpu()
	b := allocator.NewBuilder(allocator.BuilderOptions{})
	for _, class := range c.Classes {
		b.SetClass(class)
	}
	for _, slice := range c.Slices {
		b.SetSlice(slice)
	}
	for _, node := range c.Nodes {
		b.SetNode(node)
	}
	inv := b.Snapshot()
	built := cpu() - start
	after := heap()
	f := allocator.DefaultFeatures()
	a, err := allocator.New(inv, allocator.State{}, allocator.Options{Features: f, NoExplanation: true})
	if err != nil {
		return err
	}
	c.AddClaim(d.Want("r", 9, bigEnough))
	for _, node := range c.Nodes {
		if _, err := a.Allocate(context.Background(), node, c.Claims); err != nil {
			return err
		}
	}
	used := heap()
	i, n := 0, 1
	event := once(func() {
		i++
		b.SetSlice(c.Slices[i%len(c.Slices)].DeepCopy())
		inv = b.Snapshot()
	}, &n)
	const devices = 40_000
	fmt.Fprintln(out, "Inventory of 40,000 devices with 11 attributes and a capacity each (5000 nodes), without the API objects themselves, which an informer holds anyway:")
	fmt.Fprintln(out)
	fmt.Fprintln(out, "| | | goal |")
	fmt.Fprintln(out, "|---|--:|--:|")
	fmt.Fprintf(out, "| memory per device, built | %.0f B | 2048 B |\n", (after-before)/devices)
	fmt.Fprintf(out, "| memory per device, after a search on every node | %.0f B | 2048 B |\n", (used-before)/devices)
	fmt.Fprintf(out, "| building it, CPU | %s | |\n", short(built))
	fmt.Fprintf(out, "| one slice replaced, CPU with the copy of the slice | %s | |\n", short(event.cpu))
	runtime.KeepAlive(inv)
	runtime.KeepAlive(c)
	return nil
}
