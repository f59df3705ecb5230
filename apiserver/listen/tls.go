package listen

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	"github.com/crisp-cri/crisp/internal/periodic"
)

// A damagedError says that the certificate's file has none.
type damagedError struct{ error }

// certificate returns the self-signed certificate in <root>/tls.pem, which also has its key. It
// makes a new one, for ten years, if it is missing or expires within 30 days.
func certificate(root string) (cert tls.Certificate, pemText []byte, err error) {
	path := filepath.Join(root, "tls.pem")
	text, err := os.ReadFile(path)
	if err == nil {
		if cert, err = tls.X509KeyPair(text, text); err != nil {
			return cert, nil, damagedError{fmt.Errorf("%s: %w", path, err)}
		}
		if time.Until(cert.Leaf.NotAfter) > 30*24*time.Hour {
			return cert, text, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cert, nil, fmt.Errorf("%s: %w", path, err)
	}
	if text, err = selfSigned(); err != nil {
		return cert, nil, err
	}
	if err := atomicfile.Write(path, text, 0o600); err != nil {
		return cert, nil, err
	}
	cert, err = tls.X509KeyPair(text, text)
	return cert, text, err
}

// A keptCertificate is the certificate of a listener, renewed while the listener is open.
type keptCertificate struct {
	root    string
	renewed func(pemText []byte) error // called with a new certificate before it is used
	log     *slog.Logger

	mu    sync.Mutex
	cert  *tls.Certificate // guarded by mu
	again time.Time        // when to check it again; guarded by mu
}

// certificatePeriod is the minimum time between two checks of the certificate, which new
// connections trigger.
const certificatePeriod = time.Hour

func (k *keptCertificate) renew() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.renewLocked()
}

func (k *keptCertificate) renewLocked() error {
	cert, text, err := certificate(k.root)
	if _, damaged := errors.AsType[damagedError](err); damaged && k.cert == nil {
		path := filepath.Join(k.root, "tls.pem")
		k.log.Error("certificate not read: made a new one", "path", path, "err", err, "aside", os.Rename(path, path+".damaged") == nil)
		cert, text, err = certificate(k.root)
	}
	if err == nil && (k.cert == nil || !bytes.Equal(k.cert.Certificate[0], cert.Certificate[0])) {
		err = k.renewed(text)
	}
	if err != nil {
		return err
	}
	k.cert, k.again = &cert, time.Now().Add(certificatePeriod)
	return nil
}

// get implements tls.Config.GetCertificate. If it cannot renew the certificate it returns the
// old one.
func (k *keptCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if periodic.Past(k.again) {
		if err := k.renewLocked(); err != nil {
			k.again = time.Now().Add(certificatePeriod)
			k.log.Error("certificate not renewed", "err", err)
		}
	}
	return k.cert, nil
}

func selfSigned() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	begin := time.Now().Add(-time.Hour) // clocks differ
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "crisp agent"}, NotBefore: begin, NotAfter: begin.AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, // it signs itself
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...), nil
}

// writeKubeconfig writes <root>/kubeconfig, for kubectl to speak to the agent. It names the
// https URL, since kubectl sends tokens by TLS only.
func writeKubeconfig(root, address, token string, pemText []byte) error {
	block, _ := pem.Decode(pemText)
	if block == nil {
		return errors.New("certificate of the agent: it is not PEM")
	}
	authority := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(block))
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: crisp
  cluster: {server: "https://%s", certificate-authority-data: %s}
users:
- name: crisp
  user: {token: %q}
contexts:
- name: crisp
  context: {cluster: crisp, user: crisp}
current-context: crisp
`, address, authority, token)
	path := filepath.Join(root, "kubeconfig")
	if was, err := os.ReadFile(path); err == nil && string(was) == text {
		return nil
	}
	return atomicfile.Write(path, []byte(text), 0o600)
}

// An eitherListener speaks TLS with clients that start a TLS handshake, and plain HTTP with all
// others.
type eitherListener struct {
	net.Listener
	config *tls.Config
}

func (l eitherListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &eitherConn{Conn: c, config: l.config}, nil
}

// An eitherConn decides by the client's first byte: in both protocols the client speaks first.
type eitherConn struct {
	net.Conn
	config *tls.Config
	once   sync.Once
	inner  net.Conn
	err    error
}

// handshakeRecord is the type of a TLS record that starts a handshake (RFC 8446, 5.1).
const handshakeRecord = 0x16

func (c *eitherConn) decide() error {
	c.once.Do(func() {
		in := bufio.NewReader(c.Conn)
		first, err := in.Peek(1)
		if err != nil {
			c.err = err
			return
		}
		var conn net.Conn = &peeked{c.Conn, in}
		if first[0] == handshakeRecord {
			conn = tls.Server(conn, c.config)
		}
		c.inner = conn
	})
	return c.err
}

func (c *eitherConn) Read(p []byte) (int, error) {
	if err := c.decide(); err != nil {
		return 0, err
	}
	return c.inner.Read(p)
}

func (c *eitherConn) Write(p []byte) (int, error) {
	if err := c.decide(); err != nil {
		return 0, err
	}
	return c.inner.Write(p)
}

// A peeked connection first reads the peeked bytes.
type peeked struct {
	net.Conn
	in *bufio.Reader
}

func (p *peeked) Read(b []byte) (int, error) { return p.in.Read(b) }
