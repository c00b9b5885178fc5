package harness

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/cert"
)

// servingCert is a serving certificate for loopback in a folder, as a mounted Secret has it.
type servingCert struct {
	dir string
	ca  []byte
}

func newServingCert(dir string) (*servingCert, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	crt, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	for name, data := range map[string][]byte{"tls.crt": crt, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	return &servingCert{dir: dir, ca: crt}, nil
}
