// Package ledger admits charges exactly, with many replicas: the compare-and-swap loop over
// DeviceLedger objects. It decides what may be written when; what an object costs and how a
// ledger is recounted is package quota.
//
// # Words
//
//   - Account: one quota as one replica sees it: its ledger and what the replica remembers of it.
//   - Hold: an admitted charge whose object is not yet observed.
//   - Observation: objects read at known resourceVersions, from caches or live.
//   - Settle: recount a ledger from an observation and drop the holds that ended.
//   - Batch: the requests that one write admits (group commit).
//
// # Invariants
//
//  1. Never over: at every admission used + holds + charge <= hard, for every covering quota and key.
//  2. Never lost: every admitted object is in used or in holds at every moment.
//  3. Never stuck: a hold ends when its object is observed, or when it is HoldAge old and an
//     observation begun after that does not contain the object.
//  4. No false denial: Denied only if used, from an observation begun after the request
//     arrived, plus the charge exceeds hard. If only holds stand in the way: Busy.
//
// # Rules
//
//   - Only an observation or age ends a hold, never a denial, a failed commit or a second
//     decision about the same UID. A decision ignores the hold of its own UID.
//   - An object is observed together with its namespace: who knows the object only can neither
//     count it nor end its hold. Watches of different resources are not in step.
//   - A settle needs an observation at least as new as the ledger in every component, and as
//     new as the replica's own cache in quotas and namespaces.
//   - A ledger ahead of what was read live after it was known was edited. Devices are never read
//     live: ahead of these, another replica has seen more, unless that lasts longer than any watch.
//   - Age is the replica's own monotonic clock since it first saw the hold. Only a live
//     observation, or a cache at or above the version of one, ages holds.
//   - A ledger that was missing is created from a live observation and marked as rebuilding
//     when its quota is older than HoldAge. Only a live observation that began HoldAge after
//     the replica first saw the marker clears it.
//   - A commit settles whenever it may. It must when the replica knows a newer quota or newer
//     namespaces than the ledger, and for the scheduler's claim of a charged pod.
//   - A settle without a request writes what changed, but where admissions come often it leaves it
//     to the next one, for up to Linger, to end the holds of claims that were observed at their charge.
//   - A committer gives way to other replicas after some writes in a row: sooner where others write, too.
//
// # Concurrency
//
// Each account has one committer: a goroutine that starts with the first request that waits
// and ends when none does. It alone writes the account's ledger and takes its requests in
// arrival order. Live observations are made by one goroutine at a time for the whole
// Ledger, which ends when nobody waits. No lock is held while a Store or View is called.
// Lock order: Ledger.mu, account.mu, observer.mu; none is taken while a later one is held.
package ledger
