package main

import "slices"

const (
	plan    = "quota/ledger/plan.go"
	account = "quota/ledger/account.go"
	commit  = "quota/ledger/commit.go"
	create  = "quota/ledger/create.go"
	observe = "quota/ledger/observer.go"
	admit   = "quota/ledger/admit.go"
	deny    = "quota/ledger/deny.go"
	tally   = "quota/ledger/tally.go"
	write   = "quota/ledger/write.go"
	settle  = "quota/settle.go"
	decide  = "quota/decide.go"
	parse   = "quota/parse.go"
	world   = "quota/ledger/world_test.go"
)

// mutations are the rules of the ledger, each broken. Those of the fake API server break
// what a View or Store promises. Each names the tests that may catch it, to be quick.
func mutations() []mutation {
	return slices.Concat(versionMutations(), ageMutations(), denialMutations(), lifeMutations(), countMutations())
}

func one(name, tests, file, old, replacement string) mutation {
	return mutation{name, []patch{{file, old, replacement}}, "TestModel/^(" + tests + ")$"}
}

// byScript is a mutation that a scripted test or the model test may catch.
func byScript(script, name, tests, file, old, replacement string) mutation {
	m := one(name, tests, file, old, replacement)
	m.tests += "|" + script
	return m
}

const atLeast = "return o.Version.AtLeast(stored)"

// versionMutations: what is newer than what.
func versionMutations() []mutation {
	return []mutation{
		one("no compare-and-swap", "two-replicas", commit, "	stored, err := a.l.store.Update(ctx, p.next)\n", `	if cur, err := a.l.store.GetLive(ctx, a.name); err == nil {
		p.next.UID, p.next.ResourceVersion = cur.UID, cur.ResourceVersion
	}
	stored, err := a.l.store.Update(ctx, p.next)
`),
		one("one version instead of the vector", "two-replicas|relabels", settle, atLeast, "return o.Version[Claims] >= stored[Claims]"),
		one("vector without claims", "two-replicas", settle, atLeast, "stored[Claims] = 0\n\t"+atLeast),
		one("vector without pods", "two-replicas", settle, atLeast, "stored[Pods] = 0\n\t"+atLeast),
		one("vector without namespaces", "relabels", settle, atLeast, "stored[Namespaces] = 0\n\t"+atLeast),
		one("record the list's own version", "two-replicas", settle, "stored.Max(o.Recorded)", "stored.Max(o.Version)"),
		{"record covered objects only, and less than before", []patch{
			{settle, "	stored, _ := StoredVersions(&l)\n	out.Observed = stored.Max(o.Recorded).Versions()", "	out.Observed = o.Recorded.Versions()"},
			{world, "	for _, uid := range uids {\n", `	for _, k := range []kind{kClaim, kPod} {
		o.Recorded[components[k]] = 0
		for _, x := range s.objs[k] {
			if ns := named(s.objs[kNS], "", x.ns); q != nil && ns != nil && q.Selector.Matches(ns.labels, nil) {
				o.Recorded[components[k]] = max(o.Recorded[components[k]], x.rv)
			}
		}
	}
	for _, uid := range uids {
`},
		}, "TestModel/^(relabels|everything)$|TestW6"},
		one("compare the largest version of several lists", "two-replicas", world, "o.version[k] == 0 || v < o.version[k]", "v > o.version[k]"),
		one("settle from an older cache", "two-replicas", settle, atLeast, "_ = stored\n\treturn true"),
		one("version ahead of the content", "two-replicas", world, "		s.version[k], s.objs[k], s.gone[k] = r.c[k].shown, r.c[k].objs, r.c[k].gone\n", `		s.version[k], s.objs[k], s.gone[k] = r.c[k].shown, r.c[k].objs, r.c[k].gone
		if r.c[k].pos < len(r.w.res[k].log) {
			s.version[k] = max(s.version[k], r.w.res[k].log[r.c[k].pos].rv)
		}
`),
		byScript("TestAnObjectInAProject", "observed in a project that is not known", "projects-appear", world, `if x != nil && named(s.objs[kNS], "", x.ns) != nil {`, "if x != nil {"),
		{"order quotas by generation", []patch{
			{parse, "ParseVersion(crq.ResourceVersion); err", "ParseVersion(strconv.FormatInt(crq.Generation, 10)); err"},
			{parse, "	\"strings\"\n", "	\"strconv\"\n	\"strings\"\n"},
		}, "TestModel/^quota-recreated$"},
		{"no settle on newer coverage", []patch{
			{plan, "must := cached.Recorded[quota.Namespaces] > observed[quota.Namespaces] ||", "must := observed[quota.Namespaces] < 0 ||"},
		}, "TestModel/^relabels$|TestNewerCoverage"},
		byScript("TestW8", "settle by a live list older than the own cache", "relabels|everything.*", plan, "	return live.Version[quota.Namespaces] >=", "	return true || live.Version[quota.Namespaces] >="),
		byScript("TestALedgerAhead", "undo what another replica's cache saw first", "two-replicas", plan, "maySettle(l, &read) && !p.a.aheadLong(stored)", "false"),
		one("charge by an older quota than the ledger's", "keys-come-and-go", plan, "		return outdated\n", "		return held\n"),
		byScript("TestANewKey", "new limits without a settle", "keys-come-and-go", plan, "	default:\n		p.behind = must\n", "	default:\n		_ = must\n		p.next.Status = quota.Adopt(*l, cached.Quota)\n"),
	}
}

