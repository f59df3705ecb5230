package agent

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// The certificate stays over restarts, is good for the addresses that the agent can
// serve at, and one that nobody can read is told of.
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

// One port takes TLS and plain HTTP, and who says nothing holds up nobody.
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
