package image_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/image"
	"github.com/crisp-cri/crisp/image/registry"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/opencontainers/go-digest"
)

// signedOnly is a policy that wants a signature of s for what is below scope, and
// refuses all else.
func signedOnly(t testing.TB, s *signer, scope string) string {
	t.Helper()
	return string(mustJSON(t, map[string]any{
		"default": []any{map[string]string{"type": "reject"}},
		"transports": map[string]any{"docker": map[string]any{
			scope: []any{map[string]any{"type": "sigstoreSigned", "keyPath": s.path}},
		}},
	}))
}

// refused says that err is what the kubelet takes for a bad signature.
func refused(t testing.TB, what string, err error) {
	t.Helper()
	pe, ok := errors.AsType[*registry.PullError](err)
	if !ok || pe.Reason != registry.SignatureValidationFailed || !strings.HasPrefix(err.Error(), "SignatureValidationFailed: ") {
		t.Errorf("%s: error is %v, want %s", what, err, registry.SignatureValidationFailed)
	}
}

// A policy of the node accepts what is signed with the right key for the name that
// is asked for, and nothing else.
func TestSignature(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	ours, theirs := newSigner(t), newSigner(t)
	for tag, sign := range map[string]func(digest.Digest){
		"signed":   func(d digest.Digest) { reg.sign(ours, "app", d, reg.host+"/app:signed") },
		"unsigned": func(digest.Digest) {},
		"stranger": func(d digest.Digest) { reg.sign(theirs, "app", d, reg.host+"/app:stranger") },
		"renamed":  func(d digest.Digest) { reg.sign(ours, "app", d, reg.host+"/app:other") },
		"replayed": func(d digest.Digest) { reg.sign(ours, "app", digest.FromString("x"), reg.host+"/app:replayed") },
	} {
		sign(reg.push("app", tag, build(t, "gzip", tag)))
	}
	policy := filepath.Join(p.dir, "strict.json")
	write(t, policy, signedOnly(t, ours, reg.host))
	p.trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})
	img := p.pull(reg.host + "/app:signed")
	for _, tag := range []string{"unsigned", "stranger", "renamed", "replayed"} {
		_, err := p.store.Pull(t.Context(), reg.host+"/app:"+tag, registry.Caller{})
		refused(t, tag, err)
	}
	if list := p.store.List(); len(list) != 1 || list[0].ID != img.ID {
		t.Errorf("the store has %v", list)
	}
	// What the policy names and does not find is no reason to accept.
	if err := os.Remove(ours.path); err != nil {
		t.Fatal(err)
	}
	_, err := p.store.Pull(t.Context(), reg.host+"/app:signed", registry.Caller{})
	refused(t, "without key", err)
}