// ageMutations: when a hold may end unobserved.
func ageMutations() []mutation {
	return []mutation{
		byScript("TestAHoldOutlives", "age of 33 s", "the-edge-of-age", "quota/ledger/ledger.go", "	o.HoldAge = cmp.Or(o.HoldAge, DefaultHoldAge)\n", "	o.HoldAge = cmp.Or(o.HoldAge, DefaultHoldAge) * 33 / 40\n"),
		byScript("TestW2", "age from a stalled cache", "two-replicas", plan, "	if versions, begun := a.l.live.newest(); !begun.IsZero() && cached.Version.AtLeast(versions) {\n		cached.begun = begun\n	}", "	cached.begun = a.l.o.Clock.Now()"),
		byScript("TestACacheOlder", "age from any cache after a live list", "two-replicas", plan, "!begun.IsZero() && cached.Version.AtLeast(versions) {", "!begun.IsZero() && len(versions) > 0 {"),
		one("age without a later observation", "two-replicas", plan, "p.a.aged(p.look.begun)", "p.a.aged(p.a.l.o.Clock.Now())"),
		{"wall clock", []patch{
			{plan, "	\"k8s.io/apimachinery/pkg/types\"\n", "	\"k8s.io/apimachinery/pkg/api/resource\"\n	\"k8s.io/apimachinery/pkg/types\"\n"},
			{plan, "	p.added = append(p.added, h)\n", `	l.Holds[indexOf(l.Holds, h.UID)].Full = corev1.ResourceList{"wall": *resource.NewQuantity(p.a.l.o.Clock.Now().UnixMilli(), resource.DecimalSI)}
	p.added = append(p.added, h)
`},
			{plan, "p.a.aged(p.look.begun)", `func(uid types.UID) bool {
		wall := p.base.Status.Holds[indexOf(p.base.Status.Holds, uid)].Full["wall"]
		return !p.look.begun.IsZero() && p.look.begun.UnixMilli() >= wall.Value()+p.a.l.o.HoldAge.Milliseconds()
	}`},
		}, "TestModel/^two-replicas$"},
	}
}

// dropHolds takes the request's holds out of its ledgers.
const dropHolds = `	for _, c := range a.covers {
		cur, err := a.l.store.GetLive(context.Background(), c.quota.Name)
		if err != nil {
			continue
		}
		if i := indexOf(cur.Status.Holds, a.r.UID); i >= 0 {
			cur.Status.Holds = append(cur.Status.Holds[:i:i], cur.Status.Holds[i+1:]...)
			_, _ = a.l.store.Update(context.Background(), cur)
		}
	}
`

// denialMutations: what a denial needs, and what it leaves.
func denialMutations() []mutation {
	return []mutation{
		{"join a list already running", []patch{
			{observe, "	o.next = nil\n	o.begun = now\n", "	o.begun = now\n"},
			{observe, "	o.recorder.Observed(o.clock.Since(begun), err)\n", `	o.recorder.Observed(o.clock.Since(begun), err)
	o.mu.Lock()
	if o.next == f {
		o.next = nil
	}
	o.mu.Unlock()
`},
		}, "TestModel/^two-replicas$"},
		one("deny by a list that ended before the request arrived", "two-replicas", observe, "if o.last != nil && !o.last.begun.Before(t) {", "if o.last != nil && o.clock.Since(o.last.begun) < time.Second {"),
		byScript("TestW5", "deny by the cache", "two-replicas", admit, "	s, err := a.l.live.after(ctx, t)\n", "	s, err := &sight{Observation: a.l.view.Cached(), begun: a.l.o.Clock.Now()}, ctx.Err()\n"),
		byScript("TestW5", "deny a charge beyond hard by the cached quota", "limits-change", deny, "		q, err := a.l.view.Quota(ctx, c.quota.Name)\n", "		q, err := c.quota, ctx.Err()\n"),
		byScript("TestW1", "drop the hold on a denial", "one-replica|two-quotas-three-deliveries", admit, "	d := a.decision(Denied)\n", dropHolds+"	d := a.decision(Denied)\n"),
		byScript("TestW1", "drop the holds of a request that fails elsewhere", "two-quotas-three-deliveries", admit, "	d := a.decision(Busy)\n", dropHolds+"	d := a.decision(Busy)\n"),
		one("deny because holds stand in the way", "two-replicas", deny, "quota.Add(quota.Only(o.Used, quota.SortedKeys(amounts)), amounts)", "quota.Add(quota.Only(c.out.ledger.Status.Hard, quota.SortedKeys(amounts)), amounts)"),
	}
}

