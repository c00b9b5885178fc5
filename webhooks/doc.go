// Package webhooks answers the API server's admission reviews for claims, templates, pods and
// quotas: it decodes whatever version a request carries, asks the ledger, and says yes or no
// with reasons.
//
// # Flow
//
// suite.go maps paths to handlers, each behind a guard (guard.go) that bounds requests in
// number and time, answers while nothing can be decided yet, and counts. A handler decodes
// (decode.go), validates what nobody may have (validate.go), asks the policies (policies.go)
// and the ledger, and hands what it found to response.go, the only file that knows HTTP codes
// and audit annotations. Reasons are a closed set (reasons.go).
//
// Handlers depend on the small interfaces in deps.go only, so that the CLI runs the same ones
// offline.
//
// # Open and closed
//
// failurePolicy, in markers.go, says what happens when nobody answers. What is answered is
// never an HTTP error: overload is 429 and an outage 500 inside the AdmissionResponse, also
// for webhooks that fail open, except that the early check of pods' claims admits during an
// outage: the claims are checked anyway.
//
// # Side effects
//
// Only ledger holds, none for a dry run; no other object is ever written. A request that is
// refused for another reason leaves no hold.
package webhooks