// An image that one namespace has pulled is not for another whose policy is
// stricter, at a pull or without one; what was signed is, also after a restart and
// without the registry.
func TestNamespacePolicy(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	s := newSigner(t)
	p.trusting(image.Settings{})
	write(t, filepath.Join(p.dir, "policies", "strict.json"), signedOnly(t, s, reg.host))
	strict := registry.Caller{Namespace: "strict"}

	signed, plain := reg.host+"/app:signed", reg.host+"/app:plain"
	top := reg.push("app", "signed", build(t, "gzip", "signed"))
	reg.sign(s, "app", top, signed)
	bare := reg.push("app", "plain", build(t, "gzip", "plain"))
	a, b := p.pull(signed), p.pull(plain)

	allowed := func(want bool, namespace, name, id string) {
		t.Helper()
		err := p.store.Allowed(t.Context(), namespace, name, id)
		if want && err != nil {
			t.Errorf("in %q %s is not allowed: %v", namespace, name, err)
		}
		if !want {
			refused(t, namespace+" "+name, err)
		}
	}
	check := func() {
		t.Helper()
		allowed(true, "lax", plain, b.ID)
		allowed(true, "", "", b.ID)
		allowed(false, "strict", plain, b.ID)
		allowed(false, "strict", "", b.ID)
		allowed(true, "strict", signed, a.ID)
		allowed(true, "strict", "", a.ID)
		allowed(true, "strict", a.ID, a.ID)
		allowed(true, "strict", strings.TrimPrefix(a.ID, "sha256:"), a.ID)
		allowed(true, "strict", reg.host+"/app@"+top.String(), a.ID)
		allowed(false, "strict", reg.host+"/app:other", a.ID) // signed under another name
	}
	check()
	if _, err := p.store.Pull(t.Context(), plain, strict); err == nil {
		t.Error("strict has pulled what is not signed")
	} else {
		refused(t, "pull by tag", err)
	}
	_, err := p.store.Pull(t.Context(), reg.host+"/app@"+bare.String(), strict)
	refused(t, "pull by digest", err)
	for range 2 { // the second time nobody is asked
		reg.asked("")
		if _, err := p.store.Pull(t.Context(), reg.host+"/app@"+top.String(), strict); err != nil {
			t.Error(err)
		}
	}
	if got := reg.asked(""); len(got) != 0 {
		t.Errorf("asked for %v", got)
	}

	p.trusting(image.Settings{})
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "closed", http.StatusInternalServerError)
		return true
	})
	check()
	reg.intercept(nil)

	// Signed after it was pulled: the next pull finds out, without another download.
	reg.sign(s, "app", bare, plain)
	if _, err := p.store.Pull(t.Context(), plain, strict); err != nil {
		t.Fatal(err)
	}
	allowed(true, "strict", plain, b.ID)

	// The same manifest elsewhere, signed for that name, takes nothing away.
	reg.push("copy", "v1", build(t, "gzip", "signed"))
	reg.sign(newSigner(t), "copy", top, reg.host+"/copy:v1")
	if img := p.pull(reg.host + "/copy:v1"); img.ID != a.ID {
		t.Errorf("image is %s, want %s", img.ID, a.ID)
	}
	allowed(true, "strict", signed, a.ID)
	allowed(false, "strict", reg.host+"/copy:v1", a.ID)

	if _, err := p.store.Pull(t.Context(), plain, registry.Caller{Namespace: "../strict"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("error is %v, want one of kind %v", err, fault.Invalid)
	}
	write(t, filepath.Join(p.dir, "policies", "broken.json"), "{")
	if _, err := p.store.Pull(t.Context(), plain, registry.Caller{Namespace: "broken"}); err == nil {
		t.Error("a broken policy accepts")
	}
}

// Keyless signatures: a certificate of Fulcio's for somebody's address, good for some
// minutes, and Rekor's word that the signature was made within them. Both are kept
// with the signature, so that no log and no authority is asked.
func TestKeylessSignature(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	ca, rekor := newSigner(t), newSigner(t)
	then := time.Now().Add(-24 * time.Hour)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: then.Add(-time.Hour), NotAfter: then.Add(48 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootPEM := certificate(t, root, root, &ca.key.PublicKey, ca.key)
	write(t, filepath.Join(p.dir, "fulcio.pem"), rootPEM)
	policy := filepath.Join(p.dir, "keyless.json")
	write(t, policy, fmt.Sprintf(`{"default":[{"type":"sigstoreSigned","rekorPublicKeyPath":%q,
		"fulcio":{"caPath":%q,"oidcIssuer":"https://accounts.example","subjectEmail":"dev@example.com"}}]}`, rekor.path, filepath.Join(p.dir, "fulcio.pem")))
	p.trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})

	sign := func(tag, email string, log *ecdsa.PrivateKey) {
		key := newSigner(t).key
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: then, NotAfter: then.Add(10 * time.Minute), EmailAddresses: []string{email},
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
			ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte("https://accounts.example")}}}
		leafPEM := certificate(t, leaf, root, &key.PublicKey, ca.key)
		top := reg.push("app", tag, build(t, "gzip", tag))
		reg.signWith(key, "app", top, reg.host+"/app:"+tag, func(payload, sig []byte) map[string]string {
			sum := sha256.Sum256(payload)
			body := mustJSON(t, map[string]any{"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": map[string]any{
				"data":      map[string]any{"hash": map[string]string{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])}},
				"signature": map[string]any{"content": sig, "publicKey": map[string]any{"content": []byte(leafPEM)}}}})
			entry := mustJSON(t, map[string]any{"body": body, "integratedTime": then.Add(time.Minute).Unix(), "logID": "log", "logIndex": 1}) // canonical: keys in order
			sum = sha256.Sum256(entry)
			stamp, err := ecdsa.SignASN1(rand.Reader, log, sum[:])
			if err != nil {
				t.Fatal(err)
			}
			return map[string]string{
				"dev.sigstore.cosign/certificate": leafPEM,
				"dev.sigstore.cosign/bundle":      string(mustJSON(t, map[string]any{"SignedEntryTimestamp": stamp, "Payload": json.RawMessage(entry)})),
			}
		})
	}
	sign("good", "dev@example.com", rekor.key)
	sign("stranger", "mallory@example.com", rekor.key)
	sign("unlogged", "dev@example.com", newSigner(t).key)
	img := p.pull(reg.host + "/app:good")
	for _, tag := range []string{"stranger", "unlogged"} {
		_, err := p.store.Pull(t.Context(), reg.host+"/app:"+tag, registry.Caller{})
		refused(t, tag, err)
	}
	if err := p.store.Allowed(t.Context(), "", reg.host+"/app:good", img.ID); err != nil {
		t.Errorf("the signature was not kept whole: %v", err)
	}
}