// lifeMutations: ledgers that are created, lost, adopted and removed.
func lifeMutations() []mutation {
	return []mutation{
		byScript("TestW3", "no rebuilding window", "ledger-deleted", create, "l.Status.Rebuilding = true", "l.Status.Rebuilding = false"),
		{"rebuilding in memory only", []patch{
			{create, "	l.Status.Rebuilding = true\n", "	l.Status.Rebuilding = false\n"},
			{create, "	a.remember(stored", "	a.mu.Lock()\n	a.marked, a.markedAt = stored.UID, a.l.o.Clock.Now()\n	a.mu.Unlock()\n	a.remember(stored"},
			{plan, "	if l.Rebuilding {\n", "	if l.Rebuilding || p.a.marked == p.base.UID && p.a.l.o.Clock.Now().Before(p.a.markedAt.Add(p.a.l.o.HoldAge)) {\n"},
		}, "TestModel/^ledger-deleted$|TestW3"},
		byScript("TestASettleThatOnly", "a release lingers", "two-replicas", write, "if n := used[k]; n.Cmp(is.Used[k]) != 0 {", "if n := used[k]; n.Cmp(is.Used[k]) < 0 {"),
		byScript("TestASettleThatOnly", "a hold lingers for ever", "two-replicas", write, "!until.After(now)", "until.Before(time.Time{}) || now.IsZero()"),
		byScript("TestW3", "rebuilding ended by a cache", "ledger-deleted", plan, "p.look.source == SourceLive && p.a.unmarked(p.base.UID, p.look.begun)", "p.a.unmarked(p.base.UID, p.a.l.o.Clock.Now())"),
		byScript("TestARebuildingIsNot", "rebuilding ended by any live list", "ledger-deleted", plan, "p.a.unmarked(p.base.UID, p.look.begun)", "p.a.unmarked(p.base.UID, p.a.l.o.Clock.Now())"),
		byScript("TestAQuotaRecreated", "owner reference", "quota-recreated", create, "	if !slices.Contains(l.Finalizers", `	l.OwnerReferences = []metav1.OwnerReference{{UID: l.Status.CRQUID}}
	if !slices.Contains(l.Finalizers`),
		byScript("TestALedgerAdopted", "remove without the resourceVersion", "quota-recreated", "quota/ledger/settle.go", "	err = l.store.Delete(ctx, stored)\n", `	if cur, err := l.store.GetLive(ctx, name); err == nil {
		stored = cur
	}
	err = l.store.Delete(ctx, stored)
`),
		byScript("TestW7", "count nothing for a quota that is gone", "quota-recreated", plan, `seen.Quota == nil && base.Status.CRQUID != ""`, "false"),
		byScript("TestALedgerIsCreated", "create a ledger from the cache", "quota-recreated|ledger-deleted.*", create, "	o := s.Observe(a.name,", "	_ = s\n	o := a.l.view.Cached().Observe(a.name,"),
		byScript("TestALostLedger", "do not put own holds back", "ledger-deleted.*", account, "		out = append(out, *h.hold.DeepCopy())\n", ""),
	}
}

// countMutations: what holds count.
func countMutations() []mutation {
	return []mutation{
		{"merge pod holds by name", []patch{
			{decide, "case h.Kind == v1alpha1.HoldPod:", "case false:"},
			{tally, "(h.Kind == v1alpha1.HoldPod || ", "("},
			{tally, "if h.Kind == v1alpha1.HoldClaim && !h.Advisory {", "if !h.Advisory {"},
		}, "TestModel/^extended-pods$|TestW4"},
		byScript("TestW4", "zero-excess claims without a hold", "extended-pods", plan, "	case own < 0 && p.full(e):\n", "	case own < 0 && len(quota.Positive(h.Charge)) == 0:\n	case own < 0 && p.full(e):\n"),
		byScript("TestW4", "a scheduler's claim beside its pod for ever", "extended-pods", settle, "	h.Charge = Excess(h.Full, podCharge(h.PodUID, holds, o))\n", "	h.Charge = corev1.ResourceList{}\n"),
		one("holds do not count", "two-replicas", tally, `quota.Add(l.Used, quota.HoldSum(l.Holds, "", nil, false))`, "quota.Copy(l.Used)"),
		one("a lost answer counts as no hold", "two-replicas", commit, "	a.remember(stored,", "	stored.Status.Holds = stored.Status.Holds[:len(stored.Status.Holds)-min(1, len(p.added))]\n	a.remember(stored,"),
	}
}
