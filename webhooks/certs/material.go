package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"slices"
	"time"
)

// Keys of the Secret.
const (
	// KeyCA holds the certificates to trust, newest first.
	KeyCA = "ca.crt"
	// KeyCAKey holds the private key of the newest authority.
	KeyCAKey = "ca.key"
	// KeyCert holds the serving certificate and KeyKey its private key.
	KeyCert = "tls.crt"
	KeyKey  = "tls.key"
)

const (
	// backdate lets clients whose clocks are behind accept a new certificate.
	backdate = 5 * time.Minute
	// maxAuthorities bounds ca.crt however often the authority is renewed by hand.
	maxAuthorities = 4
)

// material is the content of the Secret, parsed. Parts that are missing or unusable are nil.
type material struct {
	authorities []*x509.Certificate // newest first
	key         *ecdsa.PrivateKey   // of authorities[0]
	serving     *tls.Certificate    // with Leaf
}

// parse reads the Secret's content. Whatever cannot be used is as if it were missing: it is
// made again.
func parse(data map[string][]byte) material {
	var m material
	for rest := data[KeyCA]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.IsCA {
			m.authorities = append(m.authorities, c)
		}
	}
	m.key = parseKey(data[KeyCAKey])
	if m.key != nil && (len(m.authorities) == 0 || !m.key.PublicKey.Equal(m.authorities[0].PublicKey)) {
		m.key = nil
	}
	if pair, err := tls.X509KeyPair(data[KeyCert], data[KeyKey]); err == nil {
		m.serving = &pair
	}
	return m
}

func parseKey(data []byte) *ecdsa.PrivateKey {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil
	}
	ec, _ := key.(*ecdsa.PrivateKey)
	return ec
}

// encode is the reverse of parse.
func (m *material) encode() (map[string][]byte, error) {
	caKey, err := encodeKey(m.key)
	if err != nil {
		return nil, err
	}
	servingKey, err := encodeKey(m.serving.PrivateKey)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		KeyCA: m.bundle(), KeyCAKey: caKey, KeyCert: encodeCert(m.serving.Certificate[0]), KeyKey: servingKey,
	}, nil
}

// bundle returns the certificates to trust, as PEM.
func (m *material) bundle() []byte {
	var b bytes.Buffer
	for _, c := range m.authorities {
		b.Write(encodeCert(c.Raw))
	}
	return b.Bytes()
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key any) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// renew returns the material with everything that is due at that time made anew, and whether
// that is anything. Trusted tells whether every client was told the newest authority.
func (m material) renew(now time.Time, trusted bool, o Options) (material, bool, error) {
	changed := false
	kept := slices.DeleteFunc(slices.Clone(m.authorities), func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) })
	if len(kept) != len(m.authorities) {
		if len(kept) == 0 || kept[0] != m.authorities[0] {
			m.key = nil
		}
		m.authorities, changed = kept, true
	}
	if m.key == nil || len(m.authorities) == 0 || now.After(due(m.authorities[0])) {
		authority, key, err := newAuthority(now, o.AuthorityLife, o.Random)
		if err != nil {
			return m, false, err
		}
		m.authorities = append([]*x509.Certificate{authority}, m.authorities...)
		m.authorities = m.authorities[:min(len(m.authorities), maxAuthorities)]
		m.key, changed, trusted = key, true, false
	}
	if m.servingDue(now, trusted, o) {
		serving, err := newServing(m.authorities[0], m.key, now, o)
		if err != nil {
			return m, false, err
		}
		m.serving, changed = serving, true
	}
	return m, changed, nil
}

// due is when a certificate is renewed: after two thirds of its life.
func due(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 3 * 2)
}

// servingDue tells whether the serving certificate has to be made anew. As long as the old
// one is good, a new authority does not sign before it is trusted.
func (m *material) servingDue(now time.Time, trusted bool, o Options) bool {
	signer := m.signer()
	if signer == nil || !now.Before(m.serving.Leaf.NotAfter) || !slices.Equal(m.serving.Leaf.DNSNames, o.names()) {
		return true
	}
	if signer != m.authorities[0] {
		return trusted && !now.Before(m.trustedFrom(o))
	}
	return now.After(due(m.serving.Leaf))
}

// signer returns the authority that signed the serving certificate, nil when none did.
func (m *material) signer() *x509.Certificate {
	for _, c := range m.authorities {
		if m.serving != nil && m.serving.Leaf.CheckSignatureFrom(c) == nil {
			return c
		}
	}
	return nil
}

// trustedFrom is when every client has the newest authority.
func (m *material) trustedFrom(o Options) time.Time {
	return m.authorities[0].NotBefore.Add(backdate + o.Propagation)
}

// next is when renew has to be asked again.
func (m *material) next(o Options) time.Time {
	next := due(m.authorities[0])
	if d := due(m.serving.Leaf); d.Before(next) {
		next = d
	}
	if signer := m.signer(); signer != m.authorities[0] {
		if t := m.trustedFrom(o); t.Before(next) {
			next = t
		}
	}
	for _, c := range m.authorities {
		if c.NotAfter.Before(next) {
			next = c.NotAfter
		}
	}
	return next
}

func newAuthority(now time.Time, life time.Duration, random io.Reader) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return nil, nil, err
	}
	template, err := certificate(now, life, "devicequota webhook authority", random)
	if err != nil {
		return nil, nil, err
	}
	// Authorities of the same name are told apart by their key identifier.
	template.Subject.SerialNumber = template.SerialNumber.Text(16)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.MaxPathLenZero = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(random, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	c, err := x509.ParseCertificate(der)
	return c, key, err
}

func newServing(authority *x509.Certificate, signer *ecdsa.PrivateKey, now time.Time, o Options) (*tls.Certificate, error) {
	random, names := o.Random, o.names()
	key, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return nil, err
	}
	template, err := certificate(now, o.ServingLife, names[0], random)
	if err != nil {
		return nil, err
	}
	template.DNSNames = names
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if template.NotAfter.After(authority.NotAfter) {
		template.NotAfter = authority.NotAfter
	}
	der, err := x509.CreateCertificate(random, template, authority, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("sign serving certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func certificate(now time.Time, life time.Duration, name string, random io.Reader) (*x509.Certificate, error) {
	limit := new(big.Int).Lsh(big.NewInt(1), 127)
	serial, err := rand.Int(random, limit)
	if err != nil {
		return nil, err
	}
	if len(name) > 64 { // the limit of a common name (X.520)
		name = "devicequota"
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdate).UTC(), NotAfter: now.Add(life).UTC(),
	}, nil
}