func certificate(t testing.TB, c, parent *x509.Certificate, public *ecdsa.PublicKey, by *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, public, by)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// A registry that fails while signatures are fetched is no bad signature.
func TestSignaturesOutOfReach(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	s := newSigner(t)
	policy := filepath.Join(p.dir, "strict.json")
	write(t, policy, signedOnly(t, s, reg.host))
	p.trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})
	reg.push("app", "v1", build(t, "gzip", "x"))
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, ".sig") {
			http.Error(w, "later", http.StatusInternalServerError)
			return true
		}
		return false
	})
	_, err := p.store.Pull(t.Context(), reg.host+"/app:v1", registry.Caller{})
	if pe, ok := errors.AsType[*registry.PullError](err); !ok || pe.Reason != registry.RegistryUnavailable {
		t.Errorf("error is %v, want %s", err, registry.RegistryUnavailable)
	}
}

// Pinning follows the settings while the store is open.
func TestReconfigurePinned(t *testing.T) {
	reg := newRegistry(t)
	p := newPlace(t, reg)
	reg.push("team/app", "v1", build(t, "gzip", "x"))
	img := p.pull(reg.host + "/team/app:v1")
	for pattern, want := range map[string]bool{
		reg.host + "/team/app:v1": true,
		reg.host + "/team/*":      true,
		"*app*":                   true,
		"*tea*":                   true,
		"team/app":                false,
		"app":                     false,
		"":                        false,
	} {
		p.store.Reconfigure(image.Settings{Pinned: []string{pattern}})
		got, err := p.store.Get(img.ID)
		if err != nil || got.Pinned != want {
			t.Errorf("with %q it is pinned: %v, want %v (err %v)", pattern, got.Pinned, want, err)
		}
	}
	p.reopen(image.Options{})
}

// Simple signing: GPG signatures in a directory or on a web server beside the
// registry.
func TestSimpleSigning(t *testing.T) {
	gpg, err := exec.LookPath("gpg")
	if err != nil {
		t.Skip("needs gpg to make signatures")
	}
	home := t.TempDir()
	run := func(stdin string, args ...string) []byte {
		t.Helper()
		cmd := exec.Command(gpg, append([]string{"--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("gpg %v: %v\n%s", args, err, &stderr)
		}
		return out
	}
	t.Cleanup(func() { exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run() })
	for _, algorithm := range []string{"rsa2048", "ed25519"} {
		t.Run(algorithm, func(t *testing.T) {
			user := algorithm + "@crisp.test"
			run("", "--quick-generate-key", user, algorithm, "sign", "never")
			reg := newRegistry(t)
			p := newPlace(t, reg)
			key, policy := filepath.Join(p.dir, "key.gpg"), filepath.Join(p.dir, "strict.json")
			write(t, key, string(run("", "--export", user)))
			write(t, policy, fmt.Sprintf(`{"default":[{"type":"signedBy","keyType":"GPGKeys","keyPath":%q}]}`, key))
			p.trusting(image.Settings{Settings: registry.Settings{PolicyPath: policy}})
			write(t, filepath.Join(p.dir, "registries.d", "all.yaml"), "default-docker:\n  lookaside: file://"+p.dir+"/lookaside\n")

			top := reg.push("app", "v1", build(t, "gzip", "x"))
			reg.push("app", "v2", build(t, "gzip", "y"))
			claim := fmt.Sprintf(`{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":%q},"identity":{"docker-reference":%q}},"optional":{"creator":"test","timestamp":1700000000}}`, top, reg.host+"/app:v1")
			write(t, filepath.Join(p.dir, "lookaside", "app@"+strings.Replace(top.String(), ":", "=", 1), "signature-1"), string(run(claim, "--local-user", user, "--sign")))
			img := p.pull(reg.host + "/app:v1")
			_, err := p.store.Pull(t.Context(), reg.host+"/app:v2", registry.Caller{})
			refused(t, "unsigned", err)
			if err := p.store.Allowed(t.Context(), "", reg.host+"/app:v1", img.ID); err != nil {
				t.Errorf("the signature was not kept: %v", err)
			}
		})
	}
}
