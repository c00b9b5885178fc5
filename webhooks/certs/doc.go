// Package certs gives every replica the serving certificate of the webhooks, without a
// certificate manager in the cluster and without a restart.
//
// One Secret holds a certificate authority of our own and the serving certificate that it
// signed. Every replica watches that Secret and serves what is in it; any replica renews
// what is due, with one compare-and-swap on the Secret, and writes the certificates that
// clients should trust (ca.crt) into the caBundle of the named webhook configurations.
//
// Rotation loses no request: a new authority is first only trusted (ca.crt holds both, newest
// first) and signs the serving certificate no sooner than Options.Propagation later, when
// every API server has seen the new caBundle; the old one stays trusted until it expires. So
//
//   - deleting tls.crt from the Secret renews the serving certificate,
//   - deleting ca.key renews the authority,
//
// both while requests are served. Deleting all of the data starts over, which clients notice
// until the new caBundle has reached them.
//
// Rights, all by resourceNames: get, list, watch and update of the Secret, and of the webhook
// configurations. The Secret has to exist; it may be empty.
package certs
