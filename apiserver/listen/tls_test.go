package listen

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// The certificate is kept across restarts and is valid for the addresses on which the agent can
// serve. An unreadable one is reported.
func TestCertificate(t *testing.T) {
	root := t.TempDir()
	first, text, err := certificate(root)
	if err != nil {
		t.Fatal(err)
	}
	again, same, err := certificate(root)
	if err != nil || !bytes.Equal(text, same) || !again.Leaf.Equal(first.Leaf) {
		t.Errorf("another one after a restart: %v", err)
	}
	block, _ := pem.Decode(text)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(block))
	for _, name := range []string{"127.0.0.1", "::1", "localhost"} {
		if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: "192.0.2.1", Roots: pool}); err == nil {
		t.Error("it is good for any address")
	}
	path := filepath.Join(root, "tls.pem")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := certificate(root); err == nil {
		t.Error("nonsense is a certificate")
	}
}

// A certificate or a token that was damaged on disk does not prevent the agent from starting: both
// are created again, and the remains of the certificate are set aside.
func TestDamagedCertificateAndToken(t *testing.T) {
	for _, text := range []string{"", "nonsense", "-----BEGIN CERTIFICATE-----\nMIIB"} {
		root := t.TempDir()
		path := filepath.Join(root, "tls.pem")
		for _, path := range []string{path, filepath.Join(root, "token")} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		k := &keptCertificate{root: root, log: slog.New(slog.DiscardHandler), renewed: func([]byte) error { return nil }}
		if err := k.renew(); err != nil || k.cert == nil {
			t.Fatalf("%q: %v", text, err)
		}
		if aside, err := os.ReadFile(path + ".damaged"); err != nil || string(aside) != text {
			t.Errorf("%q: aside there is %q, %v", text, aside, err)
		}
		if again, _, err := certificate(root); err != nil || !again.Leaf.Equal(k.cert.Leaf) {
			t.Errorf("%q: another one after a restart: %v", text, err)
		}
		token, err := Token(root)
		if again, _ := Token(root); err != nil || token != again || token == "" {
			t.Errorf("%q: the tokens are %q and %q, %v", text, token, again, err)
		}
	}
}

// An agent that runs for years always has a valid certificate, and writes each new one into
// kubectl's kubeconfig.
func TestCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		k := &keptCertificate{root: t.TempDir(), log: slog.New(slog.DiscardHandler), renewed: func([]byte) error { written++; return nil }}
		if err := k.renew(); err != nil {
			t.Fatal(err)
		}
		first := k.cert.Leaf
		for time.Since(first.NotBefore) < 12*365*24*time.Hour {
			cert, err := k.get(nil)
			if err != nil || time.Now().After(cert.Leaf.NotAfter) {
				t.Fatalf("%v: expired %v, %v", time.Now(), cert.Leaf.NotAfter, err)
			}
			time.Sleep(24 * time.Hour)
		}
		if written != 2 || k.cert.Leaf.Equal(first) {
			t.Errorf("written %d times, another: %v", written, !k.cert.Leaf.Equal(first))
		}
		// If the file becomes unreadable, the old certificate is still used.
		if err := os.WriteFile(filepath.Join(k.root, "tls.pem"), []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if cert, err := k.get(nil); err != nil || cert == nil {
			t.Errorf("%v, %v", cert, err)
		}
	})
}

// One port accepts TLS and plain HTTP, and a client that sends nothing does not block others.
func TestEitherListener(t *testing.T) {
	cert, text, err := certificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := eitherListener{plain, &tls.Config{Certificates: []tls.Certificate{cert}}}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello "+r.Host) })}
	go s.Serve(l)
	defer s.Close()
	silent, err := net.Dial("tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for _, scheme := range []string{"http", "https", "https", "http"} {
		resp, err := client.Get(scheme + "://" + plain.Addr().String() + "/")
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "hello "+plain.Addr().String() {
			t.Errorf("%s: %q, %v", scheme, body, err)
		}
	}
	other := &http.Client{Transport: &http.Transport{}}
	if resp, err := other.Get("https://" + plain.Addr().String() + "/"); err == nil {
		resp.Body.Close()
		t.Error("who does not know the certificate takes it")
	}
}
