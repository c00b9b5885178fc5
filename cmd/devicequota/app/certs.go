package app

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// CAName is the file, beside a self-signed certificate, that clients trust it by.
const CAName = "ca.crt"

// selfSignedFor is how long a self-signed certificate is good.
const selfSignedFor = 365 * 24 * time.Hour

// ensureSelfSigned makes a CA and a serving certificate unless the folder has a certificate
// that is good for the names for another day. Replicas may share the folder.
func ensureSelfSigned(o *Options, now time.Time) error {
	certFile, keyFile := filepath.Join(o.CertDir, o.CertName), filepath.Join(o.CertDir, o.KeyName)
	err := checkCertificate(certFile, keyFile, o.SelfSignedNames, now.Add(24*time.Hour))
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		if _, caErr := os.Stat(filepath.Join(o.CertDir, CAName)); caErr != nil {
			return fmt.Errorf("certificate in %q is not self-signed by us and will not be replaced: %w", o.CertDir, err)
		}
	}
	ca, cert, key, err := selfSigned(o.SelfSignedNames, now)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.CertDir, 0o750); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
		mode os.FileMode
	}{{filepath.Join(o.CertDir, CAName), ca, 0o644}, {keyFile, key, 0o600}, {certFile, cert, 0o644}} {
		if err := os.WriteFile(f.name, f.data, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// checkCertificate returns why the pair is not good for the names until the time; it wraps
// fs.ErrNotExist when there is none.
func checkCertificate(certFile, keyFile string, names []string, until time.Time) error {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return err
	}
	if until.After(leaf.NotAfter) {
		return fmt.Errorf("certificate ends at %v", leaf.NotAfter)
	}
	for _, name := range names {
		if err := leaf.VerifyHostname(name); err != nil {
			return err
		}
	}
	return nil
}

// selfSigned returns a CA certificate and a serving certificate with key, all PEM.
func selfSigned(names []string, now time.Time) (ca, cert, key []byte, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	caTemplate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "devicequota self-signed CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedFor),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, caTemplate, caTemplate, caKey.Public(), caKey)
	if err != nil {
		return nil, nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		return nil, nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "devicequota"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedFor),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, caTemplate, serverKey.Public(), caKey)
	if err != nil {
		return nil, nil, nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		return nil, nil, nil, err
	}
	return encode("CERTIFICATE", caDER), encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER), nil
}

func encode(kind string, der []byte) []byte {
	var b bytes.Buffer
	if err := pem.Encode(&b, &pem.Block{Type: kind, Bytes: der}); err != nil {
		return nil // a bytes.Buffer takes everything
	}
	return b.Bytes()
}
