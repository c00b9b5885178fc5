// Package app assembles the manager from its parts: options to clients, caches, ledger,
// reconcilers, webhooks and servers. It decides nothing. Run may be called several times in
// one process.
package app
